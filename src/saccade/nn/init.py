"""Initial weights as published; each function initialises a whole tree of modules.

Parameters outside layers (class tokens, position tables) are left to their owner.
"""

import math
from collections.abc import Iterator

from torch import Tensor, nn

from saccade.nn.attention import Attention
from saccade.nn.mlp import MLP

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    """Yield each layer with its parent and its name there."""
    yield None, "", module
    for parent in module.modules():
        for name, layer in parent.named_children():
            yield parent, name, layer


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


def _clear(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def _reset(layer: nn.Module) -> None:
    """Set a norm to scale 1, shift 0."""
    if isinstance(layer, NORMS) and layer.weight is not None:
        nn.init.ones_(layer.weight)
        _clear(getattr(layer, "bias", None))


def lecun_normal(weight: Tensor) -> None:
    """Draw with variance 1 / fan_in (LeCun et al. 1998), cut at two deviations: flax's default."""
    std = _fan_in(weight) ** -0.5 / 0.8796256610342398  # the deviation of a standard normal cut at two
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def google(module: nn.Module) -> None:
    """Google's ViT (vit_jax/models_vit.py of google-research/vision_transformer).

    Attention and MLPs: Xavier uniform (Glorot and Bengio 2010), over all heads at once. Biases: 0, in MLPs
    N(0, 1e-6 squared). A layer called head: 0. All others (patches, pre-logits): `lecun_normal`.
    """
    for parent, name, layer in _layers(module):
        _reset(layer)
        if not isinstance(layer, (nn.Linear, *CONVS)):
            continue
        if isinstance(parent, (Attention, MLP)):
            nn.init.xavier_uniform_(layer.weight)
        elif name == "head":
            nn.init.zeros_(layer.weight)
        else:
            lecun_normal(layer.weight)
        _clear(layer.bias)
        if isinstance(parent, MLP) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=1e-6)


def deit(module: nn.Module) -> None:
    """DeiT (Touvron et al. 2021, after Hanin and Rolnick 2018): linear layers N(0, 0.02 squared), biases 0.

    Convolutions have variance 1 / fan_in, as in torchvision's ViT; DeiT's own code leaves torch's default.
    """
    for _, _, layer in _layers(module):
        _reset(layer)
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            _clear(layer.bias)
        elif isinstance(layer, CONVS):
            nn.init.trunc_normal_(layer.weight, std=math.sqrt(1 / _fan_in(layer.weight)))
            _clear(layer.bias)


def resnet(module: nn.Module) -> None:
    """ResNet (He et al. 2015, arXiv 1502.01852, Eq. 14): convolutions have variance 2 / fan_out."""
    for _, _, layer in _layers(module):
        _reset(layer)
        if isinstance(layer, CONVS):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            _clear(layer.bias)
