"""Relevance keeps its sum through every layer, and each rule equals a slow computation of its own."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from subjects import VITS, pictures, subject
from torch import Tensor

import saccade
from saccade.explain.methods import lrp
from saccade.explain.methods import relevance as module_of
from saccade.explain.methods.relevance import generic, levels, relevance, relevance_sums, rollout_row
from saccade.explain.replay import moments, replay
from saccade.models.vit import ViT

KINDS = (*VITS, "hybrid")
TARGET = torch.tensor([1, 2])


def far(found: Tensor, expected: Tensor) -> float:
    """The length of the difference as a share of the expected length."""
    return float((found - expected).norm() / expected.norm())


# The rules, one at a time.


def slow_linear(x: Tensor, weight: Tensor, r: Tensor) -> Tensor:
    """Eq. 5 by its letters, with every single contribution of an input to an output."""
    parts = (x[:, :, None] * weight).clamp_min(0)
    whole = parts.sum(-1, keepdim=True)
    shares = torch.where(whole == 0, torch.ones_like(parts) / x.shape[-1], parts / whole)
    return (shares * r[..., None]).sum(2)


@pytest.mark.parametrize("at_once", [1, 12, 2**19])
def test_a_linear_layer_shares_by_positive_contributions(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lrp, "AT_ONCE", at_once)
    x, weight, r = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(2, 3, 4)
    assert torch.allclose(lrp.linear(x, weight, r, exact=3), slow_linear(x, weight, r), atol=1e-5)


def test_relevance_without_any_positive_contribution_is_not_lost() -> None:
    x, r = torch.rand(1, 2, 5) + 0.1, torch.rand(1, 2, 3)
    weight = torch.tensor([[-1.0] * 5, [0.0] * 5, [1.0, -1.0, 1.0, -1.0, 1.0]])
    found = lrp.linear(x, weight, r, exact=2)
    assert torch.allclose(found, slow_linear(x, weight, r), atol=1e-5)
    assert torch.allclose(found.sum(-1), r.sum(-1))
    assert torch.allclose(lrp.linear(torch.zeros(1, 2, 5), weight, r, exact=0).sum(-1), r.sum(-1))


def test_tokens_that_are_not_exact_share_by_size() -> None:
    x, weight, r = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(2, 3, 4)
    found = lrp.linear(x, weight, r, exact=1)
    assert torch.allclose(found[:, :1], lrp.linear(x, weight, r, exact=3)[:, :1], atol=1e-6)
    parts = torch.einsum("bni, oi -> bni", x.abs(), weight.abs())
    expected = parts / parts.sum(-1, keepdim=True) * r.sum(-1, keepdim=True)
    assert torch.allclose(found[:, 1:], expected[:, 1:], atol=1e-5)


def test_the_more_outputs_the_nearer_is_nearly() -> None:
    apart = []
    for outputs in (16, 4096):
        x, weight, r = torch.randn(1, 8, 64), torch.randn(outputs, 64), torch.rand(1, 8, outputs)
        apart.append(far(lrp.linear(x, weight, r, exact=0), lrp.linear(x, weight, r, exact=8)))
    assert apart[0] > 0.1
    assert apart[1] < 0.05


def slow_two(f: Callable[[Tensor, Tensor], Tensor], u: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 7 by autograd and Eq. 9 by its letters, a picture at a time."""
    u, v = u.detach().requires_grad_(), v.detach().requires_grad_()
    with torch.enable_grad():
        z = f(u, v)
        gradients = torch.autograd.grad((z * (r / z).detach()).sum(), (u, v))
    shares = [t * g for t, g in zip((u, v), gradients, strict=True)]
    a, b = (share.flatten(1).sum(1) for share in shares)
    whole = r.flatten(1).sum(1)
    return tuple(
        (share * (t.abs() / (a.abs() + b.abs()) * whole / t).reshape(-1, *[1] * (share.ndim - 1))).detach()
        for share, t in zip(shares, (a, b), strict=True)
    )


def test_a_sum_shares_by_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrp, "STEADY", 0.0)
    u, v, r = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))
    for found, expected in zip(lrp.add(u, v, r), slow_two(torch.add, u, v, r), strict=True):
        assert torch.allclose(found, expected)


def test_a_product_shares_by_value_times_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrp, "STEADY", 0.0)
    u, v, r = (torch.randn(2, 2, *shape, dtype=torch.float64) for shape in ((3, 4), (4, 5), (3, 5)))
    for found, expected in zip(lrp.product(u, v, u @ v, r), slow_two(torch.matmul, u, v, r), strict=True):
        assert torch.allclose(found, expected)


@pytest.mark.parametrize("steady", [0.0, 0.1])
def test_two_operands_together_hold_what_there_was(steady: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrp, "STEADY", steady)
    u, v, r = torch.randn(2, 1, 6, 6), torch.randn(2, 1, 6, 6), torch.rand(2, 1, 6, 6)
    for ru, rv in (lrp.add(u, v, r), lrp.product(u, v, u @ v, r)):
        assert torch.allclose(lrp.total(ru) + lrp.total(rv), lrp.total(r), rtol=1e-4)


