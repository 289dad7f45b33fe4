"""Windows that cover all are full attention; chunks are, in all ways."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.nn.attention import attend
from saccade.nn.variants.chunked import chunked
from saccade.nn.variants.windowed import cut, paste, windowed


def heads(tokens, batch=2, **options):
    return [torch.randn(batch, 3, tokens, 8, **options) for _ in range(3)]


@pytest.mark.parametrize("front", [0, 1, 3])
@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 6)])
def test_a_window_that_covers_the_picture_is_full_attention(grid, front):
    q, k, v = heads(grid[0] * grid[1] + front)
    for window in (max(grid), 50):
        assert_close(windowed(q, k, v, grid, window), attend(q, k, v), atol=1e-5, rtol=0)


@pytest.mark.parametrize("front", [0, 2])
@pytest.mark.parametrize(
    ("grid", "window"), [((4, 6), 2), ((5, 7), 3), ((3, 8), 4), ((2, 9), 2), ((7, 2), 1)]
)
def test_windows_are_full_attention_under_a_mask(grid, window, front):
    places = [(r // window, c // window) for r, c in itertools.product(range(grid[0]), range(grid[1]))]
    own = torch.tensor([[a == b for a in places] for b in places]).float()
    mask = torch.ones(front + len(places), front + len(places))
    mask[front:, front:] = own
    q, k, v = heads(front + len(places))
    assert_close(windowed(q, k, v, grid, window), attend(q, k, v, mask[None, None]), atol=1e-5, rtol=0)


def test_cutting_and_pasting_is_nothing():
    x = torch.randn(2, 3, 35, 4)
    for window in (1, 2, 3, 7, 9):
        assert torch.equal(paste(cut(x, (5, 7), window), (5, 7), window), x)


@pytest.mark.parametrize("size", [1, 4, 7, 16, 100])
@pytest.mark.parametrize("tokens", [1, 7, 17])
def test_chunks_are_full_attention(tokens, size):
    q, k, v = heads(tokens)
    assert_close(chunked(q, k, v, size=size), attend(q, k, v), atol=1e-5, rtol=0)


def test_chunks_with_weights_and_other_keys_than_queries():
    q, _, _ = heads(5)
    _, k, v = heads(11)
    for shape in ((1, 1, 1, 11), (2, 1, 5, 11), (2, 3, 5, 11)):
        weight = torch.rand(shape)
        weight[..., 3:6] = 0
        assert_close(chunked(q, k, v, weight, 4), attend(q, k, v, weight), atol=1e-5, rtol=0)
    assert chunked(q, k, v, torch.zeros(1, 1, 1, 11), 4).abs().max() == 0


def test_chunks_bear_logits_of_any_size():
    q, k, v = heads(9)
    assert_close(chunked(q * 1000, k, v, size=2), attend(q * 1000, k, v), atol=1e-5, rtol=0)


def test_the_gradients_of_chunks_are_those_of_full_attention():
    inputs = heads(10, requires_grad=True)
    weight = torch.rand(2, 1, 10, 10, requires_grad=True)
    full = torch.autograd.grad(attend(*inputs, weight).square().sum(), [*inputs, weight])
    parts = torch.autograd.grad(chunked(*inputs, weight, 3).square().sum(), [*inputs, weight])
    for a, b in zip(full, parts, strict=True):
        assert_close(a, b, atol=1e-4, rtol=1e-4)
    gradients = torch.autograd.grad(windowed(*inputs, (3, 3), 2).square().sum(), inputs)
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_what_is_kept_for_the_gradient_of_chunks_grows_with_the_tokens_and_not_their_square():
    def kept(tokens):
        saved = {}

        def pack(x):
            saved[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            chunked(*heads(tokens, 1, requires_grad=True), size=16)
        return sum(saved.values())

    assert kept(256) < 3 * kept(128)


def test_sizes_that_cannot_work_are_refused():
    q, k, v = heads(4)
    with pytest.raises(UsageError, match="window is 0"):
        windowed(q, k, v, (2, 2), 0)
    with pytest.raises(UsageError, match="size is 0"):
        chunked(q, k, v, size=0)
