"""`saccade translate`, `complete`, `fill`: texts in, texts out, and every refusal in one sentence."""

import json

import pytest
import torch
from spoken import KINDS, TEXT, WORDS, folder, speaker
from terminal import run

import saccade
from saccade.errors import ModelError, UsageError
from saccade.models.text.decoding import Marks, beam, greedy
from saccade.text.generate import Decoding, completions, fillings, translations
from saccade.text.model import TextFolder, save_text
from saccade.text.vocabulary import learn


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("spoken")
    return {kind: folder(kind, place) for kind in KINDS}


def one(text):
    return torch.tensor([[*WORDS.encode(text), WORDS.eos]])


@pytest.mark.parametrize("kind", ["seq2seq", "luong", "vector", "transformer"])
def test_texts_are_translated_in_batches_as_one_by_one(kind):
    made = speaker(kind)
    texts = ["the cat sat on the mat", "the dog", "log", "ran to the log and sat"]
    together = translations(made.module, WORDS, WORDS, texts, Decoding(most=8), batch=3)
    marks = Marks(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad)
    for text, (found,) in zip(texts, together, strict=True):
        (alone,) = greedy(made.module, one(text), None, marks, 8)
        assert found.text == WORDS.decode(alone.tokens)
        assert found.log_p == pytest.approx(alone.log_p, abs=1e-4)


def test_beam_search_gives_its_best_in_order(models):
    done = run("translate", models["transformer"], "the cat", "--beams", "3", "--best", "3", "--json")
    (told,) = json.loads(done.out)
    marks = Marks(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad)
    (wanted,) = beam(speaker("transformer").module, one("the cat"), None, marks, 16, width=3, alpha=0.6)
    found = told["translations"]
    assert [each["text"] for each in found] == [WORDS.decode(s.tokens) for s in wanted]
    assert [each["score"] for each in found] == pytest.approx([s.score(0.6) for s in wanted], abs=1e-4)
    assert told["text"] == "the cat"


def test_lines_of_stdin_are_translated_to_as_many_lines(models):
    done = run("translate", models["seq2seq"], "--most", "4", stdin="the cat\nthe dög\r\nlog\n".encode())
    assert (done.code, done.out.count("\n"), done.err) == (0, 3, "")
    alone = [run("translate", models["seq2seq"], "--most", "4", t).out for t in ("the cat", "the dög", "log")]
    assert done.out == "".join(alone)


