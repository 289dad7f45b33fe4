"""Where a ViT looks, against softmax and products in numpy, and without ever holding all of it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from subjects import VITS, asked, pictures, subject
from torch.utils._python_dispatch import TorchDispatchMode

import saccade
from saccade.explain.methods import attention
from saccade.explain.replay import moments, replay
from saccade.models.build import Vision

ATTENTIVE = ["attention", "rollout", "gradient_rollout"]


def matrices(module: Vision, image: torch.Tensor) -> list[np.ndarray]:
    """Attention of every block as (b, h, n, n), by softmax in numpy."""
    found = []
    with torch.no_grad():
        for moment in moments(module, image):
            logits = (moment.q @ moment.k.mT / moment.q.shape[-1] ** 0.5).double().numpy()
            if moment.weight is not None:
                logits = logits + np.log(moment.weight.double().numpy())
            p = np.exp(logits - logits.max(-1, keepdims=True))
            found.append(p / p.sum(-1, keepdims=True))
    return found


def read_from(kind: str, tokens: int) -> np.ndarray:
    """Which tokens the answer is read from, written out for the pools of `subjects`."""
    shares, patches = np.zeros(tokens), 24
    match kind:
        case "pair":
            shares[:2] = 0.5
        case "token+mean":
            shares[0], shares[-patches:] = 0.5, 0.5 / patches
        case "mean" | "mean_norm" | "convolutions":
            shares[-patches:] = 1 / patches
        case _:
            shares[0] = 1
    return shares


@pytest.mark.parametrize("kind", [kind for kind in VITS if kind != "map"])
def test_raw_attention_is_that_of_the_tokens_the_answer_is_read_from(kind: str) -> None:
    module = subject(kind)
    image = pictures(module)
    last = matrices(module, image)[-1].mean(1)
    expected = (read_from(kind, last.shape[-1]) @ last)[:, -24:].reshape(2, 6, 4)
    assert np.allclose(asked("attention", module, image), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in VITS if kind != "map"])
def test_rollout_is_the_product_of_half_attention_and_half_identity(kind: str) -> None:
    module = subject(kind)
    image = pictures(module)
    rolled = np.eye(matrices(module, image)[0].shape[-1])
    for p in matrices(module, image):
        rolled = (0.5 * p.mean(1) + 0.5 * np.eye(p.shape[-1])) @ rolled
    expected = (read_from(kind, rolled.shape[-1]) @ rolled)[:, -24:].reshape(2, 6, 4)
    assert np.allclose(asked("rollout", module, image), expected, atol=1e-6)


def test_a_probe_reads_by_its_own_attention() -> None:
    module = subject("map")
    image = pictures(module)
    z, pool = module.norm(module.encode(image)).detach(), module.pool
    heads = [t.detach().unflatten(-1, (2, 8)).double().numpy()
             for t in (pool.attention.q(pool.probe), pool.attention.k(z))]  # fmt: skip
    logits = np.einsum("hk,bnhk->bhn", *heads) / 8**0.5
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.allclose(asked("attention", module, image), p.mean(1)[:, 1:].reshape(2, 6, 4), atol=1e-6)
    rolled = np.eye(25)
    for a in matrices(module, image):
        rolled = (0.5 * a.mean(1) + 0.5 * np.eye(25)) @ rolled
    expected = (p.mean(1)[:, None] @ rolled)[:, 0, 1:].reshape(2, 6, 4)
    assert np.allclose(asked("rollout", module, image), expected, atol=1e-6)


@pytest.mark.parametrize("kind", VITS)
@torch.no_grad()
def test_the_rows_of_rollout_sum_to_one_and_so_do_the_shares_that_are_read(kind: str) -> None:
    module = subject(kind)
    rolled, shares = attention.rollout_matrix(module, pictures(module))
    assert (rolled.sum(-1) - 1).abs().max() <= 1e-5
    assert (shares.sum(-1) - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", [kind for kind in VITS if kind != "map"])
def test_gradient_rollout_rolls_out_attention_times_its_gradient(kind: str) -> None:
    module = subject(kind)
    image = pictures(module)
    logits, kept = replay(module, image, lambda moment: moment.attention, explicit=True)
    found = torch.autograd.grad(logits[0, 1] + logits[1, 0], kept)
    rolled = np.eye(kept[0].shape[-1])
    for p, gradient in zip(kept, found, strict=True):
        a = np.maximum((p * gradient).detach().double().numpy(), 0).mean(1) + np.eye(p.shape[-1])
        rolled = a / a.sum(-1, keepdims=True) @ rolled
    expected = (read_from(kind, rolled.shape[-1]) @ rolled)[:, -24:].reshape(2, 6, 4)
    assert np.allclose(asked("gradient_rollout", module, image), expected, atol=1e-6)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_the_fused_kernel_goes_on_and_maps_are_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere fused attention gave None, or an IndexError (vit-explain 23, transformers 30978)."""
    module, calls = subject("token"), []
    image, fused = pictures(module), F.scaled_dot_product_attention
    expected = asked(name, module, image)

    def counted(*given: object) -> torch.Tensor:
        calls.append(given)
        return fused(*given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    assert torch.equal(asked(name, module, image), expected)
    assert len(calls) == len(module.blocks)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that any operation made."""

    count = 0

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.count = max(self.count, tensor.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.parametrize(("model", "side"), [("vit_xs2_64", 64), ("vit_ti16_512", 512)])
@pytest.mark.parametrize("name", ATTENTIVE)
def test_a_thousand_tokens_fit(name: str, model: str, side: int) -> None:
    """The matrices of one block's heads are never there at once, much less those of all blocks."""
    module = saccade.create(model, classes=3, depth=2).eval()
    torch.nn.init.normal_(module.head.weight)
    n, heads = 1025, module.config.heads
    with Largest() as largest:
        maps = asked(name, module, torch.randn(1, 3, side, side))
    assert maps.shape == (1, 32, 32)
    input_or_mlp = 4 * n * module.config.width
    assert largest.count <= max(attention.AT_ONCE, n * n, input_or_mlp) < heads * n * n


@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_rows_at_a_time_do_not_change_a_map(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = subject("relative")
    image = pictures(module)
    expected = {name: asked(name, module, image) for name in ATTENTIVE}
    monkeypatch.setattr(attention, "AT_ONCE", rows * 2 * 2 * 26)
    for name, maps in expected.items():
        assert torch.allclose(asked(name, module, image), maps, atol=1e-6)
