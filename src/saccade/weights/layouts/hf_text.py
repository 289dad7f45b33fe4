"""GPT-2 and BERT in Hugging Face's layout: read and written, with the files of their tokenizers.

Published files have names with and without the prefix of the model's class, LayerNorms with gamma and beta,
causal masks stored as tensors, and tied word embeddings stored twice; all are read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.errors import ModelError, UsageError, check_word
from saccade.files.atomic import write_bytes
from saccade.files.strict_json import write_json
from saccade.models.build import undrawn
from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.nn.block import BlockStyle
from saccade.weights.formats.safetensors import Header
from saccade.weights.formats.tensors import SINGLE, read_tensors, write_safetensors
from saccade.weights.identify import TOKENIZER_FILES, Identified
from saccade.weights.layouts import infer
from saccade.weights.layouts.rules import (
    Rule,
    Shapes,
    check_dtypes,
    examine,
    join,
    load,
    renamed,
    reshaped,
    save,
    some_sorted,
    state,
)
from saccade.wording import printable

LARGEST = 2**26
"""Bytes of a tokenizer's file; the largest published ones have half of this."""
ACTIVATIONS = {"gelu": ("gelu", "erf"), "gelu_new": ("gelu", "tanh"), "gelu_pytorch_tanh": ("gelu", "tanh"),
         "relu": ("relu", "erf")}  # fmt: skip
UNUSED = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|embeddings\.position_ids")
COPIES = {  # tensors that a tied file may repeat, and what each must equal
    "lm_head.weight": "wte.weight",
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def clean(name: str) -> str:
    """Return their name without the prefix of the model's class, as the rules below have it."""
    name = name.removeprefix("transformer.").removeprefix("bert.")
    return re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))


