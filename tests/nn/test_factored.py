import pytest
import torch
from torch.testing import assert_close

from saccade.nn.attention import Attention, causal, probabilities
from saccade.nn.variants.low_rank import Factored, contributions, query_key_maps, value_maps

WIDTH, HEADS = 24, 3


def factored(d=10, r=4):
    generator = torch.Generator().manual_seed(0)
    shapes = (d, r), (r, d)
    return Factored(*(torch.randn(*s, dtype=torch.double, generator=generator) for s in shapes))


def attention():
    torch.manual_seed(0)
    return Attention(WIDTH, HEADS)


@pytest.mark.parametrize("r", [1, 4, 10, 15])
def test_the_parts_agree_with_the_dense_product(r):
    matrix = factored(r=r)
    x = torch.randn(2, 3, 10, dtype=torch.double)
    assert_close(matrix.apply(x), x @ matrix.dense().mT)
    u, s, vh = matrix.svd()
    assert_close(u @ s.diag() @ vh, matrix.dense())
    assert_close(s, torch.linalg.svdvals(matrix.dense())[: s.shape[0]])
    assert_close(u.mT @ u, torch.eye(s.shape[0]).double())
    assert_close(vh @ vh.mT, torch.eye(s.shape[0]).double())
    assert torch.linalg.matrix_rank(matrix.dense()) <= matrix.rank == min(r, 10)


@pytest.mark.parametrize("r", [1, 4, 10, 15])
def test_the_eigenvalues_are_those_of_the_product_and_zeros(r):
    matrix = factored(r=r)
    few, all_ = matrix.eigenvalues(), torch.linalg.eigvals(matrix.dense())
    distance = (few[:, None] - all_[None]).abs()
    large = few.abs() > 1e-6
    assert (distance.amin(1)[large] < 1e-6).all()
    assert (distance.amin(0)[all_.abs() > 1e-6] < 1e-6).all()
    assert_close(few.sum().real, matrix.dense().trace())


def test_gpt3_counts_its_value_map_as_the_notes_do():
    """12,288 wide, heads of 128; the meta device holds shapes and no numbers."""
    value = Factored(torch.empty(12_288, 128, device="meta"), torch.empty(128, 12_288, device="meta"))
    assert value.up.numel() == value.down.numel() == 1_572_864
    assert value.count == 3_145_728  # as many as W_Q and W_K of the same head together
    assert value.dense().numel() == 150_994_944
    assert value.rank == 128
    assert torch.empty(50_257, 12_288, device="meta").numel() == 617_558_016  # W_E


def test_the_ups_of_all_heads_side_by_side_are_the_output_matrix():
    module = attention()
    maps = value_maps(module)
    assert torch.equal(torch.cat([m.up for m in maps], dim=1), module.out.weight)
    assert torch.equal(torch.cat([m.down for m in maps], dim=0), module.v.weight)
    assert [m.rank for m in maps] == [WIDTH // HEADS] * HEADS


@pytest.mark.parametrize("case", ["self", "causal", "cross", "nothing to see"])
def test_the_heads_and_the_bias_of_out_sum_to_the_output(case):
    module = attention()
    z = torch.randn(2, 5, WIDTH)
    context = torch.randn(2, 7, WIDTH) if case == "cross" else None
    weight = {"causal": causal(5), "nothing to see": torch.zeros(1, 1, 1, 5)}.get(case)
    parts = contributions(module, z, weight, context)
    assert_close(parts.sum(1) + module.out.bias, module(z, context, weight), atol=1e-5, rtol=1e-5)


def test_a_head_adds_what_its_value_map_makes_of_what_it_sees():
    module = attention()
    torch.nn.init.zeros_(module.v.bias)
    z = torch.randn(2, 5, WIDTH)
    q, k, _ = module.split(z)
    seen = probabilities(q, k) @ z[:, None]
    found = torch.stack([m.apply(seen[:, h]) for h, m in enumerate(value_maps(module))], dim=1)
    assert_close(found, contributions(module, z), atol=1e-5, rtol=1e-5)


def test_a_bias_of_the_values_goes_through_its_own_head():
    module = attention()
    z = torch.randn(2, 5, WIDTH)
    before = contributions(module, z)
    with torch.no_grad():
        module.v.bias[: WIDTH // HEADS] += 1
    change = contributions(module, z) - before
    assert_close(change[:, 0], value_maps(module)[0].up.sum(1).expand(2, 5, WIDTH), atol=1e-5, rtol=1e-5)
    assert change[:, 1:].eq(0).all()


def test_the_query_key_maps_give_the_attention_of_each_head():
    module = attention()
    torch.nn.init.zeros_(
        module.q.bias
    )  # a bias of the keys adds the same to all keys: no probability changes
    z = torch.randn(2, 5, WIDTH)
    q, k, _ = module.split(z)
    logits = torch.stack([z @ m.dense() @ z.mT for m in query_key_maps(module)], dim=1)
    assert_close((logits / (WIDTH // HEADS) ** 0.5).softmax(-1), probabilities(q, k), atol=1e-5, rtol=1e-5)
