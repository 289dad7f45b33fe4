import pytest
import torch
from torch.testing import assert_close

from saccade.nn.attention import attend, causal, probabilities
from saccade.nn.variants.hard import gumbel, perturb, reinforce, relax, surrogate


def heads(b=2, h=3, n=4, m=5, k=6, e=7, dtype=torch.float):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(*s, dtype=dtype, generator=generator) for s in ((b, h, n, k), (b, h, m, k), (b, h, m, e))
    ]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def distances(out, v):
    """How far each answer is from each single value."""
    return (out[:, :, :, None] - v[:, :, None]).abs().amax(-1)


@pytest.mark.parametrize("look", [gumbel, lambda *a, **b: reinforce(*a, **b).value])
def test_exactly_one_location_is_used(look):
    q, k, v = heads()
    assert (distances(look(q, k, v, generator=seeded()), v) == 0).sum(-1).eq(1).all()


@pytest.mark.parametrize("look", [gumbel, lambda *a, **b: reinforce(*a, **b).value])
def test_a_masked_location_is_never_used_and_nothing_to_see_gives_zeros(look):
    q, k, v = heads(n=5)
    for seed in range(20):
        seen = distances(look(q, k, v, causal(5), generator=seeded(seed)), v) == 0
        assert not (seen & (causal(5) == 0)).any()
    assert look(q, k, v, torch.zeros(1, 1, 1, 5), generator=seeded()).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("look", [gumbel, lambda *a, **b: reinforce(*a, **b).value])
def test_half_precision_uses_exactly_one_visible_location_too(look, dtype):
    q, k, v = heads(m=300, dtype=dtype)
    weight = torch.ones(1, 1, 1, 300)
    weight[..., 10:] = 0
    for seed in range(5):
        seen = distances(look(q, k, v, weight, generator=seeded(seed)), v) == 0
        assert seen[..., :10].sum(-1).eq(1).all()
        assert not seen[..., 10:].any()


@pytest.mark.parametrize("look", [gumbel, lambda *a, **b: reinforce(*a, **b).value])
def test_the_same_generator_gives_the_same_looks(look):
    q, k, v = heads()
    assert torch.equal(look(q, k, v, generator=seeded(3)), look(q, k, v, generator=seeded(3)))
    assert not torch.equal(look(q, k, v, generator=seeded(3)), look(q, k, v, generator=seeded(4)))


def test_locations_are_drawn_with_the_probabilities_of_soft_attention():
    q, k, _ = heads(b=1, h=1, n=1)
    p, draws = probabilities(q, k), 100_000
    index = perturb(p.expand(draws, -1, -1, -1), seeded()).argmax(-1)
    share = torch.bincount(index.flatten(), minlength=5) / draws
    assert ((share - p.flatten()).abs() < 4 * (p * (1 - p) / draws).sqrt().flatten()).all()


def test_the_mean_of_many_hard_looks_is_soft_attention():
    q, k, v = heads(b=1, h=1, n=1)
    many = [t.expand(50_000, -1, -1, -1) for t in (q, k, v)]
    looks = gumbel(*many, generator=seeded()).double()
    error = looks.std(0) / looks.shape[0] ** 0.5
    assert ((looks.mean(0) - attend(q, k, v)[0]).abs() < 4 * error).all()


def test_gumbel_is_hard_forwards_and_soft_backwards():
    q, k, v = heads(dtype=torch.double)
    away = torch.randn(2, 3, 4, 7, dtype=torch.double)
    q.requires_grad_()
    found = torch.autograd.grad((gumbel(q, k, v, None, 0.7, seeded()) * away).sum(), q)[0]
    soft = relax(probabilities(q, k), 0.7, seeded()) @ v
    assert_close(found, torch.autograd.grad((soft * away).sum(), q)[0])
    assert found.abs().sum() > 0


def test_gumbel_with_a_learnt_mask_has_finite_gradients():
    q, k, v = heads()
    weight = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]).view(1, 1, 1, 5).requires_grad_()
    gumbel(q, k, v, weight, generator=seeded()).sum().backward()
    assert weight.grad.isfinite().all()


def test_the_relaxed_look_approaches_the_hard_one_as_it_cools():
    q, k, v = heads()
    hard = gumbel(q, k, v, generator=seeded())
    errors = [
        (relax(probabilities(q, k), t, seeded()) @ v - hard).abs().mean() for t in (1.0, 0.3, 0.1, 1e-4)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_soft_attention_approaches_the_best_matching_value_as_it_cools():
    q, k, v = heads()
    best = (q @ k.mT).argmax(-1, keepdim=True)
    hard = v.take_along_dim(best, dim=2)
    errors = [(attend(q / t, k, v) - hard).abs().mean() for t in (1.0, 0.1, 0.01, 1e-5)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5


def test_the_gradient_of_soft_attention_equals_finite_differences():
    q, k, v = (t.requires_grad_() for t in heads(b=1, h=2, n=2, m=3, k=2, e=2, dtype=torch.double))
    assert torch.autograd.gradcheck(attend, (q, k, v))
    weight = torch.tensor([1.0, 0.5, 2.0], dtype=torch.double).view(1, 1, 1, 3).requires_grad_()
    assert torch.autograd.gradcheck(attend, (q, k, v, weight))


def estimates(baseline):
    """The enumerated gradient of a mean reward, and 200,000 estimates of it."""
    draws = 200_000
    q, k, v = heads(b=1, h=1, n=1, dtype=torch.double)

    def reward(value):
        return 3 + value[..., 0, 0, :].square().sum(-1) - value[..., 0, 0, 0]

    q.requires_grad_()
    places = v.transpose(0, 2)
    expected = (probabilities(q, k).flatten() * reward(places)).sum()
    exact = torch.autograd.grad(expected, q)[0].flatten()
    many = q.detach().expand(draws, -1, -1, -1).clone().requires_grad_()
    rest = (t.expand(draws, -1, -1, -1) for t in (k, v))
    value, log_prob = reinforce(many, *rest, generator=seeded())
    loss = surrogate(log_prob, reward(value), expected.item() if baseline else 0.0)
    each = -draws * torch.autograd.grad(loss, many)[0].flatten(1)
    return exact, each


@pytest.mark.parametrize("baseline", [False, True])
def test_the_estimate_of_reinforce_is_unbiased(baseline):
    exact, each = estimates(baseline)
    error = each.std(0) / each.shape[0] ** 0.5
    assert ((each.mean(0) - exact).abs() < 4 * error).all()
    assert (error < 0.1 * exact.abs().max()).all()  # tight enough to notice a bias


def test_a_baseline_lowers_the_variance_of_reinforce():
    assert estimates(True)[1].var(0).sum() < 0.5 * estimates(False)[1].var(0).sum()


def test_the_surrogate_loss_sends_no_gradient_into_the_reward():
    log_prob, reward = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, requires_grad=True)
    surrogate(log_prob, reward).backward()
    assert reward.grad is None
    assert_close(log_prob.grad, -(reward / 2).detach().view(2, 1, 1).expand(2, 3, 4))


def test_log_prob_is_the_logarithm_of_the_chance_of_the_place_seen():
    q, k, v = heads()
    value, log_prob = reinforce(q, k, v, generator=seeded())
    p = (probabilities(q, k) * (distances(value, v) == 0)).sum(-1)
    assert_close(log_prob.exp(), p)


def test_a_temperature_of_zero_is_refused_in_words():
    q, k, v = heads()
    with pytest.raises(ValueError, match=r"temperature is 0\.0; use a positive number"):
        gumbel(q, k, v, temperature=0.0)
