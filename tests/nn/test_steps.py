import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from saccade.nn.attention import attend
from saccade.nn.attention import causal as lower
from saccade.nn.variants.step_by_step import steps, text


def matrices(n=4, d=6, k=3, e=2):
    """Tokens and weights in the row convention."""
    generator = torch.Generator().manual_seed(0)
    shapes = (n, d), (d, k), (d, k), (d, e)
    return [torch.randn(*shape, dtype=torch.double, generator=generator) for shape in shapes]


def both(causal):
    parts = matrices()
    return steps(*parts, "rows", causal), steps(*(t.T for t in parts), "columns", causal)


@pytest.mark.parametrize("causal", [False, True])
def test_the_two_conventions_are_transposes_of_each_other(causal):
    rows, columns = both(causal)
    for a, b in zip(rows[1:], columns[1:], strict=True):
        assert_close(a, b.T, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_the_weights_of_each_query_sum_to_one(causal):
    rows, columns = both(causal)
    assert_close(rows.weights.sum(1), torch.ones(4).double())
    assert_close(columns.weights.sum(0), torch.ones(4).double())


@pytest.mark.parametrize("causal", [False, True])
def test_the_steps_lead_to_attend(causal):
    rows, _ = both(causal)
    q, k, v = (t[None, None] for t in (rows.q, rows.k, rows.v))
    assert_close(rows.out, attend(q, k, v, lower(4).double() if causal else None)[0, 0])


def test_the_future_is_upper_right_in_rows_and_lower_left_in_columns():
    rows, columns = both(causal=True)
    assert torch.equal(rows.masked.isinf(), torch.ones(4, 4).triu(1).bool())
    assert torch.equal(columns.masked.isinf(), torch.ones(4, 4).tril(-1).bool())


def test_the_four_token_example_equals_the_sums_of_the_notes_written_out():
    a, W_q, W_k, W_v = (t.numpy() for t in matrices())
    found = steps(*matrices())
    for i in range(4):
        q = [sum(a[i, c] * W_q[c, j] for c in range(6)) for j in range(3)]
        alpha, values = [], []
        for token in range(4):
            key = [sum(a[token, c] * W_k[c, j] for c in range(6)) for j in range(3)]
            values.append([sum(a[token, c] * W_v[c, j] for c in range(6)) for j in range(2)])
            alpha.append(sum(x * y for x, y in zip(q, key, strict=True)) / math.sqrt(3))
        total = sum(math.exp(x) for x in alpha)
        hat = [math.exp(x) / total for x in alpha]
        b = [sum(w * value[j] for w, value in zip(hat, values, strict=True)) for j in range(2)]
        np.testing.assert_allclose(found.scaled[i].numpy(), alpha, atol=1e-12)
        np.testing.assert_allclose(found.weights[i].numpy(), hat, atol=1e-12)
        np.testing.assert_allclose(found.out[i].numpy(), b, atol=1e-12)


@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_a_later_token_never_influences_an_earlier_answer(convention):
    a, *weights = matrices() if convention == "rows" else [t.T for t in matrices()]
    a = a.contiguous().requires_grad_()
    out = steps(a, *weights, convention, causal=True).out
    for i in range(4):
        answer = out[i] if convention == "rows" else out[:, i]
        gradient = torch.autograd.grad(answer.sum(), a, retain_graph=True)[0]
        gradient = gradient if convention == "rows" else gradient.T
        assert gradient[i + 1 :].eq(0).all()
        assert gradient[: i + 1].ne(0).any(1).all()


def test_a_dot_product_has_variance_d_k_and_its_scaled_form_variance_one():
    torch.manual_seed(0)
    for k in (4, 64, 256):
        q, key = torch.randn(2, 20_000, k)
        dots = (q * key).sum(1)
        assert_close(dots.var() / k, torch.tensor(1.0), atol=0.1, rtol=0)
        assert_close((dots / k**0.5).var(), torch.tensor(1.0), atol=0.1, rtol=0)


def entropy(weights):
    return -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()


def test_without_scaling_the_softmax_collapses_as_keys_widen():
    torch.manual_seed(0)
    bare, scaled = [], []
    for k in (4, 16, 64, 256, 1024):
        q, key = torch.randn(2, 128, k)
        found = steps(torch.eye(128), q, key, torch.eye(128))
        scaled.append(entropy(found.weights))
        bare.append(entropy(found.scores.softmax(1)))
    assert bare == sorted(bare, reverse=True)
    assert bare[-1] < 0.1 * math.log(128)
    assert min(scaled) > 0.8 * math.log(128)


@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_the_text_shows_every_intermediate(convention):
    found = dict(zip(("rows", "columns"), both(causal=True), strict=True))[convention]
    page = text(found)
    assert page.startswith(f"tokens are {convention}")
    for matrix in found[1:]:
        for x in matrix.flatten().tolist():
            assert f"{x:.4f}" in page
    first = found.weights[3] if convention == "rows" else found.weights[:, 3]
    line = " + ".join(f"{w:.4f} v^{j}" for j, w in enumerate(first.tolist(), 1))
    assert f"b^4 = {line}" in page


def test_the_text_names_the_mask_only_where_there_is_one():
    rows, columns = both(causal=True)
    assert "upper right = -inf" in text(rows)
    assert "lower left = -inf" in text(columns)
    assert "-inf" not in text(both(causal=False)[0])


def test_an_unknown_convention_is_refused_in_words():
    with pytest.raises(ValueError, match=r"convention is 'row', which is not known; did you mean 'rows'\?"):
        steps(*matrices(), convention="row")
