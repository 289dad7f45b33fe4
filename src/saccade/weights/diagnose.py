"""Self-tests of a loaded model, which catch mistakes that shapes cannot show.

Three kinds of evidence: the answer stored in a saccade folder; the weights, as training leaves both halves
of every product balanced (W_q against W_k, W_v against W_o, up against down; Du et al. 2018 prove it for
homogeneous networks); and images, on which a correctly fed model is both confident and varied. Images of one
kind show no variety, so the two have to agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.data.image.preprocess import HALF, IMAGENET, PictureSource, Preprocess
from saccade.errors import ModelError
from saccade.files.digest import changed, claimed
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.weights.formats.tensors import SINGLE
from saccade.weights.identify import LABELS, PREPROCESS, Identified
from saccade.weights.known_answer import TOLERANCE, drift, is_finite, probe

CLEAR = 0.3
"""A rank correlation beyond chance: the published ViT-Ti have 0.8 to 0.9 here, untrained models 0."""
MARGIN = 0.15
FEW = 8
CLEARLY = 1.05
"""On 32 ImageNet images, ViT-Ti and DeiT-Ti lose 13% and 43% with each other's mean and deviation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one test: ok, unknown (not enough to go by) or wrong."""

    test: str
    verdict: str
    words: str


def rank_correlation(a: Float[Tensor, "n"], b: Float[Tensor, "n"]) -> float:
    """Return Spearman's rank correlation."""
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def check_weights(module: Vision) -> Iterator[Finding]:
    """Check that queries, keys, values and outputs are stored the right way round and in order."""
    if not isinstance(module, ViT):
        yield Finding("weights", "unknown", "this test is for Transformers")
        return
    with torch.no_grad():
        yield _best("queries and keys", _arrangements(module, "q", "k"))
        yield _best("values and output matrix", _arrangements(module, "v", "out"))
        yield _best("order of queries, keys, values", _orders(module))
        yield _best("the two layers of the MLPs", {"as they are": _mean(module, _hidden)})


def _arrangements(module: ViT, a: str, b: str) -> dict[str, float]:
    """Return the balance of two matrices, as stored and transposed; an output matrix is paired by columns."""

    def balance(turn_a: bool, turn_b: bool) -> float:
        def one(block: Any) -> float:
            first, second = (getattr(block.attention, name).weight for name in (a, b))
            rows = (first.mT if turn_a else first).norm(dim=1)
            return rank_correlation(rows, (second.mT if turn_b else second).norm(dim=0 if b == "out" else 1))

        return _mean(module, one)

    return {
        "as they are": balance(False, False),
        f"{a} transposed": balance(True, False),
        f"{b} transposed": balance(False, True),
        f"{a} and {b} both transposed": balance(True, True),
    }


def _orders(module: ViT) -> dict[str, float]:
    """Return the balance for every order in which a fused matrix of q, k and v may have been stored.

    Swapped queries and keys go unnoticed: they are balanced either way.
    """
    readings = {
        "as they are": ("(three h k) -> three (h k)", (0, 1, 2)),
        "the values stored second (q, v, k or k, v, q)": ("(three h k) -> three (h k)", (0, 2, 1)),
        "the values stored first (v, q, k or v, k, q)": ("(three h k) -> three (h k)", (1, 2, 0)),
        "q, k, v stored head by head": ("(h three k) -> three (h k)", (0, 1, 2)),
        "q, k, v stored row by row": ("(h k three) -> three (h k)", (0, 1, 2)),
    }

    def balance(pattern: str, order: tuple[int, ...]) -> float:
        def one(block: Any) -> float:
            stored = torch.cat([getattr(block.attention, x).weight.norm(dim=1) for x in "qkv"])
            rows = rearrange(stored, pattern, three=3, h=module.config.heads)
            q, k, v = (rows[i] for i in order)
            out = block.attention.out.weight.norm(dim=0)
            return rank_correlation(q, k) / 2 + rank_correlation(v, out) / 2

        return _mean(module, one)

    return {name: balance(*reading) for name, reading in readings.items()}


def _hidden(block: Any) -> float:
    return rank_correlation(block.mlp.up.weight.norm(dim=1), block.mlp.down.weight.norm(dim=0))


def _mean(module: ViT, balance: Any) -> float:
    return sum(balance(block) for block in module.blocks) / module.config.depth


