"""Logits of GPT-2 and BERT equal Hugging Face's on shared random weights; files go both ways."""

import json

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from saccade.errors import ModelError, UsageError
from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.nn.block import BlockStyle
from saccade.text.model import load_text, read_tokenizer
from saccade.text.tokenizer_files import make as tokenizer
from saccade.weights.formats import tensors as files
from saccade.weights.identify import identify
from saccade.weights.layouts.hf_text import read, write

GPT2 = {"vocab_size": 50, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3,
        "bos_token_id": None, "eos_token_id": None}  # fmt: skip
BERTS = {"vocab_size": 50, "max_position_embeddings": 16, "hidden_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 3, "intermediate_size": 40}  # fmt: skip
KINDS = {
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)),
    "gpt2, relu and narrow": (
        hf.GPT2LMHeadModel,
        hf.GPT2Config(**GPT2, activation_function="relu", n_inner=40, layer_norm_epsilon=1e-3),
    ),
    "gpt2, untied": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2, tie_word_embeddings=False)),
    "bert, hidden words": (hf.BertForMaskedLM, hf.BertConfig(**BERTS)),
    "bert, pre-training": (hf.BertForPreTraining, hf.BertConfig(**BERTS, hidden_act="gelu_new")),
    "bert, body": (hf.BertModel, hf.BertConfig(**BERTS)),
    "bert, classes": (hf.BertForSequenceClassification, hf.BertConfig(**BERTS, num_labels=5)),
}
B, N = 3, 7
MASK = torch.arange(N) < torch.tensor([[7], [2], [4]])
each_kind = pytest.mark.parametrize("kind", KINDS)


def theirs(kind):
    """Random numbers everywhere: a published start has zeros that would hide a mistake."""
    cls, config = KINDS[kind]
    model = cls(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def same(ours, other):
    """Their answers and ours at the words, for a batch with padding and two segments."""
    tokens, segments = torch.randint(50, (B, N)), torch.randint(2, (B, N))
    mask = MASK.long()
    with torch.no_grad():
        if isinstance(ours, GPT):
            expected = other(tokens, attention_mask=mask, use_cache=False).logits
            assert_close(ours(tokens, MASK)[MASK], expected[MASK], atol=1e-4, rtol=0)
            assert_close(ours(tokens), other(tokens, use_cache=False).logits, atol=1e-4, rtol=0)
            return
        found = other(tokens, attention_mask=mask, token_type_ids=segments)
        z = ours.encode(tokens, MASK, segments)
        if hasattr(found, "last_hidden_state"):
            assert_close(z[MASK], found.last_hidden_state[MASK], atol=1e-4, rtol=0)
            assert_close(ours.summary(z), found.pooler_output, atol=1e-4, rtol=0)
        elif hasattr(found, "prediction_logits"):
            assert_close(ours(tokens, MASK, segments)[MASK], found.prediction_logits[MASK], atol=1e-4, rtol=0)
            assert_close(ours.classify(z), found.seq_relationship_logits, atol=1e-4, rtol=0)
        elif ours.config.fills:
            assert_close(ours(tokens, MASK, segments)[MASK], found.logits[MASK], atol=1e-4, rtol=0)
        else:
            assert_close(ours.classify(z), found.logits, atol=1e-4, rtol=0)


@each_kind
def test_answers_equal_those_of_transformers_in_files_that_it_wrote(kind, tmp_path):
    other = theirs(kind)
    other.save_pretrained(tmp_path)
    ours = read(identify(tmp_path))
    assert not ours.training
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in other.parameters())
    same(ours, other)


@each_kind
def test_transformers_opens_what_we_write_and_we_read_it_back_to_the_last_bit(kind, tmp_path):
    cls, _ = KINDS[kind]
    theirs(kind).save_pretrained(tmp_path / "a")
    ours = read(identify(tmp_path / "a"))
    write(tmp_path / "b", ours)
    other, report = cls.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    same(ours, other.eval())
    again = read(identify(tmp_path / "b"))
    assert again.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize("kind", ["gpt2", "bert, pre-training"])
def test_old_names_masks_in_the_file_and_tied_tables_stored_twice_are_read(kind, tmp_path):
    other = theirs(kind)
    other.save_pretrained(tmp_path)
    tensors = {n: t.clone() for n, t in files.read_tensors(tmp_path).items()}
    if kind == "gpt2":
        tensors = {n.removeprefix("transformer."): t for n, t in tensors.items()}
        tensors |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "h.0.attn.masked_bias": torch.tensor(-1e4)}
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    else:
        tensors = {
            n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for n, t in tensors.items()
        }
        tensors["bert.embeddings.position_ids"] = torch.arange(16)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    files.write_safetensors(tmp_path / "model.safetensors", tensors)
    same(read(identify(tmp_path)), other)


