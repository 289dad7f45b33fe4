"""Is a loaded model what it claims to be? Self-tests that catch mistakes no shape can show.

Three witnesses: the answer kept in a folder of ours; the weights themselves, as training leaves both halves
of every product balanced (W_q against W_k, W_v against W_o, up against down; Du et al. 2018 prove it for
homogeneous networks); and pictures, on which a rightly fed model is both sure and varied.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.data.image.preprocess import HALF, IMAGENET, Picture, Preprocess
from saccade.errors import ModelError
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.weights.known_answer import TOLERANCE, drift

CLEAR = 0.3
"""A rank correlation beyond chance: the published ViT-Ti have 0.8 to 0.9 here, untrained models 0."""
MARGIN = 0.15
FEW = 8
CLEARLY = 1.05
"""On 32 pictures of ImageNet, ViT-Ti and DeiT-Ti lose 13 % and 43 % with each other's mean and deviation."""
Matrix = Float[Tensor, "rows cols"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one test found: ok, unknown (it cannot tell) or wrong."""

    test: str
    verdict: str
    words: str


def rank_correlation(a: Float[Tensor, "n"], b: Float[Tensor, "n"]) -> float:
    """Spearman's."""
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def check_weights(module: Vision) -> Iterator[Finding]:
    """Are queries, keys, values and outputs the right way round and in the right order?"""
    if not isinstance(module, ViT):
        yield Finding("weights", "unknown", "this test is for Transformers")
        return
    with torch.no_grad():
        yield _best("queries and keys", _arrangements(module, "q", "k"))
        yield _best("values and output matrix", _arrangements(module, "v", "out"))
        yield _best("order of queries, keys, values", _orders(module))
        yield _best("the two layers of the MLPs", {"as they are": _mean(module, _hidden)})


def _arrangements(module: ViT, a: str, b: str) -> dict[str, float]:
    """The balance of two matrices, as they are and transposed; an output matrix is paired by columns."""

    def balance(turn_a: bool, turn_b: bool) -> float:
        def one(block: Any) -> float:
            first, second = (getattr(block.attention, name).weight for name in (a, b))
            rows = (first.mT if turn_a else first).norm(dim=1)
            return rank_correlation(rows, (second.mT if turn_b else second).norm(dim=0 if b == "out" else 1))

        return _mean(module, one)

    names = {
        (False, False): "as they are",
        (True, False): f"{a} transposed",
        (False, True): f"{b} transposed",
    }
    names[True, True] = f"{a} and {b} both transposed"
    return {name: balance(*turn) for turn, name in names.items()}


def _orders(module: ViT) -> dict[str, float]:
    """The balance under every order in which one matrix of q, k and v together may have been stored.

    Queries and keys may change places unseen: q and k are balanced whichever is which.
    """
    readings = {
        "as they are": "(three h k) -> three (h k)",
        "the values stored second (q, v, k or k, v, q)": "(three h k) -> three (h k)",
        "the values stored first (v, q, k or v, k, q)": "(three h k) -> three (h k)",
        "q, k, v stored head by head": "(h three k) -> three (h k)",
        "q, k, v stored row by row": "(h k three) -> three (h k)",
    }
    places = dict.fromkeys(readings, (0, 1, 2))
    places["the values stored second (q, v, k or k, v, q)"] = (0, 2, 1)
    places["the values stored first (v, q, k or v, k, q)"] = (1, 2, 0)

    def balance(name: str) -> float:
        def one(block: Any) -> float:
            stored = torch.cat([getattr(block.attention, x).weight.norm(dim=1) for x in "qkv"])
            rows = rearrange(stored, readings[name], three=3, h=module.config.heads)
            q, k, v = (rows[place] for place in places[name])
            out = block.attention.out.weight.norm(dim=0)
            return rank_correlation(q, k) / 2 + rank_correlation(v, out) / 2

        return _mean(module, one)

    return {name: balance(name) for name in readings}


def _hidden(block: Any) -> float:
    return rank_correlation(block.mlp.up.weight.norm(dim=1), block.mlp.down.weight.norm(dim=0))


def _mean(module: ViT, balance: Any) -> float:
    return sum(balance(block) for block in module.blocks) / module.config.depth


def _best(test: str, balances: Mapping[str, float]) -> Finding:
    found = balances["as they are"]
    name, best = max(balances.items(), key=lambda pair: pair[1])
    told = f"balance {found:.2f} as they are"
    if found >= CLEAR and best < found + MARGIN:
        return Finding(test, "ok", told)
    if best >= CLEAR and best >= found + MARGIN:
        return Finding(test, "wrong", f"{told}, but {best:.2f} with {name}: they are probably stored so")
    return Finding(test, "unknown", f"{told}: the model is untrained, hardly trained, or scrambled")


def check_probe(module: Vision, preprocess: Preprocess, kept: object) -> Finding:
    """Does the model still give the answer that was kept when it was saved?"""
    if kept is None:
        return Finding("kept answer", "unknown", "only folders written by saccade keep one")
    try:
        far = drift(module, preprocess, kept)
    except ModelError as error:
        return Finding("kept answer", "wrong", str(error))
    told = f"differs by {far:.1e} of its size (limit {TOLERANCE:.0e})"
    if far <= TOLERANCE:
        return Finding("kept answer", "ok", told)
    return Finding(
        "kept answer", "wrong", f"{told}: weights, config or preprocessing are not those that were saved"
    )


def information(module: Vision, preprocess: Preprocess, pictures: Sequence[Picture]) -> float:
    """Nats that the answers tell of the pictures: the entropy of the mean answer less the mean entropy."""
    with torch.inference_mode():
        p = module(torch.from_numpy(preprocess.batch(pictures))).softmax(-1)
    both = torch.special.entr(p.mean(0)).sum(), torch.special.entr(p).sum(-1).mean()
    return float(both[0] - both[1])


def check_normalisation(module: Vision, preprocess: Preprocess, pictures: Sequence[Picture]) -> Finding:
    """Would another normalisation make the model surer and more varied on these pictures?"""
    if not module.config.classes:
        return Finding("normalisation", "unknown", "the model has no classes to be sure of")
    ways = {"half (0.5, 0.5)": HALF, "imagenet": IMAGENET, "0 to 1": ((0.0,) * 3, (1.0,) * 3)}
    told = {
        name: information(module, replace(preprocess, mean=mean, std=std), pictures)
        for name, (mean, std) in ways.items()
        if (mean, std) != (preprocess.mean, preprocess.std)
    }
    found = information(module, preprocess, pictures)
    name, best = max(told.items(), key=lambda pair: pair[1])
    words = f"{found:.2f} nats from {len(pictures)} pictures as it is; next best {best:.2f} with {name}"
    most = math.log(min(len(pictures), module.config.classes))
    if len(pictures) < FEW or max(best, found) < most / 4:
        return Finding("normalisation", "unknown", f"{words}: too little to tell (at most {most:.2f})")
    if best > found * CLEARLY:
        return Finding("normalisation", "wrong", f"{words}: the pictures are probably to be normalised so")
    if best > found:
        return Finding("normalisation", "unknown", f"{words}: too close to tell")
    return Finding("normalisation", "ok", words)
