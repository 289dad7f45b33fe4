import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.testing import assert_close

from saccade.nn.norm import norm
from saccade.nn.variants.power_norm import PowerNorm

ALPHA, EPS = 0.8, 1e-5


class Oracle:
    """Algorithms of Shen et al. 2020 in NumPy, one channel and one example at a time."""

    def __init__(self, gamma, beta, warmup):
        self.gamma, self.beta, self.warmup = gamma, beta, warmup
        self.psi2, self.nu, self.t = [1.0] * len(gamma), [0.0] * len(gamma), 0

    def train(self, x, dy):
        """Return y, dL/dx, dL/dgamma, dL/dbeta of one step, and move the running statistics."""
        size, width = x.shape
        y, dx, dgamma, dbeta = np.zeros_like(x), np.zeros_like(x), np.zeros(width), np.zeros(width)
        for c in range(width):
            batch = sum(x[i, c] ** 2 for i in range(size)) / size
            psi = np.sqrt((batch if self.t < self.warmup else self.psi2[c]) + EPS)
            hat = [x[i, c] / psi for i in range(size)]
            dhat = [self.gamma[c] * dy[i, c] for i in range(size)]
            lam = sum(dhat[i] * hat[i] for i in range(size)) / size
            gam = sum(hat[i] ** 2 for i in range(size)) / size
            correction = lam if self.t < self.warmup else self.nu[c]
            for i in range(size):
                y[i, c] = self.gamma[c] * hat[i] + self.beta[c]
                dx[i, c] = (dhat[i] - correction * hat[i]) / psi
                dgamma[c] += dy[i, c] * hat[i]
                dbeta[c] += dy[i, c]
            self.psi2[c] = ALPHA * self.psi2[c] + (1 - ALPHA) * batch
            self.nu[c] = self.nu[c] * (1 - (1 - ALPHA) * gam) + (1 - ALPHA) * lam
        self.t += 1
        return y, dx, dgamma, dbeta


def layer(warmup: int, width: int = 3) -> PowerNorm:
    module = PowerNorm(width, eps=EPS, momentum=ALPHA, warmup=warmup)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    return module


def run(module: PowerNorm, times: int, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for _ in range(times):
        x = (2 * torch.randn(4, 5, module.weight.shape[0])).requires_grad_()
        (module(x) * torch.randn_like(x)).sum().backward()


@pytest.mark.parametrize("warmup", [0, 3, 100])
def test_every_step_equals_the_algorithm_in_numpy_forward_and_backward(warmup):
    torch.manual_seed(0)
    module = layer(warmup)
    oracle = Oracle(module.weight.tolist(), module.bias.tolist(), warmup)
    for step in range(8):
        x = (torch.randn(4, 5, 3) * (step + 1) + 0.5).requires_grad_()
        dy = torch.randn(4, 5, 3)
        module.zero_grad()
        y = module(x)
        y.backward(dy)
        found = [y, x.grad, module.weight.grad, module.bias.grad]
        expected = oracle.train(
            x.detach().double().numpy().reshape(20, 3), dy.double().numpy().reshape(20, 3)
        )
        for a, b in zip(found, expected, strict=True):
            assert_close(a.detach(), torch.tensor(b).float().view_as(a), atol=1e-5, rtol=1e-5)
        assert_close(module.square, torch.tensor(oracle.psi2).float(), atol=1e-5, rtol=1e-5)
        assert_close(module.nu, torch.tensor(oracle.nu).float(), atol=1e-5, rtol=1e-5)


def test_the_gradient_is_exact_while_warming_up_and_approximate_afterwards():
    torch.manual_seed(0)
    x, away = torch.randn(6, 3, dtype=torch.double, requires_grad=True), torch.randn(6, 3, dtype=torch.double)

    def plain(x):
        return x / (x.square().mean(0) + EPS).sqrt()

    module = PowerNorm(3, eps=EPS, momentum=ALPHA, warmup=1).double()
    exact = torch.autograd.grad((plain(x) * away).sum(), x)[0]
    y = module(x)
    assert_close(y, plain(x))
    assert_close(torch.autograd.grad((y * away).sum(), x)[0], exact)
    later = torch.autograd.grad((module(x) * away).sum(), x)[0]
    assert not torch.allclose(later, exact)


def test_the_approximate_gradient_of_a_batch_seen_again_and_again_becomes_exact():
    torch.manual_seed(0)
    x, away = torch.randn(6, 3, dtype=torch.double, requires_grad=True), torch.randn(6, 3, dtype=torch.double)
    exact = torch.autograd.grad((x / (x.square().mean(0) + EPS).sqrt() * away).sum(), x)[0]
    module = PowerNorm(3, eps=EPS, momentum=ALPHA, warmup=0).double()
    errors = []
    for _ in range(100):
        found = torch.autograd.grad((module(x) * away).sum(), x)[0]
        errors.append((found - exact).abs().max().item())
    assert errors[0] > 0.01
    assert errors[-1] < 1e-4


def test_a_warm_channel_has_power_one_whatever_its_mean():
    y = PowerNorm(3)(torch.randn(200, 3) * 7 + 30)
    assert_close(y.square().mean(0), torch.ones(3), atol=1e-4, rtol=1e-4)
    assert (y.mean(0) > 0.9).all()


def test_after_warm_up_one_odd_batch_does_not_change_how_it_is_normalised():
    module = layer(warmup=5)
    run(module, 10)
    before = (module.square + EPS).sqrt()
    x = torch.randn(4, 3) * 1000
    assert_close(module(x), module.weight * x / before + module.bias)


def test_evaluation_uses_the_running_psi_and_moves_nothing():
    module = layer(warmup=3)
    run(module, 6)
    module.eval()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.randn(4, 5, 3, requires_grad=True)
    y = module(x)
    y.sum().backward()
    psi = (state["square"] + EPS).sqrt()
    assert_close(y, state["weight"] * x / psi + state["bias"])
    assert_close(x.grad, (state["weight"] / psi).expand_as(x))
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_the_answer_for_one_example_does_not_depend_on_its_batch_in_evaluation():
    module = layer(warmup=2)
    run(module, 4)
    x = torch.randn(7, 5, 3)
    assert_close(module.eval()(x)[2:3], module(x[2:3]))


def test_a_loaded_copy_goes_on_exactly_as_the_original():
    torch.manual_seed(0)
    module, copy = layer(warmup=5), layer(warmup=5)
    run(module, 3)
    copy.load_state_dict(load(save(module.state_dict())))
    run(module, 4, seed=1)  # crosses the end of the warm-up
    run(copy, 4, seed=1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(module.state_dict().values(), copy.state_dict().values(), strict=True)
    )


def test_half_precision_goes_through_and_large_values_do_not_overflow():
    module = PowerNorm(3)
    y = module((torch.randn(50, 3) * 1e4).half())
    assert y.dtype == torch.half
    assert y.isfinite().all()


def test_it_is_built_by_name():
    assert isinstance(norm("power", 8, 1e-5), PowerNorm)
