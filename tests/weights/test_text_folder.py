"""A model of text is a folder that can answer: written, read back, refused in words."""

import json
import shutil

import pytest
import torch
import transformers as hf
from spoken import COUNT, KINDS, TEXT, WORDS, folder, speaker
from terminal import run, small

import saccade
from saccade.errors import ModelError, UsageError
from saccade.hub.names import choose_files
from saccade.models.text.gpt import GPT
from saccade.text.model import SOURCE, TextFolder, load_text, save_text
from saccade.text.tokenizer_files import Pieces
from saccade.text.vocabulary import learn

each_kind = pytest.mark.parametrize("kind", KINDS)


def answer(spoken, tokens):
    given = (tokens, None, tokens) if spoken.task == "translate" else (tokens,)
    with torch.no_grad():
        return spoken.module(*given)


@each_kind
def test_a_folder_gives_back_the_same_logits_words_and_names(kind, tmp_path):
    made = speaker(kind)
    read = load_text(folder(kind, tmp_path))
    tokens = torch.randint(5, COUNT, (2, 7), generator=torch.Generator().manual_seed(0))
    assert torch.equal(answer(read, tokens), answer(made, tokens))
    assert read.vocabulary.encode(TEXT) == WORDS.encode(TEXT)
    assert (read.task, read.layout) == (made.task, "saccade")
    assert read.sides == (("de", "en") if made.task == "translate" else ("source", "target"))
    assert not read.module.training
    assert all(parameter.requires_grad for parameter in read.module.parameters())


def test_a_source_of_another_language_keeps_its_own_vocabulary(tmp_path):
    letters = learn([TEXT], "characters")
    made = speaker("transformer")
    save_text(tmp_path / "model", TextFolder(made.module, WORDS, letters))
    read = load_text(tmp_path / "model")
    assert (tmp_path / "model" / SOURCE).is_file()
    assert (read.reads.kind, read.vocabulary.kind) == ("characters", "pairs")
    assert len(saccade.load(tmp_path / "model", text=True).translate("the cat", most=3)) > 0


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_hugging_face_reads_what_is_written_for_it(kind, tmp_path):
    made = speaker(kind)
    save_text(tmp_path / "hf", made, "hf")
    tokens = torch.randint(5, COUNT, (2, 7))
    cls = hf.GPT2LMHeadModel if kind == "gpt" else hf.BertForMaskedLM
    with torch.no_grad():
        theirs = cls.from_pretrained(tmp_path / "hf").eval()(tokens).logits
    torch.testing.assert_close(answer(made, tokens), theirs, atol=1e-4, rtol=0)
    cut = hf.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert cut("the cat sat")["input_ids"] == WORDS.encode("the cat sat")
    assert cut.mask_token == "<mask>"
    read = load_text(tmp_path / "hf")
    assert read.layout == "hf"
    assert torch.equal(answer(read, tokens), answer(made, tokens))
    assert read.vocabulary.encode("the cat") == WORDS.encode("the cat")
    assert read.vocabulary.go_on("the cat") == WORDS.go_on("the cat")