def test_half_precision_is_read_as_full_precision(tmp_path):
    theirs("gpt2").half().save_pretrained(tmp_path)
    module = read(identify(tmp_path))
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only False is computed here"),
        ("gpt2", {"activation_function": "swish"}, "activation_function of config.json is 'swish'"),
        ("gpt2", {"n_head": 5}, "width 24 does not split into 5 heads"),
        ("gpt2", {"n_head": None}, "the tensors do not make a complete model"),
        ("bert, body", {"position_embedding_type": "relative_key"}, "sets position_embedding_type to"),
        ("bert, body", {"hidden_act": "relu"}, "a BERT uses GELU here"),
    ],
)
def test_a_config_that_asks_for_another_model_is_refused_in_words(kind, change, words, tmp_path):
    theirs(kind).save_pretrained(tmp_path)
    side = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(side | change))
    with pytest.raises(ModelError, match=words):
        load_text(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"wte.weight": None}, "holds neither a GPT-2 .* nor a BERT"),
        ({"ln_f.bias": None}, "1 missing .*ln_f.bias"),
        ({"extra": torch.ones(2)}, "1 unexpected .*extra"),
        ({"ln_f.bias": torch.ones(5)}, "ln_f.bias is 5 instead of 24"),
        ({"h.0.ln_1.weight": None}, "the blocks of the model have gaps in their numbers"),
        ({"wpe.weight": None}, "the tensors do not make a complete model"),
        (
            {"lm_head.weight": torch.ones(50, 24)},
            "lm_head.weight differs from wte.weight, though config.json",
        ),
    ],
)
def test_a_file_that_is_no_whole_model_is_refused_in_words(damage, words, tmp_path):
    theirs("gpt2").save_pretrained(tmp_path)
    tensors = {n.removeprefix("transformer."): t.clone() for n, t in files.read_tensors(tmp_path).items()}
    for name, tensor in damage.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    files.write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=words):
        read(identify(tmp_path))


def test_a_model_that_the_layout_cannot_say_is_refused_in_words(tmp_path):
    sizes = {"vocabulary": 9, "context": 8, "width": 8, "depth": 1, "heads": 2, "hidden": 8}
    rms = BlockStyle(norm="rms")
    for model, words in (
        (GPT(GPTConfig(**sizes, block=rms)), "GPT-2 is pre-norm with LayerNorm; this model is pre-rms"),
        (GPT(GPTConfig(**sizes, position="sinusoidal")), "GPT-2 has learnt positions, this model sinusoidal"),
        (BERT(BERTConfig(**sizes, block=rms)), "BERT is post-norm with LayerNorm; this model is pre-rms"),
    ):
        with pytest.raises(UsageError, match=words):
            write(tmp_path, model)


def test_gpt2_counts_as_transformers_does():
    with torch.device("meta"):
        ours, other = GPT(GPTConfig()), hf.GPT2LMHeadModel(hf.GPT2Config())
        body, their_body = BERT(BERTConfig(fills=False)), hf.BertModel(hf.BertConfig())
    count = [sum(p.numel() for p in model.parameters()) for model in (ours, other, body, their_body)]
    assert count == [124_439_808, 124_439_808, 109_482_240, 109_482_240]


TEXT = ["the cat sat on the mat", "a dog ate the cat's hat", "the mat is flat", "the café is hot"] * 5


def learnt(tmp_path):
    """GPT-2's kind of tokenizer, trained here, in its own two files."""
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    made.save_model(str(tmp_path))
    return made


def test_a_tokenizer_travels_with_its_model_and_cuts_as_before(tmp_path):
    expected = learnt(tmp_path)
    theirs("gpt2").save_pretrained(tmp_path)
    found = read_tokenizer(tmp_path)
    assert set(found) == {"vocab.json", "merges.txt"}
    write(tmp_path / "b", read(identify(tmp_path)), found)
    assert read_tokenizer(tmp_path / "b") == found
    cut = tokenizer(found)
    for text in ("the cat is hot!", "naïve  café\n<|endoftext|>a"):
        numbers = cut.encode(text).ids
        assert cut.decode(numbers, skip_special_tokens=False) == text
    assert cut.encode("the cat is hot!").ids == expected.encode("the cat is hot!").ids
    assert cut.encode("<|endoftext|>").ids == [0]


def test_tokenizer_json_and_a_list_of_word_pieces_are_read(tmp_path):
    from tokenizers import BertWordPieceTokenizer

    made = BertWordPieceTokenizer(lowercase=True)
    made.train_from_iterator(TEXT, vocab_size=80, show_progress=False)
    made.save_model(str(tmp_path))
    made.save(str(tmp_path / "tokenizer.json"))
    whole, pieces = ((tmp_path / name).read_bytes() for name in ("tokenizer.json", "vocab.txt"))
    text = "The CAT's [MASK] sat"
    first = tokenizer({"tokenizer.json": whole}).encode(text)
    second = tokenizer({"vocab.txt": pieces, "tokenizer_config.json": b"{}"}).encode(text)
    assert second.tokens[0] == "[CLS]"
    assert "[MASK]" in second.tokens
    assert first.ids == second.ids[1:-1]  # the library writes no frame when it has just trained
    kept = tokenizer({"vocab.txt": pieces, "tokenizer_config.json": b'{"do_lower_case": false}'})
    assert "[UNK]" in kept.encode("CAT").tokens


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, r"the model has no tokenizer \(files found: none\)"),
        ({"merges.txt": b""}, r"files found: merges.txt\); expected tokenizer.json, vocab.json with"),
        ({"tokenizer.json": b"{"}, "tokenizer.json is not readable JSON"),
        ({"vocab.txt": b"a\nb"}, r'the tokenizer has no entry "\[UNK\]" for unknown words'),
    ],
)
def test_a_tokenizer_that_cannot_be_made_is_refused_in_words(found, words):
    with pytest.raises(ModelError, match=words):
        tokenizer(found)
