"""The replay is the forward pass: the same numbers, whatever is kept on the way."""

import pytest
import torch

import saccade
from saccade.explain.replay import moments, replay
from saccade.nn import pool, position_kinds
from saccade.nn.block import BlockStyle

STYLES = {
    "pre": BlockStyle(),
    "post": BlockStyle(placement="post"),
    "rms": BlockStyle(norm="rms", layerscale=0.1),
    "tanh": BlockStyle(gelu="tanh", dropout=0.1, droppath=0.1),
}


def made(**changes: object) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    vit = saccade.create("vit_xs4_32", classes=5, **changes).eval()
    torch.nn.init.normal_(list(vit.parameters())[-2], std=0.1)
    return vit, torch.randn(2, 3, 32, 24)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("position", position_kinds.KINDS)
@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_replay_is_forward(how: str, position: str, explicit: bool) -> None:
    vit, image = made(pool=how, position=position, registers=1)
    logits, seen = replay(vit, image, lambda moment: moment.index, explicit)
    assert seen == [0, 1, 2, 3]
    assert (logits - vit(image)).abs().max() <= 1e-5


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
@torch.no_grad()
def test_blocks_of_every_style(style: BlockStyle) -> None:
    vit, image = made(block=style)
    assert (replay(vit, image, lambda _: None)[0] - vit(image)).abs().max() <= 1e-5


@pytest.mark.parametrize("position", ["learned", "relative", "rope2d"])
@torch.no_grad()
def test_the_matrix_is_that_of_the_fused_kernel(position: str) -> None:
    vit, image = made(position=position)
    for moment in moments(vit, image):
        assert moment.attention.shape == (2, 4, 49, 49)
        assert (moment.attention.sum(-1) - 1).abs().max() <= 1e-5
        assert (moment.attention @ moment.v - moment.heads).abs().max() <= 1e-6


@pytest.mark.parametrize("count", [1, 7, 48, 49, 100])
@pytest.mark.parametrize("position", ["learned", "relative"])
@torch.no_grad()
def test_rows_together_are_the_matrix(position: str, count: int) -> None:
    vit, image = made(position=position)
    for moment in moments(vit, image):
        rows = list(moment.rows(count))
        assert [row.start for row in rows] == list(range(0, 49, count))
        assert torch.allclose(torch.cat([row.p for row in rows], 2), moment.attention, atol=1e-7)


@torch.no_grad()
def test_what_heads_add_sums_to_what_attention_adds() -> None:
    vit, image = made()
    for moment in moments(vit, image):
        attention = moment.block.attention
        whole = attention.join(moment.heads)
        assert torch.allclose(moment.parts().sum(1) + attention.out.bias, whole, atol=1e-5)


def test_gradients_reach_the_matrices_only_when_they_are_explicit() -> None:
    vit, image = made()
    logits, kept = replay(vit, image, lambda moment: moment.attention, explicit=True)
    found = torch.autograd.grad(logits[:, 1].sum(), kept)
    assert all(gradient.abs().sum() > 0 for gradient in found)
    logits, kept = replay(vit, image, lambda moment: moment.attention)
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(logits[:, 1].sum(), kept)


@torch.no_grad()
def test_nothing_is_formed_that_nobody_asked_for() -> None:
    vit, image = made()
    for moment in moments(vit, image):
        assert moment.out is not None
        assert "attention" not in vars(moment)