@pytest.fixture
def bert(tmp_path):
    """A BERT as Hugging Face publishes them, with word pieces."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "."]
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(names) + "\n")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    torch.manual_seed(0)
    theirs = hf.BertForMaskedLM(hf.BertConfig(vocab_size=11, max_position_embeddings=16, **sizes)).eval()
    theirs.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert", theirs, names


def test_a_bert_with_its_own_word_pieces_fills_as_transformers_does(bert):
    path, theirs, names = bert
    model = saccade.load(path, text=True)
    assert isinstance(model.vocabulary, Pieces)
    assert model.vocabulary.encode("The cats.") == [5, 6, 8, 10]
    assert (model.vocabulary.frame, model.vocabulary.mask) == (([2], [3]), 4)
    (best,) = model.fill("the [MASK] sat.", top=6)
    with torch.no_grad():
        logits = theirs(torch.tensor([[2, 5, 4, 7, 10, 3]])).logits[0, 2, 5:]
    wanted = logits.softmax(-1)
    assert [names[5 + i] for i in wanted.argsort(descending=True)] == [word for word, _ in best]
    assert [p for _, p in best] == pytest.approx(wanted.sort(descending=True).values.tolist(), abs=1e-5)


def test_a_published_folder_becomes_one_of_ours_and_answers_the_same(bert, tmp_path):
    path, _, _ = bert
    model = saccade.load(path, text=True)
    ours = saccade.load(model.save(tmp_path / "ours"), text=True)
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == [
        "model.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert ours.fill("the [MASK] sat.") == model.fill("the [MASK] sat.")
    assert ours.layout == "saccade"


def test_a_pickled_bert_is_converted_with_its_words(bert, tmp_path):
    path, theirs, _ = bert
    wanted = saccade.load(path, text=True).fill("the [MASK] sat.")
    (path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), path / "pytorch_model.bin")
    done = run("convert", path, "--out", tmp_path / "ours")
    assert done.code == 0, done.err
    assert saccade.load(tmp_path / "ours", text=True).fill("the [MASK] sat.") == wanted


def test_a_tokenizer_is_fetched_with_its_weights():
    names = ["README.md", "config.json", "model.safetensors", "tf_model.h5", "vocab.txt"]
    assert choose_files(names, "owner/bert") == ["config.json", "vocab.txt", "model.safetensors"]


def test_names_of_models_of_text_are_created_too():
    made = saccade.create("gpt_mini", vocabulary=50, depth=1)
    assert isinstance(made, GPT)
    assert (made.config.vocabulary, made.config.depth, len(made.blocks)) == (50, 1, 1)
    with pytest.raises(UsageError, match="a field of gpt_mini is 'dept'"):
        saccade.create("gpt_mini", dept=1)


def test_a_model_of_the_other_kind_is_refused_in_words(tmp_path):
    with pytest.raises(ModelError, match="is an image model; expected a text model"):
        saccade.load(small().save(tmp_path / "vit"), text=True)
    path = folder("gpt", tmp_path)
    with pytest.raises(UsageError, match="is a text model; image, patch"):
        saccade.load(path, patch=4)
    from saccade.weights.load import load as load_pictures

    with pytest.raises(ModelError, match=r"gpt is a text model; expected an image model"):
        load_pictures(path)


def _told(path):
    return json.loads((path / "model.json").read_text())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda p: (p / "tokenizer.json").unlink(),
            "tokenizer.json, the vocabulary of the model, is missing",
        ),
        (lambda p: (p / "tokenizer.json").write_text("{}"), "the tokenizer has no model"),
        (lambda p: (p / "model.json").write_text('{"format": 2, "task": "language"}'), "is of format 2"),
        (
            lambda p: (p / "model.json").write_text(json.dumps({**_told(p), "task": "translate"})),
            "says task translate in model.json, but its model is a 'gpt'",
        ),
        (
            lambda p: (p / "model.json").write_text(
                json.dumps({**_told(p), "model": {**_told(p)["model"], "depth": 900}})
            ),
            "describes 900 blocks, but the file has",
        ),
        (
            lambda p: (p / "model.json").write_text(
                json.dumps({**_told(p), "model": {**_told(p)["model"], "hidden": 41}})
            ),
            "does not hold the tensors of the model it describes",
        ),
        (
            lambda p: (p / "tokenizer.json").write_text(learn([TEXT + "xyzq" * 9, "vw"] * 9).to_json()),
            "numbers its entries up to .*, but the model knows",
        ),
    ],
)
def test_a_damaged_folder_is_refused_in_words(spoil, words, tmp_path):
    path = folder("gpt", tmp_path)
    spoil(path)
    with pytest.raises(ModelError, match=words):
        saccade.load(path)


def test_numbers_that_are_none_are_refused(tmp_path):
    made = speaker("gpt")
    broken = KINDS["gpt"]()
    broken.load_state_dict(made.module.state_dict())
    with torch.no_grad():
        broken.words.table.weight[7, 3] = torch.nan
    save_text(tmp_path / "gpt", TextFolder(broken, WORDS))
    with pytest.raises(ModelError, match="1 tensors hold NaN"):
        load_text(tmp_path / "gpt")


def test_saving_overwrites_nothing_and_knows_which_layouts_fit(tmp_path):
    model = saccade.load(folder("transformer", tmp_path), text=True)
    assert repr(model).startswith("TextModel(Transformer, ")
    assert repr(model).endswith(f"from de to en, {COUNT} words)")
    with pytest.raises(UsageError, match="exists and is not empty"):
        model.save(tmp_path / "transformer")
    with pytest.raises(UsageError, match="GPT and BERT, not for a Transformer"):
        model.save(tmp_path / "hf", "hf")
    assert not (tmp_path / "hf").exists()
    shutil.rmtree(tmp_path / "transformer")
