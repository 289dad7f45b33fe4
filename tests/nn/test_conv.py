import numpy as np
import pytest
import torch
from einops import rearrange
from oracle import group_norm as oracle_norm
from oracle import std_conv, windows
from torch.testing import assert_close

from saccade.nn.conv import StdConv, group_norm, max_pool, pad_same, standardize


def feature_map(channels=4, height=8, width=12):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, channels, height, width, generator=generator, dtype=torch.float64)


def channels_last(x):
    return rearrange(x.detach(), "b d r c -> b r c d").numpy()


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_a_convolution_equals_the_oracles(kernel, stride):
    conv, x = StdConv(4, 5, kernel, stride).double(), feature_map()
    weight = rearrange(conv.weight.detach(), "o i p q -> p q i o").numpy()
    y = conv(x)
    assert y.shape == (2, 5, 8 // stride, 12 // stride)
    assert_close(channels_last(y), std_conv(channels_last(x), weight, stride))


def test_max_pooling_equals_the_oracles_for_negative_values_too():
    x = feature_map() - 10
    expected = windows(channels_last(x), 3, 2, float("-inf")).max((-1, -2))
    assert_close(channels_last(max_pool(x, 3, stride=2)), expected)


def test_an_odd_border_is_wider_on_the_right_and_at_the_bottom():
    x = pad_same(torch.ones(1, 1, 2, 2), kernel=3, stride=2)
    assert_close(x, torch.tensor([[[[1.0, 1, 0], [1, 1, 0], [0, 0, 0]]]]))


def test_kernels_have_mean_zero_and_deviation_one_whatever_they_were():
    weight = 3 * torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0)) + 2
    std, mean = torch.std_mean(standardize(weight), dim=(1, 2, 3), correction=0)
    assert_close(mean, torch.zeros(5), atol=1e-6, rtol=0)
    assert_close(std, torch.ones(5), atol=1e-5, rtol=0)


def test_a_constant_kernel_gives_zeros_and_finite_gradients():
    weight = torch.ones(5, 4, 3, 3, requires_grad=True)
    y = standardize(weight)
    y.sum().backward()
    assert_close(y, torch.zeros_like(y))
    assert weight.grad.isfinite().all()


def test_group_norm_equals_the_oracles_where_eps_counts():
    x, norm = feature_map(channels=64) * 1e-3, group_norm(64).double()
    expected = oracle_norm(channels_last(x), {"gn/scale": np.ones(64), "gn/bias": np.zeros(64)}, "gn")
    assert_close(channels_last(norm(x)), expected)


def test_an_eps_of_the_variance_standardises_as_timm_does():
    weight = torch.randn(6, 4, 3, 3) * 1e-4
    theirs = torch.nn.functional.batch_norm(weight.reshape(1, 6, -1), None, None, training=True, eps=1e-8)
    torch.testing.assert_close(standardize(weight, 1e-8), theirs.reshape(weight.shape))
    assert (standardize(weight) - theirs.reshape(weight.shape)).abs().max() > 1e-3