def test_an_output_near_zero_does_not_explode() -> None:
    u, r = torch.ones(1, 1, 4), torch.ones(1, 1, 4)
    v = torch.tensor([[[1.0, 2.0, -1 + 1e-7, -1.0]]])
    ru, rv = lrp.add(u, v, r)
    assert max(float(ru.abs().max()), float(rv.abs().max())) <= 1 / lrp.STEADY
    assert torch.allclose(lrp.total(ru) + lrp.total(rv), torch.tensor(4.0))


def test_zeros_share_nothing_and_break_nothing() -> None:
    zeros = torch.zeros(1, 2, 3, 3)
    for ru, rv in (lrp.add(zeros, zeros, zeros), lrp.product(zeros, zeros, zeros, zeros)):
        assert not ru.any()
        assert not rv.any()


# The way down.


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far each rule has moved the sum, every time that it was asked, as a share of all that it shared."""
    lost: list[float] = []

    def watch(name: str) -> None:
        rule = getattr(lrp, name)

        def asked(*given: Tensor | int, **more: int) -> Tensor | tuple[Tensor, ...]:
            r = given[2] if name in ("linear", "add") else given[3]
            before, found = lrp.total(r.clone()), rule(*given, **more)
            parts = found if isinstance(found, tuple) else (found,)
            after = torch.stack([lrp.total(part) for part in parts]).sum(0)
            lost.append(float(((after - before) / r.abs().sum()).abs().max()))
            return found

        monkeypatch.setattr(lrp, name, asked)

    for name in ("linear", "add", "product"):
        watch(name)
    return lost


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_over_tokens_is_kept(kind: str, exact: bool, watched: list[float]) -> None:
    vit = subject(kind)
    found = relevance_sums(vit, pictures(vit), TARGET, exact)
    assert found.shape == (len(vit.blocks) + 1, 2)
    assert (found - 1).abs().max() <= 1e-3
    assert len(watched) >= 10 * len(vit.blocks)  # six linear layers, two sums and two products in each
    assert max(watched) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_autograds(kind: str) -> None:
    vit = subject(kind)
    image = pictures(vit).requires_grad_()
    logits, seen = replay(vit, image, lambda moment: moment.z)
    expected = torch.autograd.grad(logits.gather(1, TARGET[:, None]).sum(), seen)
    found = levels(vit, image.detach(), TARGET, lambda level: level.signal.gradient, bottom=True)[1:]
    for ours, theirs in zip(found, reversed(expected), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6 + 1e-5 * float(theirs.abs().max()))


def slow_block(moment, r: Tensor) -> tuple[Tensor, Tensor]:
    """A pre-norm block downwards with the slow rules; the relevance of its matrices and of what enters it."""
    block, heads = moment.block, moment.block.attention.heads
    x = block.norm2(moment.middle)
    bent = F.gelu(block.mlp.up(x))
    skip, r = slow_two(torch.add, moment.middle, moment.out - moment.middle, r)
    r = skip + slow_linear(x, block.mlp.up.weight, slow_linear(bent, block.mlp.down.weight, r))
    skip, r = slow_two(torch.add, moment.z, moment.middle - moment.z, r)
    r = slow_linear(moment.heads.transpose(1, 2).flatten(2), block.attention.out.weight, r)
    rp, rv = slow_two(torch.matmul, moment.attention, moment.v, r.unflatten(-1, (heads, -1)).transpose(1, 2))
    rq, rk = slow_two(torch.matmul, moment.q, moment.k.mT, rp)
    x = block.norm1(moment.z)
    for layer, part in zip(
        (block.attention.q, block.attention.k, block.attention.v), (rq, rk.mT, rv), strict=True
    ):
        skip = skip + slow_linear(x, layer.weight, part.transpose(1, 2).flatten(2))
    return rp, skip


def slow_map(vit: ViT, image: Tensor, target: Tensor, generic: bool) -> Tensor:
    """The whole method with whole matrices, for the class token."""
    kept = list(moments(vit, image, explicit=True))
    score = vit.read(kept[-1].out).gather(1, target[:, None]).sum()
    gradients = torch.autograd.grad(score, [moment.attention for moment in kept])
    with torch.no_grad():
        r = torch.zeros_like(kept[-1].out)
        parts = (vit.norm(kept[-1].out)[:, 0] * vit.head.weight[target]).clamp_min(0)
        r[:, 0] = parts / parts.sum(-1, keepdim=True)
        product = identity = torch.eye(r.shape[1], dtype=r.dtype)
        for moment, g in zip(reversed(kept), reversed(gradients), strict=True):
            rp, r = slow_block(moment, r)
            shown = moment.attention if generic else rp
            product = product @ (identity + (g * shown).clamp_min(0).mean(1))
    return product[:, 0, vit.config.front :].detach()


@pytest.mark.parametrize("which", [relevance, generic])
def test_the_whole_method_against_a_slow_one(which: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrp, "STEADY", 0.0)
    vit = subject("token").double()
    image = pictures(vit)[:, :, :8, :8].double()
    expected = slow_map(vit, image, TARGET, which is generic)
    name = "relevance" if which is relevance else "attention"
    matrices = levels(vit, image, TARGET, attrgetter(name, "means"), exact=True)
    assert far(rollout_row(matrices, probed=False)[:, vit.config.front :], expected) <= 1e-9


def test_a_row_from_the_top_down_is_that_of_the_product() -> None:
    matrices = [torch.rand(2, 5, 5) for _ in range(3)]
    start = torch.zeros(2, 1, 5)
    start[:, :, 0] = 1
    whole = start
    for matrix in matrices:
        whole = whole @ (torch.eye(5) + matrix)
    assert torch.allclose(
        rollout_row([(each, None) for each in (start, *matrices)], probed=False), (whole - start)[:, 0]
    )
    short = [start[:, :, :1], matrices[0][:, :1], *matrices[1:]]
    assert torch.allclose(rollout_row([(each, None) for each in short], probed=False), (whole - start)[:, 0])


# The maps.


@pytest.mark.parametrize("which", [relevance, generic])
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_does_not_know_its_batch(
    kind: str, which: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    vit = subject(kind)
    image, target = pictures(vit, 3), torch.tensor([0, 2, 1])
    together = which(vit, image, target)
    monkeypatch.setattr(module_of, "AT_ONCE", 1)
    assert far(which(vit, image, target), together) <= 1e-4
    assert far(which(vit, image[1:2], target[1:2]), together[1:2]) <= 1e-4


@pytest.mark.parametrize("which", [relevance, generic])
def test_nothing_is_left_behind(which: Callable) -> None:
    vit = subject("rms").train()
    image = pictures(vit).requires_grad_()
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    with torch.inference_mode():
        first = which(vit, image, TARGET)
    assert torch.equal(which(vit, image, TARGET), first)
    assert image.grad is None
    assert all(p.grad is None and p.requires_grad for p in vit.parameters())
    assert all(part.training for part in vit.modules())
    assert all(torch.equal(before[name], value) for name, value in vit.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_another_class_another_map(kind: str) -> None:
    vit = subject(kind)
    image = pictures(vit)
    one, other = (relevance(vit, image, torch.tensor([target] * 2)) for target in (0, 1))
    assert (one >= 0).all()
    assert far(one, other) > 0.05


def test_a_model_that_says_nothing_has_an_empty_map() -> None:
    vit = saccade.create("vit_xs4_32", classes=5)
    found = relevance(vit, torch.randn(1, 3, 32, 24), torch.tensor([2]))
    assert found.shape == (1, 8, 6)
    assert not found.any()


@pytest.fixture(scope="module")
def tiny(data: Path) -> saccade.Model:
    return saccade.load(data / "vit_tiny_patch16_224.fp16.safetensors")


def shown(model: saccade.Model, path: Path) -> Tensor:
    return torch.from_numpy(model.preprocess.batch([path]))


UPPER, LEFT = (slice(0, 7), slice(None)), (slice(None), slice(0, 7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dog", "cat", "half"),
    [("catdog.png", 243, 282, UPPER), ("dogcat2.png", 222, 285, LEFT)],
    ids=["catdog", "dogcat2"],
)
def test_a_cat_and_a_dog_are_found_in_two_places(
    tiny: saccade.Model, data: Path, name: str, dog: int, cat: int, half: tuple[slice, slice]
) -> None:
    """The dog is in the upper half of one picture and in the left half of the other, the cat opposite."""
    image = shown(tiny, data / "samples" / name).expand(2, -1, -1, -1)
    maps = relevance(tiny.module, image, torch.tensor([dog, cat]))
    assert torch.corrcoef(maps.flatten(1))[0, 1] < 0.5
    shares = [float(each[half].sum() / each.sum()) for each in maps]
    assert shares[0] >= 0.7
    assert shares[1] <= 0.3


@pytest.mark.slow
def test_nearly_is_near_and_rounding_does_not_matter(tiny: saccade.Model, data: Path) -> None:
    image, target = shown(tiny, data / "samples" / "catdog.png"), torch.tensor([243])
    found = relevance(tiny.module, image, target).flatten(1)
    matrices = levels(tiny.module, image, target, attrgetter("relevance", "means"), exact=True)
    exact = rollout_row(matrices, probed=False)
    assert far(found, exact[:, 1:]) <= 0.01
    assert far(relevance(tiny.module, image * (1 + 1e-6), target).flatten(1), found) <= 0.01
    assert (relevance_sums(tiny.module, image, target) - 1).abs().max() <= 1e-3
