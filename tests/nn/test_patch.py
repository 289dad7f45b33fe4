"""Patches as a linear map and as a convolution; pools and heads."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.models.vit import ViT, ViTConfig
from saccade.nn.patch import Patches, patchify, unpatchify
from saccade.nn.pool import Pool
from saccade.weights.resize import resize, resize_kernel, resize_matrix


def test_the_linear_map_of_flattened_patches_is_a_convolution():
    patches, image = Patches(10, 4), torch.randn(2, 3, 12, 20)
    convolved = F.conv2d(image, patches.weight, patches.bias, stride=4).permute(0, 2, 3, 1)
    assert_close(patches(image), convolved, atol=1e-6, rtol=1e-5)


def test_putting_the_patches_back_gives_the_picture():
    image = torch.randn(2, 3, 12, 20)
    assert torch.equal(unpatchify(patchify(image, 4), 4), image)


def test_a_patch_is_flattened_by_channel_row_and_column():
    image = torch.arange(3 * 4 * 6.0).reshape(1, 3, 4, 6)
    expected = np.asarray(image[0, :, 2:4, 4:6]).reshape(-1)
    assert patchify(image, 2)[0, 1, 2].tolist() == expected.tolist()


def test_pools_summarise_what_they_say():
    z = torch.randn(2, 7, 4)
    double = lambda x: x * 2  # noqa: E731
    assert_close(Pool("token")(z, double, 1), z[:, 0] * 2)
    assert_close(Pool("pair")(z, double, 2), z[:, :2] * 2)
    assert_close(Pool("mean")(z, double, 0), z.mean(1) * 2)
    assert_close(Pool("mean_norm")(z, F.relu, 1), F.relu(z[:, 1:].mean(1)))
    assert_close(Pool("token+mean")(z, double, 3), torch.cat([z[:, 0], z[:, 3:].mean(1)], -1) * 2)


def answers(kernel, patches):
    return torch.einsum("dchw,bchw->bd", kernel, patches)


def resized(patches, side):
    flat = resize_matrix(patches.shape[-1], side) @ patches.flatten(2)[..., None]
    return flat[..., 0].unflatten(-1, (side, side))


@pytest.mark.parametrize("patch", [8, 12, 16])
def test_a_larger_kernel_answers_a_larger_patch_as_the_old_one_the_patch(patch):
    kernel, patches = torch.randn(6, 3, 8, 8), torch.randn(5, 3, 8, 8)
    found = answers(resize_kernel(kernel, patch), resized(patches, patch))
    assert_close(found, answers(kernel, patches), atol=1e-3, rtol=1e-3)


def test_a_smaller_kernel_errs_less_than_any_stretched_one():
    kernel, patches = torch.randn(6, 3, 8, 8), torch.randn(2000, 3, 8, 8)
    small, truth = resized(patches, 4), answers(kernel, patches)
    stretched = F.interpolate(kernel, size=(4, 4), mode="bicubic", antialias=True)
    error = {factor: (answers(stretched * factor, small) - truth).square().mean() for factor in (1, 2, 4)}
    assert (answers(resize_kernel(kernel, 4), small) - truth).square().mean() < min(error.values())


def test_resizing_to_the_same_sizes_changes_nothing():
    vit = ViT(ViTConfig(image=(32, 48), patch=8, width=24, depth=1, heads=3, hidden=48, classes=5))
    same = resize(vit, (32, 48), 8).state_dict()
    assert all(torch.equal(same[name], tensor) for name, tensor in vit.state_dict().items())


@pytest.mark.parametrize("position", ["learned", "learned2d", "relative", "sincos2d", "rope2d", "none"])
def test_a_resized_model_answers_as_the_old_one_at_that_size(position):
    config = ViTConfig(
        image=(32, 48), patch=8, width=24, depth=1, heads=3, hidden=48, classes=5, position=position
    )
    vit = ViT(config).eval()
    torch.nn.init.normal_(vit.head.weight)
    image = torch.randn(1, 3, 64, 24)
    assert_close(resize(vit, (64, 24))(image), vit(image))
