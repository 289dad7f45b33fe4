"""How far a model sees: the receptive field of a CNN and the attention distance of a ViT, in pixels.

The theoretical field is what an output unit can depend on (Araujo et al. 2019, "Computing Receptive Fields of
Convolutional Neural Networks"), the effective field what it does depend on, by its gradient (Luo et al. 2016,
https://arxiv.org/abs/1701.04128). The attention distance is that of Dosovitskiy et al. 2021, figure 7.

Shapes: b batch, h heads, n patches, t tokens (patches and those before them).
"""

from collections.abc import Iterable, Iterator

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor, nn

from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.models.resnet import Basic, Bottleneck, ResNet
from saccade.models.vit import ViT
from saccade.nn.attention import probabilities
from saccade.nn.patch import Image

SHARES = (0.5, 0.9545)
"""Shares of the gradient inside a radius: half, and as much as two standard deviations of a normal."""


def layers(module: ResNet) -> Iterator[tuple[int, int]]:
    """Yield kernel and stride of every layer on the longest path, from the input on."""
    yield _sizes(module.root)
    if not module.config.small:
        yield 3, 2
    for stage in module.stages:
        for unit in stage:
            assert isinstance(unit, Basic | Bottleneck)
            last = (unit.conv3,) if isinstance(unit, Bottleneck) else ()
            yield from map(_sizes, (unit.conv1, unit.conv2, *last))


def _sizes(conv: nn.Conv2d) -> tuple[int, int]:
    return conv.kernel_size[0], conv.stride[0]


def receptive_field(sizes: Iterable[tuple[int, int]]) -> int:
    """Return the side of the square that a unit can depend on, from (kernel, stride) of each layer.

    Each layer adds kernel - 1 steps, each as long as the product of all strides before it (Araujo et al.
    2019, eq. 2).

    >>> receptive_field([(7, 2), (3, 2)])
    11
    """
    side, step = 1, 1
    for kernel, stride in sizes:
        side += (kernel - 1) * step
        step *= stride
    return side


def gradient(module: Vision, image: Image) -> tuple[Float[Tensor, "height width"], tuple[float, float]]:
    """Return how strongly the central unit of the last map depends on each pixel, and its position (y, x).

    This is the absolute gradient of the unit's sum over channels, summed over colours and images; the last
    map is that of the last stage, or the patches after the last block.
    """
    with evaluating(module, gradients=True):
        image = image.clone().requires_grad_()
        map_ = _map(module, image)
        row, column = (size // 2 for size in map_.shape[-2:])
        (found,) = torch.autograd.grad(map_[..., row, column].sum(), image)
    steps = [whole / part for whole, part in zip(image.shape[-2:], map_.shape[-2:], strict=True)]
    # A convolution's unit is at the first pixel of its stride, a patch's in the centre of its square.
    inside = [0.0 if isinstance(module, ResNet) else (step - 1) / 2 for step in steps]
    y, x = (u * step + more for u, step, more in zip((row, column), steps, inside, strict=True))
    return reduce(found.abs(), "b c height width -> height width", "sum"), (y, x)


def _map(module: Vision, image: Image) -> Float[Tensor, "b d rows columns"]:
    if isinstance(module, ResNet):
        return module.encode(image)
    patches = module.encode(image)[:, module.config.front :]
    return rearrange(patches, "b (r c) d -> b d r c", r=image.shape[-2] // module.config.patch)


def effective_field(module: Vision, image: Image) -> dict[float, float]:
    """Return the radius in pixels, around the central unit, that holds each of `SHARES` of its gradient."""
    found, (y, x) = gradient(module, image)
    rows, columns = (torch.arange(size, dtype=torch.float64) for size in found.shape)
    far = ((rows - y).square()[:, None] + (columns - x).square()).sqrt().flatten()
    order = far.argsort(stable=True)
    held = found.double().flatten()[order].cumsum(0)
    if not held[-1] > 0:  # a constant output, as of an untrained model
        return dict.fromkeys(SHARES, 0.0)
    places = torch.searchsorted(held / held[-1], torch.tensor(SHARES, dtype=torch.float64))
    return dict(zip(SHARES, far[order][places.clamp_max(far.shape[0] - 1)].tolist(), strict=True))


def reach(p: Float[Tensor, "b h rows t"], between: Float[Tensor, "rows n"]) -> Float[Tensor, "b h rows"]:
    """Return how far each query looks: the mean distance to the patches, weighted by its attention.

    Class tokens and registers have no position: they are left out as keys, and the remaining attention is
    normalised to sum to 1.
    """
    p = p[..., -between.shape[1] :].double()
    total = p.sum(-1)
    return torch.einsum("b h n m, n m -> b h n", p, between) / total.masked_fill(total == 0, 1)


def attention_distance(p: Float[Tensor, "b h t t"], grid: tuple[int, int], patch: int) -> Float[Tensor, "h"]:
    """Return the mean of `reach` over patches and images, in pixels."""
    between = apart(grid, patch, p)
    return reduce(reach(p[..., -between.shape[0] :, :], between), "b h n -> h", "mean")


def apart(grid: tuple[int, int], patch: int, like: Tensor) -> Float[Tensor, "n n"]:
    """Return the distances between the centres of all patches, on the device of `like`."""
    rows, columns = (torch.arange(size, dtype=torch.float64, device=like.device) for size in grid)
    r = repeat(rows, "r -> (r c)", c=grid[1])
    c = repeat(columns, "c -> (r c)", r=grid[0])
    return patch * ((r[:, None] - r).square() + (c[:, None] - c).square()).sqrt()


def attention_distances(vit: ViT, image: Image) -> list[list[float]]:
    """Return the attention distance of every head of every block, the first block first."""
    patch = vit.config.patch
    grid = image.shape[-2] // patch, image.shape[-1] // patch
    totals = torch.zeros(len(vit.blocks), vit.config.heads, dtype=torch.float64)
    with evaluating(vit):
        for one in torch.split(image, 1):  # the matrices of a large grid are large
            z, (weight, turn) = vit.embed(one), vit.relate(one)
            for i, block in enumerate(vit.blocks):
                q, k, v = block.attention.split(block.norm1(z), turn=turn)
                p = probabilities(q, k, weight)
                totals[i] += attention_distance(p, grid, patch)
                z = block.add1(z, block.attention.join(p @ v))
                z = block.add2(z, block.mlp(block.norm2(z)))
    return (totals / image.shape[0]).tolist()