def _best(test: str, balances: Mapping[str, float]) -> Finding:
    found = balances["as they are"]
    name, best = max(balances.items(), key=lambda pair: pair[1])
    words = f"balance {found:.2f} as stored"
    if found >= CLEAR and best < found + MARGIN:
        return Finding(test, "ok", words)
    if best >= CLEAR and best >= found + MARGIN:
        return Finding(test, "wrong", f"{words}, but {best:.2f} with {name}: probably the real order")
    return Finding(test, "unknown", f"{words}: the model is untrained, barely trained or scrambled")


def check_probe(module: Vision, preprocess: Preprocess, kept: object) -> Finding:
    """Check that the answer is finite and the same as when the model was saved."""
    if not is_finite(probe(module, preprocess)):
        return Finding("kept answer", "wrong", "the model answers with NaN or infinite numbers")
    if kept is None:
        return Finding("kept answer", "unknown", "only folders written by saccade keep one")
    try:
        far = drift(module, preprocess, kept)
    except ModelError as error:
        return Finding("kept answer", "wrong", str(error))
    words = f"differs by {far:.1e} of its size (limit {TOLERANCE:.0e})"
    if far <= TOLERANCE:
        return Finding("kept answer", "ok", words)
    return Finding(
        "kept answer", "wrong", f"{words}: the weights, the config or the preprocessing have changed since"
    )


def check_files(found: Identified) -> Iterator[Finding]:
    """Check that weights, labels and preprocessing are the files that were saved."""
    folder = found.path if found.path.is_dir() else found.path.parent
    if not claimed(found.model, SINGLE):
        yield Finding("digest", "unknown", "the folder has no SHA-256 of the weights")
        return
    if changed(folder, found.model or {}, SINGLE):
        yield Finding("digest", "wrong", f"{SINGLE} is not the file that was saved: its SHA-256 differs")
    else:
        yield Finding("digest", "ok", f"{SINGLE} is the file that was saved")
    for name in (PREPROCESS, LABELS):
        if changed(folder, found.model or {}, name):
            yield Finding(name, "unknown", "has been edited or damaged since the model was saved")


class Spread(NamedTuple):
    """How varied and how unsure the answers to some images are, in nats."""

    information: float
    """The mutual information of answers and images: entropy of the mean answer less `doubt`."""
    doubt: float
    """The mean entropy of an answer."""


def spread(module: Vision, preprocess: Preprocess, pictures: Sequence[PictureSource]) -> Spread:
    """Return how varied and how unsure the answers to these images are."""
    with torch.inference_mode():
        p = module(torch.from_numpy(preprocess.batch(pictures))).softmax(-1)
    mean, doubt = float(torch.special.entr(p.mean(0)).sum()), float(torch.special.entr(p).sum(-1).mean())
    return Spread(mean - doubt, doubt)


def check_normalisation(module: Vision, preprocess: Preprocess, pictures: Sequence[PictureSource]) -> Finding:
    """Check that no other normalisation makes the model more confident and varied on these images."""
    if not module.config.classes:
        return Finding("normalisation", "unknown", "the model has no classes")
    ways = {"half (0.5, 0.5)": HALF, "imagenet": IMAGENET, "0 to 1": ((0.0,) * 3, (1.0,) * 3)}
    others = {
        name: spread(module, replace(preprocess, mean=mean, std=std), pictures)
        for name, (mean, std) in ways.items()
        if (mean, std) != (preprocess.mean, preprocess.std)
    }
    found = spread(module, preprocess, pictures)
    if not all(math.isfinite(one.information) for one in (found, *others.values())):
        return Finding("normalisation", "unknown", "the model answers with NaN or infinite numbers")
    name, best = max(others.items(), key=lambda pair: pair[1].information)
    words = f"{found.information:.2f} nats from {len(pictures)} images as it is; next best "
    words += f"{best.information:.2f} with {name}"
    most = math.log(min(len(pictures), module.config.classes))
    if len(pictures) < FEW or max(best, found).information < most / 4:
        return Finding("normalisation", "unknown", f"{words}: too few to decide (at most {most:.2f})")
    surest = min((found, *others.values()), key=lambda one: one.doubt)
    if max(found, *others.values()) != surest:  # the most varied answers are guesses
        return Finding(
            "normalisation",
            "unknown",
            f"{words}: images of one kind cannot decide; give images of many kinds",
        )
    if best.information > found.information * CLEARLY:
        return Finding("normalisation", "wrong", f"{words}: probably the right normalisation")
    if best.information > found.information:
        return Finding("normalisation", "unknown", f"{words}: too close to decide")
    return Finding("normalisation", "ok", words)