def test_the_same_seed_writes_the_same_text_and_batches_do_not_matter(models):
    command = ("complete", models["gpt"], "the cat", "--tokens", "9")
    first, again, other = (run(*command, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other
    assert first.startswith("the cat")
    texts = ["the cat sat on", "the"]
    many = completions(speaker("gpt").module, WORDS, texts, Decoding(most=5))
    for text, (found,) in zip(texts, many, strict=True):
        assert found.text == completions(speaker("gpt").module, WORDS, [text], Decoding(most=5))[0][0].text


def test_several_continuations_differ_and_json_has_the_new_words_alone(models):
    done = run("complete", models["gpt"], "the cat", "--tokens", "6", "--count", "3", "--json")
    told = json.loads(done.out)
    assert len({each["completion"] for each in told}) == 3
    assert all(each["text"] == "the cat" and each["tokens"] <= 6 and each["log_p"] < 0 for each in told)
    done = run(
        "complete", models["gpt"], "the cat", "--tokens", "6", "--beams", "3", "--count", "2", "--json"
    )
    told = json.loads(done.out)
    assert len({each["completion"] for each in told}) == 2


def test_a_text_is_drawn_by_its_seed_alone_whatever_stands_beside_it_and_how_many_are_asked_for():
    module, how = speaker("gpt").module, Decoding(most=6, temperature=1.0, seed=3)
    ((alone,),) = completions(module, WORDS, ["the cat"], how)
    beside = completions(module, WORDS, ["the dog sat", "the cat"], how)
    assert beside[1][0].text == alone.text
    many = completions(module, WORDS, ["the cat"] * 5, how, batch=2)
    assert many[0][0].text == alone.text
    assert len({found.text for (found,) in many}) == 5


def test_a_space_at_the_end_belongs_to_the_next_word(models):
    texts = ["the cat", "the cat "]
    (plain,), (spaced,) = completions(speaker("gpt").module, WORDS, texts, Decoding(most=5))
    assert "the cat" + plain.text == "the cat " + spaced.text or not plain.text.startswith(" ")


def test_a_text_beyond_the_context_goes_on_from_its_end(models):
    done = run("complete", models["gpt"], TEXT.strip() + " " + TEXT.strip(), "--tokens", "3")
    assert done.code == 0
    assert "tokens; the model reads the last 16" in done.err


def test_holes_are_filled_by_probability(models):
    done = run("fill", models["bert"], "the [MASK] sat on [MASK].", "--top", "3", "--json")
    (told,) = json.loads(done.out)
    tokens = [WORDS.bos, *WORDS.encode("the"), 4, *WORDS.go_on(" sat on"), 4, *WORDS.go_on(".")]
    with torch.no_grad():
        logits = speaker("bert").module(torch.tensor([tokens]))[0, [2, 5]]
    logits[:, :5] = -torch.inf
    p, words = logits.softmax(-1).topk(3)
    for hole, chances, numbers in zip(told["holes"], p.tolist(), words.tolist(), strict=True):
        assert [each["p"] for each in hole] == pytest.approx(chances, abs=1e-5)
        assert [each["word"] for each in hole] == [WORDS.word(number).strip() for number in numbers]
    assert told["filled"].count("[MASK]") == 0


def test_holes_are_filled_in_batches_as_one_by_one():
    module, texts = speaker("bert").module, ["the [MASK] sat on the mat", "[MASK]", "a [MASK] [MASK]"]
    together = fillings(module, WORDS, texts, 2)
    assert [len(found) for found in together] == [1, 1, 2]
    for text, found in zip(texts, together, strict=True):
        (alone,) = fillings(module, WORDS, [text], 2)
        for hole, other in zip(found, alone, strict=True):
            assert [word for word, _ in hole] == [word for word, _ in other]
            assert [p for _, p in hole] == pytest.approx([p for _, p in other], abs=1e-5)


def test_the_table_names_each_text_and_hole_once(models):
    lines = run("fill", models["bert"], "the [MASK] [MASK]", "--top", "2").out.splitlines()
    assert lines[0].split() == ["text", "mask", "probability", "word"]
    assert len(lines) == 5
    assert lines[1].startswith("the [MASK] [MASK]")


def test_a_guess_that_is_but_a_space_is_shown_by_a_sign(models):
    lines = run("fill", models["bert"], "the [MASK]", "--top", "500").out.splitlines()[1:]
    assert all(line.split("%", 1)[1].strip() for line in lines)
    assert any(line.endswith("\N{OPEN BOX}") for line in lines)


@pytest.mark.parametrize(
    ("verb", "kind", "words", "code"),
    [
        ("translate", "gpt", "a GPT cannot translate; it can complete", 4),
        ("complete", "bert", "a BERT cannot complete; it can fill", 4),
        ("fill", "seq2seq", "a Seq2Seq cannot fill; it can translate", 4),
    ],
)
def test_a_question_that_is_not_the_models_is_refused(verb, kind, words, code, models):
    done = run(verb, models[kind], "the [MASK]")
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["translate", "complete", "fill"])
def test_a_model_of_pictures_is_refused_by_the_commands_of_text(verb, model):
    done = run(verb, model, "the [MASK]")
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert "is an image model; expected a text model" in done.err


@pytest.mark.parametrize("verb", ["predict", "doctor"])
def test_a_model_of_text_is_refused_by_the_commands_of_pictures(verb, models, photo):
    done = run(verb, models["gpt"], *(() if verb == "doctor" else (photo,)))
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert "is a text model; expected an image model" in done.err


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (("translate", "transformer", ""), "the text is empty; expected at least one word", 2),
        (("translate", "transformer", "a", " "), "text 2 of 2 is empty", 2),
        (("translate", "transformer", "the cat " * 1500), "tokens, but the model takes 2,048", 2),
        (("translate", "transformer", "a", "--best", "2"), "best is 2, but 1 beams find 1 at most", 2),
        (
            ("translate", "transformer", "a", "--beams", "0"),
            "beams is 0; expected a number from 1 to 1024",
            2,
        ),
        (("fill", "bert", "the cat"), "'the cat' has no [MASK]; write [MASK]", 2),
        (("fill", "bert", "the [MASK] " * 20), "tokens, but the model takes 16; split it", 2),
        (("complete", "gpt", "a", "--beams", "2", "--temperature", "1"), "beam search draws nothing", 2),
        (("complete", "gpt", "a", "--top-p", "2"), "top_p is 2", 2),
        (
            ("complete", "gpt", "a", "--count", "2", "--temperature", "0"),
            "count is 2, but a temperature of 0",
            2,
        ),
        (("complete", "gpt", "a", "--count", "3", "--beams", "2"), "with 2 beams, count is 3; expected", 2),
        (("translate", "transformer", "Ein \udcff"), "character 5 of a text is not UTF-8", 2),
        (("complete", "gpt"), "stdin is empty; expected a text on each line", 3),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_sentence(words, told, code, models):
    verb, kind, *rest = words
    done = run(verb, models[kind], *rest)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert told in done.err


@pytest.mark.parametrize(
    ("stdin", "told"),
    [
        (b"the cat\n\nthe dog\n", "line 2 of stdin is empty"),
        (b"the cat\n\xff\xfe\n", "line 2 of stdin is not UTF-8"),
    ],
)
def test_a_line_of_stdin_that_is_no_text_is_named(stdin, told, models):
    done = run("translate", models["transformer"], stdin=stdin)
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert told in done.err


def test_python_says_the_same(models):
    model = saccade.load(models["transformer"], text=True)
    texts = ["the cat", "the dog"]
    assert model.translate(texts) == [model.translate(text) for text in texts]
    assert model.translate("the cat") == run("translate", models["transformer"], "the cat").out.rstrip("\n")
    with pytest.raises(ModelError, match="a Transformer cannot fill"):
        model.fill("the [MASK]")
    with pytest.raises(UsageError, match="the text is empty"):
        model.translate("")
    writer = saccade.load(models["gpt"], text=True)
    assert (
        writer.complete("the", most=4, temperature=0.0)
        == writer.complete(["the"], most=4, temperature=0.0)[0]
    )


def test_convert_turns_a_gpt_into_hugging_faces_layout_and_back(models, tmp_path):
    assert run("convert", models["gpt"], "--out", tmp_path / "hf", "--to", "hf").code == 0
    assert (tmp_path / "hf" / "config.json").is_file()
    assert run("convert", tmp_path / "hf", "--out", tmp_path / "ours").code == 0
    command = ("--temperature", "0", "--tokens", "4", "the cat")
    answers = {
        run("complete", path, *command).out for path in (models["gpt"], tmp_path / "hf", tmp_path / "ours")
    }
    assert len(answers) == 1
    done = run("convert", models["gpt"], "--out", tmp_path / "x", "--patch", "4")
    assert done.code == 2
    assert "is a text model; --image, --patch, --labels and --normalise are for image models" in done.err
    done = run("convert", models["transformer"], "--out", tmp_path / "x", "--to", "hf")
    assert (done.code, "GPT and BERT, not for a Transformer" in done.err) == (2, True)


def test_letters_that_a_model_never_met_are_told(tmp_path):
    letters = learn([TEXT], "characters")
    save_text(tmp_path / "letters", TextFolder(speaker("gpt").module, letters))
    done = run("complete", tmp_path / "letters", "the zoo", "--tokens", "2")
    assert (done.code, done.err) == (0, "note: 'z' is not in the vocabulary; each is read as unknown\n")


def test_control_characters_of_a_model_do_not_reach_the_terminal():
    from saccade.cli.text import line, safe

    assert safe("a\x1b[31m\nb\tc") == "a\ufffd[31m\nb\tc"
    assert line("a\nb\x07") == "a b\ufffd"
