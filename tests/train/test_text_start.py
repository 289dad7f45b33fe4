"""`saccade train` on a text from a GPT-2 or BERT that Hugging Face's library has written."""

import json
import shutil

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import saccade
from saccade.api.train import resume_run, start_run
from saccade.errors import StoppedError, UsageError
from saccade.tasks.language import evaluate
from saccade.tasks.language.recipe import default_recipe as for_text
from saccade.text.tokenizer_files import Pieces
from saccade.train import start

TEXT = "the cat sat on the mat .\nthe dogs sat on a log .\n" * 30 + "the cat sat on the mat . " * 6 + "\n"
"""Its last line is longer than the models' contexts."""
NAMES = ["[PAD]", "the", "[UNK]", "cat", "sat", "on", "[CLS]", "a", "dog", "##s", "[SEP]", "mat", "log", ".",
         "[MASK]"]  # fmt: skip
BERT = {"vocab_size": len(NAMES), "max_position_embeddings": 16, "hidden_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 3, "intermediate_size": 40}  # fmt: skip
GPT = {"n_positions": 16, "n_embd": 24, "n_layer": 1, "n_head": 3}
QUICK = ["budget.steps=2", "budget.batch=4", "budget.save=0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, and models as they are published: a BERT with all its heads, one with none, a GPT-2."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "book.txt").write_text(TEXT)
    torch.manual_seed(0)
    for name, cls in {"bert": hf.BertForPreTraining, "body": hf.BertModel}.items():
        cls(hf.BertConfig(**BERT)).save_pretrained(folder / name)
        (folder / name / "vocab.txt").write_text("\n".join(NAMES) + "\n")
    cut = Tokenizer(models.BPE())
    cut.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<|endoftext|>"]
    cut.train_from_iterator([TEXT], trainers.BpeTrainer(special_tokens=marks, initial_alphabet=letters))
    cut.enable_padding(length=99)
    cut.enable_truncation(3)
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=cut.get_vocab_size(), **GPT)).save_pretrained(folder / "gpt2")
    cut.save(str(folder / "gpt2" / "tokenizer.json"))
    return folder


def begin(place, model, out):
    return start_run(str(place / "book.txt"), str(place / model), out, QUICK, quiet=True)


@pytest.mark.parametrize("model", ["bert", "body", "gpt2"])
def test_a_published_model_learns_a_text_and_keeps_its_words(place, model, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "PIECES", 3)
    known = saccade.load(place / model, text=True)
    run = begin(place, model, tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in run.job.module.state_dict().items()}
    for name, tensor in known.module.state_dict().items():
        if not name.startswith(("pool.", "head.")):
            assert torch.equal(before[name], tensor), f"{name}: the run begins where the model was"
    run.go()
    start.finish(run)
    after = saccade.load(run.folder, text=True)
    assert isinstance(after.vocabulary, Pieces)
    assert after.vocabulary.encode("the cats sat") == known.vocabulary.encode("the cats sat")
    assert after.module.state_dict().keys() == before.keys()
    assert not [name for name in before if name.startswith(("pool.", "head."))]
    told = json.loads((run.folder / "evaluation.json").read_text())
    assert told["scores"]["perplexity"] > 1
    assert told["samples"]
    if model == "gpt2":
        assert after.complete("the cat", most=3)
    else:
        (best,) = after.fill("the [MASK] sat on a log .", top=3)
        assert {guess.word for guess in best} <= {*NAMES} - {name for name in NAMES if name.startswith("[")}


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_the_loss_reaches_every_number_that_several_processes_would_wait_for(place, model, tmp_path):
    run = begin(place, model, tmp_path / "run")
    job = run.job
    job.loss(job.module, next(job.batches(0, 1, (0, 1))), 0.0)["loss"].backward()
    assert [name for name, p in job.module.named_parameters() if p.grad is None] == []


def test_what_is_told_says_what_is_new_and_how_it_goes_on(place, tmp_path, capsys):
    start_run(str(place / "book.txt"), str(place / "body"), tmp_path / "run", QUICK, task="language")
    told = capsys.readouterr().err
    assert f"model    {place / 'body'} with its own vocabulary and a new head for hidden words, " in told
    assert "recipe   fine-tuning: few epochs, at a small learning rate\n" in told
    assert for_text(str(place / "gpt2"), 1000)[0].optim.lr < for_text("gpt_mini", 1000)[0].optim.lr


def test_a_name_that_is_none_is_answered_with_those_near_it(place, tmp_path):
    with pytest.raises(UsageError, match="no text model is named 'bert_min'; did you mean 'bert_mini'"):
        start_run(str(place / "book.txt"), "bert_min", tmp_path / "run", QUICK, quiet=True)


@pytest.mark.parametrize("model", ["body", "gpt2"])
def test_a_text_run_resumes_to_the_same_bytes_without_the_weights_it_started_from(place, model, tmp_path):
    whole = begin(place, model, tmp_path / "whole")
    whole.go()
    shutil.copytree(place / model, tmp_path / "start")
    run = start_run(str(place / "book.txt"), str(tmp_path / "start"), tmp_path / "run", QUICK, quiet=True)
    run.stopped = True
    with pytest.raises(StoppedError):
        run.go()
    folder = run.folder
    del run
    shutil.rmtree(tmp_path / "start")
    resume_run(folder, quiet=True).go()
    for name in ("model.safetensors", "model.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