def gpt_rules(config: GPTConfig) -> list[Rule]:
    """Return the rules of GPT-2, whose linear layers are transposed, with q, k and v side by side."""
    made = [*renamed("words.table", "wte", ["weight"]), *renamed("words.position", "wpe", ["weight"])]
    for i in range(config.depth):
        us, them = f"blocks.{i}", f"h.{i}"
        made += renamed(f"{us}.norm1", f"{them}.ln_1") + renamed(f"{us}.norm2", f"{them}.ln_2")
        for part in ("weight", "bias"):
            ours = tuple(f"{us}.attention.{which}.{part}" for which in "qkv")
            made.append(Rule(ours, (f"{them}.attn.c_attn.{part}",), _apart, _beside))
        linear = {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
        for mine, theirs in linear.items():
            made.append(reshaped(f"{us}.{mine}.weight", f"{them}.{theirs}.weight", "i o -> o i"))
            made += renamed(f"{us}.{mine}", f"{them}.{theirs}", ["bias"])
    own = [] if config.tied else [Rule(("unembed.own",), ("lm_head.weight",))]
    return [*made, *renamed("norm", "ln_f"), *own]


def _apart(joined: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.mT if t.ndim == 2 else t for t in joined.chunk(3, dim=-1))


def _beside(*parts: Tensor) -> tuple[Tensor]:
    return (join([t.mT if t.ndim == 2 else t for t in parts], dim=-1),)


def bert_rules(config: BERTConfig) -> list[Rule]:
    """Return the rules of BERT, whose norms follow the residual sums and so belong to `add1` and `add2`."""
    made = [
        *renamed("words.table", "embeddings.word_embeddings", ["weight"]),
        *renamed("words.position", "embeddings.position_embeddings", ["weight"]),
        *renamed("segment", "embeddings.token_type_embeddings", ["weight"]),
        *renamed("norm", "embeddings.LayerNorm"),
    ]
    for i in range(config.depth):
        us, them = f"blocks.{i}", f"encoder.layer.{i}"
        pairs = {
            "attention.q": "attention.self.query", "attention.k": "attention.self.key",
            "attention.v": "attention.self.value", "attention.out": "attention.output.dense",
            "add1.norm": "attention.output.LayerNorm", "mlp.up": "intermediate.dense",
            "mlp.down": "output.dense", "add2.norm": "output.LayerNorm",
        }  # fmt: skip
        for mine, theirs in pairs.items():
            made += renamed(f"{us}.{mine}", f"{them}.{theirs}")
    made += renamed("pool", "pooler.dense") if config.pooled else []
    if config.fills:
        made += renamed("fill.dense", "cls.predictions.transform.dense")
        made += renamed("fill.norm", "cls.predictions.transform.LayerNorm")
        made.append(Rule(("fill.bias",), ("cls.predictions.bias",)))
    if config.classes:
        made += renamed("head", "cls.seq_relationship" if config.fills else "classifier")
    return made


def read_config(shapes: Shapes, side: Mapping[str, Any]) -> GPTConfig | BERTConfig:
    """Return the config for a file: sizes from the tensors, the rest from config.json."""
    try:
        if "wte.weight" in shapes:
            return _gpt(shapes, side)
        if "embeddings.word_embeddings.weight" in shapes:
            return _bert(shapes, side)
    except (KeyError, IndexError, TypeError) as error:
        raise ModelError(
            f"the tensors do not make a complete model ({error} is missing or unusual)"
        ) from error
    raise ModelError(
        "the file holds neither a GPT-2 (wte.weight) nor a BERT (embeddings.word_embeddings.weight); these "
        "are the only text models read from Hugging Face's files"
    )


def _activation(side: Mapping[str, Any], key: str, default: str) -> tuple[str, str]:
    word = side.get(key, default)
    check_word(f"{key} of config.json", word, ACTIVATIONS)
    return ACTIVATIONS[word]


def _plain(side: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Refuse a config that does not compute what the published models do."""
    for name, value in usual.items():
        if side.get(name, value) != value:
            raise ModelError(
                f"config.json sets {name} to {printable(side[name])}, but only {value!r} is computed here"
            )


def _gpt(shapes: Shapes, side: Mapping[str, Any]) -> GPTConfig:
    _plain(side, {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
                  "add_cross_attention": False})  # fmt: skip
    vocabulary, width = shapes["wte.weight"]
    bend, gelu = _activation(side, "activation_function", "gelu_new")
    eps, dropout = float(side.get("layer_norm_epsilon", 1e-5)), float(side.get("resid_pdrop", 0.1))
    return GPTConfig(
        vocabulary=vocabulary,
        context=shapes["wpe.weight"][0],
        width=width,
        depth=infer.depth(shapes, "h.{i}.ln_1.weight"),
        heads=int(side.get("n_head", max(1, width // 64))),
        hidden=shapes["h.0.mlp.c_fc.weight"][1],
        bend=bend,
        tied=bool(side.get("tie_word_embeddings", True)) or "lm_head.weight" not in shapes,
        block=BlockStyle(eps=eps, gelu=gelu, dropout=dropout),
    )


def _bert(shapes: Shapes, side: Mapping[str, Any]) -> BERTConfig:
    _plain(side, {"position_embedding_type": "absolute", "is_decoder": False, "tie_word_embeddings": True,
                  "add_cross_attention": False})  # fmt: skip
    vocabulary, width = shapes["embeddings.word_embeddings.weight"]
    bend, gelu = _activation(side, "hidden_act", "gelu")
    if bend != "gelu":
        raise ModelError(f"config.json sets hidden_act to {bend!r}, but a BERT uses GELU here")
    eps, dropout = float(side.get("layer_norm_eps", 1e-12)), float(side.get("hidden_dropout_prob", 0.1))
    heads = [n for n in ("cls.seq_relationship.weight", "classifier.weight") if n in shapes]
    return BERTConfig(
        vocabulary=vocabulary,
        context=shapes["embeddings.position_embeddings.weight"][0],
        segments=shapes["embeddings.token_type_embeddings.weight"][0],
        width=width,
        depth=infer.depth(shapes, "encoder.layer.{i}.intermediate.dense.weight"),
        heads=int(side.get("num_attention_heads", max(1, width // 64))),
        hidden=shapes["encoder.layer.0.intermediate.dense.weight"][0],
        fills="cls.predictions.bias" in shapes,
        pooled="pooler.dense.weight" in shapes,
        classes=shapes[heads[0]][0] if heads else 0,
        block=BlockStyle(placement="post", eps=eps, gelu=gelu, dropout=dropout),
    )


def read(found: Identified) -> GPT | BERT:
    """Load the module of a folder with model.safetensors and config.json, in evaluation mode."""
    kept = {name: clean(name) for name in found.headers if not UNUSED.fullmatch(clean(name))}
    headers = {ours: found.headers[name] for name, ours in kept.items()}
    config = read_config({name: header.shape for name, header in headers.items()}, found.side)
    rules = gpt_rules(config) if isinstance(config, GPTConfig) else bert_rules(config)
    module = undrawn(lambda: GPT(config) if isinstance(config, GPTConfig) else BERT(config))
    expected = save(rules, state(module))
    again = {name for name in headers.keys() - expected.keys() if COPIES.get(name) in headers}
    _check_headers(expected, {name: header for name, header in headers.items() if name not in again})
    read = read_tensors(found.path, names=list(kept), expected=found.headers)
    theirs = {kept[name]: tensor for name, tensor in read.items()}
    for name in again:
        same = headers[name] == headers[COPIES[name]]  # torch.equal fails on two dtypes
        if not same or not torch.equal(theirs.pop(name), theirs[COPIES[name]]):
            raise ModelError(f"{name} differs from {COPIES[name]}, though config.json ties them")
    tensors = {name: tensor.float().contiguous() for name, tensor in load(rules, theirs).items()}
    module.load_state_dict(tensors, assign=True)
    return module.eval()


def _check_headers(expected: Mapping[str, Tensor], found: Mapping[str, Header]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    examine("the file", shapes, {name: header.shape for name, header in found.items()})
    check_dtypes("the file", expected, found)


def write(folder: Path, module: GPT | BERT, tokenizer: Mapping[str, bytes] | None = None) -> None:
    """Write a folder that `transformers` opens with from_pretrained, and `read` gives back unchanged."""
    config = module.config
    style, usual = config.block, "pre" if isinstance(config, GPTConfig) else "post"
    if (style.norm, style.placement, style.layerscale) != ("layer", usual, 0):
        raise UsageError(
            f"Hugging Face's {'GPT-2' if usual == 'pre' else 'BERT'} is {usual}-norm with LayerNorm; this "
            f"model is {style.placement}-{style.norm}; keep it in saccade's own format"
        )
    if isinstance(config, GPTConfig) and config.position != "learned":
        raise UsageError(f"Hugging Face's GPT-2 has learnt positions, this model {config.position} ones")
    rules = gpt_rules(config) if isinstance(config, GPTConfig) else bert_rules(config)
    tensors = state(module)
    if left := tensors.keys() - {name for rule in rules for name in rule.ours}:
        raise UsageError(
            f"Hugging Face's layout has no place for {some_sorted(left)}; keep saccade's own format"
        )
    prefix = "transformer." if isinstance(config, GPTConfig) else "bert."
    theirs = {
        name if name.startswith(("lm_head.", "cls.", "classifier.")) else prefix + name: tensor.contiguous()
        for name, tensor in save(rules, tensors).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / SINGLE, theirs, {"format": "pt"})
    side = _gpt_side(config) if isinstance(config, GPTConfig) else _bert_side(config)
    write_json(folder / "config.json", side)
    for name, content in (tokenizer or {}).items():
        check_word("a tokenizer's file", name, TOKENIZER_FILES)
        write_bytes(folder / name, content)


def _gpt_side(config: GPTConfig) -> dict[str, Any]:
    bend = "relu" if config.bend == "relu" else {"erf": "gelu", "tanh": "gelu_new"}[config.block.gelu]
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": bend,
        "vocab_size": config.vocabulary, "n_positions": config.context, "n_embd": config.width,
        "n_layer": config.depth, "n_head": config.heads, "n_inner": config.hidden,
        "layer_norm_epsilon": config.block.eps, "tie_word_embeddings": config.tied,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.block.dropout),
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def _bert_side(config: BERTConfig) -> dict[str, Any]:
    kind = "ForSequenceClassification" if config.classes else "Model"
    if config.fills:
        kind = "ForPreTraining" if config.classes else "ForMaskedLM"
    return {
        "architectures": [f"Bert{kind}"], "model_type": "bert",
        "hidden_act": {"erf": "gelu", "tanh": "gelu_new"}[config.block.gelu],
        "vocab_size": config.vocabulary, "max_position_embeddings": config.context,
        "type_vocab_size": config.segments, "hidden_size": config.width,
        "num_hidden_layers": config.depth, "num_attention_heads": config.heads,
        "intermediate_size": config.hidden, "layer_norm_eps": config.block.eps,
        "hidden_dropout_prob": config.block.dropout, "attention_probs_dropout_prob": config.block.dropout,
        "num_labels": config.classes or 2,
    }  # fmt: skip
