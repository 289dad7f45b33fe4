"""ResNets, to compare with a ViT (He et al. 2016, https://arxiv.org/abs/1512.03385).

This is v1.5: the stride of a bottleneck is on its 3x3 convolution. Our module names, left, and torchvision's,
right; s and u count from 0, torchvision's layers from 1:

    root, norm                                  conv1, bn1
    stages.{s}.{u}.conv1, norm1, ...            layer{s}.{u}.conv1, bn1, ...
    stages.{s}.{u}.project, norm_project        layer{s}.{u}.downsample.0, downsample.1
    head                                        fc
"""

from dataclasses import dataclass

import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import check_number
from saccade.nn import init
from saccade.nn.conv import Map
from saccade.nn.head import linear_head
from saccade.nn.patch import Image
from saccade.nn.stack import Stack
from saccade.values import validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetConfig:
    """Everything that decides the weights of a ResNet."""

    layers: tuple[int, ...] = within(1, 1024, name="units in a stage of layers")
    """Units in each stage: (2, 2, 2, 2) for 18 layers, (3, 4, 6, 3) for 34 or, with bottlenecks, 50."""
    bottleneck: bool
    width: int = within(1, 2**12, default=64)
    """Channels of the first stage (a bottleneck puts out four times as many); each stage doubles them."""
    classes: int = within(0, 2**20, default=1000)
    """0 leaves out the head: the model returns its features."""
    image: tuple[int, int] = within(1, 2**14, default=(224, 224))
    """Height and width of the training images; other sizes work too."""
    small: bool = False
    """A root that does not shrink the image (section 4.2), for 32-pixel images."""

    def __post_init__(self) -> None:
        validate(self)
        check_number("the number of stages in layers", len(self.layers), 1, 8)


def conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution that only its stride shrinks; no bias, because a norm follows."""
    return nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)


class Basic(nn.Module):
    """Two 3x3 convolutions with a residual connection, projected where the width or stride changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width, width, 3), nn.BatchNorm2d(width)
        self.project, self.norm_project = _project(channels, width, stride)

    def forward(self, x: Image) -> Map:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(self.norm_project(self.project(x)) + y)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, the last four times as wide, with a residual connection as in `Basic`."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.project, self.norm_project = _project(channels, 4 * width, stride)

    def forward(self, x: Image) -> Map:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(self.norm_project(self.project(x)) + y)


def _project(channels: int, width: int, stride: int) -> tuple[nn.Module, nn.Module]:
    if channels == width and stride == 1:
        return nn.Identity(), nn.Identity()
    return conv(channels, width, 1, stride), nn.BatchNorm2d(width)


class ResNet(nn.Module):
    """Root, stages, mean, head; its methods are named as a ViT's: `encode`, `features`, `read`."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.root = conv(3, width, 3) if config.small else conv(3, width, 7, stride=2)
        self.norm = nn.BatchNorm2d(width)
        unit, growth = (Bottleneck, 4) if config.bottleneck else (Basic, 1)
        self.stages: Stack[nn.Sequential] = Stack()
        channels = width
        for s, units in enumerate(config.layers):
            inner = width * 2**s
            first = unit(channels, inner, 2 if s else 1)
            channels = inner * growth
            self.stages.append(nn.Sequential(first, *(unit(channels, inner, 1) for _ in range(units - 1))))
        init.resnet(self)
        for module in self.modules():  # each unit starts as the identity (Goyal et al. 2017, section 5.1)
            if isinstance(module, Basic | Bottleneck):
                last = module.norm2 if isinstance(module, Basic) else module.norm3
                nn.init.zeros_(last.weight)
        self.head = linear_head(channels, config.classes)

    def encode(self, image: Image) -> Map:
        """Return the feature map of the last stage."""
        x = F.relu(self.norm(self.root(image)))
        if not self.config.small:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in self.stages:
            x = stage(x)
        return x

    def features(self, x: Map) -> Float[Tensor, "b d"]:
        """Return the mean over all positions."""
        return reduce(x, "b d r c -> b d", "mean")

    def read(self, x: Map) -> Float[Tensor, "b classes"]:
        """Return the logits: mean, head."""
        return self.head(self.features(x))

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.read(self.encode(image))
