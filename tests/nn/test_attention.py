import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from saccade.nn.attention import Attention, attend, causal, probabilities
from saccade.nn.block import Block, BlockStyle
from saccade.nn.rotary import rotate, turns

B, H, N, M, K, E = 2, 3, 4, 5, 8, 6
WEIGHTS = {
    "mask": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]).expand(B, 1, 1, M),
    "mask of each query": (torch.arange(N * M).reshape(1, 1, N, M) % 3 > 0).float(),
    "causal": causal(M)[:, :, :N],
    "counts": torch.tensor([1.0, 2.0, 7.0, 0.5, 3.0]).expand(B, 1, 1, M),
    "of each head": torch.rand(1, H, N, M, generator=torch.Generator().manual_seed(1)),
}


def heads(n=N, m=M, e=E, dtype=torch.float, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, H, n, K), (B, H, m, K), (B, H, m, e)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def numpy_attention(q, k, v, weight=None):
    """Eq. 1 in double precision, one query at a time."""
    q, k, v = (t.double().numpy() for t in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    weight = np.ones(1) if weight is None else weight.double().numpy()
    weight = np.broadcast_to(weight, (*q.shape[:3], k.shape[2]))
    for place in np.ndindex(*q.shape[:3]):
        p = weight[place] * np.exp(k[place[:2]] @ q[place] / np.sqrt(q.shape[-1]))
        out[place] = p @ v[place[:2]] / p.sum()
    return torch.tensor(out).float()


def near(found, expected, error=1e-6):
    assert_close(found, expected, atol=error, rtol=error)


@pytest.mark.parametrize("e", [K, E, 1])
def test_attend_equals_torch_and_numpy_for_any_width_of_the_values(e):
    q, k, v = heads(e=e)
    near(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
    near(attend(q, k, v), numpy_attention(q, k, v))


@pytest.mark.parametrize("name", WEIGHTS)
def test_attend_equals_numpy_under_every_kind_of_weight(name):
    q, k, v = heads()
    near(attend(q, k, v, WEIGHTS[name]), numpy_attention(q, k, v, WEIGHTS[name]))


@pytest.mark.parametrize("name", [None, *WEIGHTS])
def test_probabilities_times_values_is_attend_and_sums_to_one(name):
    q, k, v = heads()
    weight = None if name is None else WEIGHTS[name]
    p = probabilities(q, k, weight)
    near(p @ v, attend(q, k, v, weight))
    near(p.sum(-1), torch.ones(B, H, N))


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_learnt_weight_gives_the_same_answer_as_a_fixed_one(name):
    q, k, v = heads()
    learnt = WEIGHTS[name].clone().requires_grad_()
    near(attend(q, k, v, learnt), attend(q, k, v, WEIGHTS[name]))


def test_a_query_that_may_look_nowhere_gets_zeros():
    q, k, v = heads()
    weight = torch.ones(1, 1, N, M)
    weight[:, :, 1] = 0
    assert probabilities(q, k, weight)[:, :, 1].eq(0).all()
    assert attend(q, k, v, weight)[:, :, 1].eq(0).all()
    assert attend(q, k, v, weight.requires_grad_())[:, :, 1].eq(0).all()
    assert attend(q, k, v, weight).isfinite().all()


def test_a_query_that_may_look_nowhere_sends_finite_gradients():
    q, k, v = (t.requires_grad_() for t in heads())
    weight = torch.ones(1, 1, N, M)
    weight[:, :, 1] = 0
    for w in (weight, weight.clone().requires_grad_()):
        for p in (probabilities(q, k, w) @ v, attend(q, k, v, w)):
            for gradient in torch.autograd.grad(p.square().sum(), [q, k, v]):
                assert gradient.isfinite().all()


def test_a_query_that_may_look_nowhere_sends_a_finite_gradient_to_its_weight():
    q, k, v = heads()
    weight = torch.zeros(1, 1, N, M, requires_grad=True)
    attend(q, k, v, weight).sum().backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("learnt", [False, True])
def test_a_masked_key_does_no_harm_however_large_its_logit(learnt):
    q, k, v = heads()
    weight = WEIGHTS["mask"].clone().requires_grad_(learnt)
    loud = k.clone()
    loud[:, :, 1] = 1e4 * q[:, :, 0]
    with torch.no_grad():
        expected = attend(q[:, :, :1], k, v, WEIGHTS["mask"])
    near(attend(q[:, :, :1], loud, v, weight), expected)
    near(probabilities(q[:, :, :1], loud, weight) @ v, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [None, "nothing", *WEIGHTS])
def test_half_precision_gives_numbers_near_those_of_full_precision(dtype, name):
    q, k, v = heads(dtype=dtype)
    weight = {None: None, "nothing": torch.zeros(1, 1, 1, M)}.get(name, WEIGHTS.get(name))
    full = attend(*(t.float() for t in (q, k, v)), weight)
    for found in (attend(q, k, v, weight), probabilities(q, k, weight) @ v):
        assert found.dtype == dtype
        near(found.float(), full, 0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_survives_large_logits_and_long_sequences(dtype):
    q, k, v = heads(m=2000, dtype=dtype)
    weight = torch.ones(1, 1, 1, 2000)
    weight[..., ::2] = 0
    for scale in (1, 10):
        assert attend(q * scale, k * scale, v, weight).isfinite().all()
        assert (probabilities(q * scale, k * scale, weight) @ v).isfinite().all()


@settings(max_examples=25, deadline=None)
@given(times=st.integers(1, 6), which=st.integers(0, M - 1), seed=st.integers(0, 100))
def test_a_key_of_a_whole_weight_equals_the_key_that_many_times(times, which, seed):
    q, k, v = heads(seed=seed)
    weight = torch.ones(B, 1, 1, M)
    weight[..., which] = times
    again = [torch.cat([t, *[t[:, :, which : which + 1]] * (times - 1)], dim=2) for t in (k, v)]
    near(attend(q, k, v, weight), attend(q, *again), 1e-5)


def test_the_gradient_of_a_weight_at_zero_is_finite_and_equals_a_difference():
    q, k, v = (t.double() for t in heads())
    weight = WEIGHTS["mask"].double().clone().requires_grad_()
    attend(q, k, v, weight).sum().backward()
    assert weight.grad.isfinite().all()
    step = torch.zeros_like(weight)
    step[0, 0, 0, 1] = 1e-6
    with torch.no_grad():
        slope = (probabilities(q, k, weight + step) @ v - probabilities(q, k, weight) @ v).sum() / 1e-6
    near(weight.grad[0, 0, 0, 1], slope, 1e-4)


@pytest.mark.parametrize("learnt", [False, True])
def test_no_gradient_reaches_an_answer_from_its_future(learnt):
    q, k, v = heads(n=M)
    k.requires_grad_()
    v.requires_grad_()
    out = attend(q, k, v, causal(M).requires_grad_(learnt))
    for i in range(M):
        for gradient in torch.autograd.grad(out[:, :, i].sum(), [k, v], retain_graph=True):
            assert gradient[:, :, i + 1 :].eq(0).all()


def test_attention_and_causality_hold_through_the_whole_module():
    torch.manual_seed(0)
    module, z = Attention(24, H), torch.randn(B, M, 24, requires_grad=True)
    out = module(z, None, causal(M))
    for i in range(M):
        gradient = torch.autograd.grad(out[:, i].sum(), z, retain_graph=True)[0]
        assert gradient[:, i + 1 :].eq(0).all()
        assert gradient[:, : i + 1].ne(0).any()


def test_attention_does_not_care_about_the_order_of_the_keys():
    q, k, v = heads()
    order = torch.randperm(M)
    near(attend(q, k[:, :, order], v[:, :, order]), attend(q, k, v))


def test_a_bias_of_the_keys_changes_no_answer():
    q, k, v = heads()
    near(attend(q, k + torch.randn(K), v), attend(q, k, v), 1e-5)


def like_torch(width=24):
    """Our attention and torch's on the same random weights."""
    torch.manual_seed(0)
    ours, theirs = Attention(width, H), nn.MultiheadAttention(width, H, batch_first=True).eval()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    copy_attention(ours, theirs)
    return ours, theirs


def copy_attention(ours, theirs):
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.q, ours.k, ours.v),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


def test_self_attention_equals_torch_on_shared_weights():
    ours, theirs = like_torch()
    z = torch.randn(B, M, 24)
    near(ours(z), theirs(z, z, z, need_weights=False)[0])


def test_cross_attention_equals_torch_on_shared_weights_with_its_matrix():
    ours, theirs = like_torch()
    z, context = torch.randn(B, N, 24), torch.randn(B, M, 24)
    expected, matrix = theirs(z, context, context, average_attn_weights=False)
    near(ours(z, context), expected)
    near(probabilities(*ours.split(z, context)[:2]), matrix)


def test_masked_attention_equals_torch_on_shared_weights():
    ours, theirs = like_torch()
    z = torch.randn(B, M, 24)
    hidden = WEIGHTS["mask"][:, 0, 0] == 0
    expected = theirs(z, z, z, key_padding_mask=hidden, need_weights=False)[0]
    near(ours(z, None, WEIGHTS["mask"]), expected)
    future = torch.ones(M, M).triu(1).bool()
    near(ours(z, None, causal(M)), theirs(z, z, z, attn_mask=future, need_weights=False)[0])


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_block_equals_torchs_encoder_layer_on_shared_weights(placement):
    torch.manual_seed(0)
    pre = placement == "pre"
    theirs = nn.TransformerEncoderLayer(
        24, H, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=pre
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Block(24, H, 48, BlockStyle(placement=placement, eps=1e-5))
    copy_attention(ours.attention, theirs.self_attn)
    norms = (ours.norm1, ours.norm2) if pre else (ours.add1.norm, ours.add2.norm)
    pairs = zip(
        (ours.mlp.up, ours.mlp.down, *norms),
        (theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2),
        strict=True,
    )
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())
    z = torch.randn(B, M, 24)
    near(ours(z), theirs(z), 1e-5)
    future = torch.ones(M, M).triu(1).bool()
    near(ours(z, causal(M)), theirs(z, src_mask=future), 1e-5)


def test_indivisible_heads_are_refused_in_words():
    with pytest.raises(ValueError, match="width 10 does not split into 3 heads; use a multiple of 3"):
        Attention(10, 3)


ROWS, COLS, FRONT = 4, 5, 2


def turned(x):
    """The same vector at every place of the grid, turned by its place."""
    turn = turns(ROWS, COLS, K, FRONT, x)
    return rotate(x.expand(1, 1, FRONT + ROWS * COLS, K), turn)[0, 0]


def test_turning_preserves_lengths():
    q, _, _ = heads(n=FRONT + ROWS * COLS)
    turn = turns(ROWS, COLS, K, FRONT, q)
    near(rotate(q, turn).norm(dim=-1), q.norm(dim=-1), 1e-5)


def test_front_tokens_are_not_turned_and_the_others_are():
    q = torch.randn(K)
    assert torch.equal(turned(q)[:FRONT], q.expand(FRONT, K))
    assert torch.equal(turned(q)[FRONT], q)  # the first patch stands at row 0, column 0
    assert turned(q)[FRONT + 1 :].ne(q).any(1).all()


def test_a_dot_product_depends_only_on_the_difference_of_the_places():
    torch.manual_seed(0)
    q, k = (turned(t)[FRONT:].reshape(ROWS, COLS, K) for t in torch.randn(2, K))
    dots = torch.einsum("rck, sdk -> rcsd", q, k)
    near(dots[1:, 1:, 1:, 1:], dots[:-1, :-1, :-1, :-1], 1e-5)
    near(dots[2:, :, 2:, :], dots[:-2, :, :-2, :], 1e-5)
    assert not torch.allclose(dots[0, 0, 0, 1], dots[0, 0, 0, 2])
    assert not torch.allclose(dots[0, 0, 0, 1], dots[0, 0, 1, 0])
    assert not torch.allclose(dots[0, 0, 0, 1], dots[0, 1, 0, 0])  # left and right differ
