"""One head of attention, step by step, for teaching (Vaswani et al. 2017, Eq. 1), in both conventions.

rows: tokens are rows, as in the paper; Q = A W_q, each row of weights is a query, the future is upper right.
columns: tokens are columns, as on a blackboard; Q = W_q A, each column is a query, the future is lower left.
Each matrix of one convention is the transpose of its counterpart.
Shapes: n tokens, d width, k width of a query and a key, e width of a value.
"""
# ruff: noqa: N803 - matrices are upper case in the papers

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import check_word

Matrix = Float[Tensor, "_ _"]
CONVENTIONS = ("rows", "columns")


class Steps(NamedTuple):
    """Every intermediate of one head, in order of computation."""

    convention: str
    q: Matrix
    k: Matrix
    v: Matrix
    scores: Matrix
    """alpha: the dot product of every query with every key."""
    scaled: Matrix
    """Divided by the root of the keys' width, so the variance does not grow with it (section 3.2.1)."""
    masked: Matrix
    """Minus infinity where a query would see a later token; `scaled` itself if not causal."""
    weights: Matrix
    """alpha hat: the softmax over each query's keys."""
    out: Matrix
    """b: the values averaged by each query's weights."""


def _rows(
    a: Float[Tensor, "n d"],
    W_q: Float[Tensor, "d k"],
    W_k: Float[Tensor, "d k"],
    W_v: Float[Tensor, "d e"],
    causal: bool,
) -> Steps:
    q, k, v = a @ W_q, a @ W_k, a @ W_v
    scores = q @ k.T
    scaled = scores / k.shape[1] ** 0.5
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    masked = scaled.masked_fill(future, -torch.inf) if causal else scaled
    weights = masked.softmax(dim=1)
    return Steps("rows", q, k, v, scores, scaled, masked, weights, weights @ v)


def _columns(
    a: Float[Tensor, "d n"],
    W_q: Float[Tensor, "k d"],
    W_k: Float[Tensor, "k d"],
    W_v: Float[Tensor, "e d"],
    causal: bool,
) -> Steps:
    q, k, v = W_q @ a, W_k @ a, W_v @ a
    scores = k.T @ q
    scaled = scores / k.shape[0] ** 0.5
    future = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    masked = scaled.masked_fill(future, -torch.inf) if causal else scaled
    weights = masked.softmax(dim=0)
    return Steps("columns", q, k, v, scores, scaled, masked, weights, v @ weights)


def steps(
    a: Matrix,
    W_q: Matrix,
    W_k: Matrix,
    W_v: Matrix,
    convention: str = "rows",
    causal: bool = False,
) -> Steps:
    """Attend with one head and return every step; `out` equals `attend` of the same q, k and v."""
    check_word("convention", convention, CONVENTIONS)
    return (_rows if convention == "rows" else _columns)(a, W_q, W_k, W_v, causal)


FORMULAS = {
    "q": ("q = a W_q", "q = W_q a", "what each token asks for"),
    "k": ("k = a W_k", "k = W_k a", "what each token matches"),
    "v": ("v = a W_v", "v = W_v a", "what each token passes on"),
    "scores": ("alpha = q k^T", "alpha = k^T q", "every query with every key"),
    "scaled": ("alpha / sqrt(k)", "alpha / sqrt(k)", "k is the width of a key"),
    "masked": ("upper right = -inf", "lower left = -inf", "no query sees a later token"),
    "weights": ("alpha hat = softmax of rows", "alpha hat = softmax of columns", "each sums to 1"),
    "out": ("b = alpha hat v", "b = v alpha hat", "the values averaged for each query"),
}


def _table(matrix: Matrix) -> str:
    return "\n".join("".join(f"{x:9.4f}" for x in row) for row in matrix.tolist())


def text(steps: Steps) -> str:
    """Return every step with its formula as text, then each output as a sum."""
    parts = [f"tokens are {steps.convention}"]
    for name, (rows, columns, meaning) in FORMULAS.items():
        if name != "masked" or steps.masked.isinf().any():
            matrix = getattr(steps, name)
            formula = rows if steps.convention == "rows" else columns
            parts.append(f"{formula}  ({' x '.join(map(str, matrix.shape))}: {meaning})\n{_table(matrix)}")
    queries = steps.weights if steps.convention == "rows" else steps.weights.T
    for i, query in enumerate(queries.tolist(), 1):
        parts.append(f"b^{i} = " + " + ".join(f"{w:.4f} v^{j}" for j, w in enumerate(query, 1)))
    return "\n\n".join(parts)
