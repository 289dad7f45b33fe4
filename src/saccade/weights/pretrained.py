"""Published weights that training can start from: small, permissively licensed, named variant.origin.

A name from here works wherever a model does: `saccade predict vit_ti16.augreg cat.jpg`. The files are on the
Hugging Face hub; they are fetched once and then read from its cache.
"""

from dataclasses import dataclass
from pathlib import Path

from saccade.errors import SaccadeError, did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A file of weights on the hub, as its page describes it."""

    hub: str
    licence: str
    parameters: int
    megabytes: float
    """What is downloaded."""
    trained_on: str
    image: int = 224
    """Side of the images it was trained on, in pixels."""
    classes: int = 1000


AUGREG = "ImageNet-21k (14 million photographs), then ImageNet-1k (1.3 million)"  # Steiner et al. 2022
IMAGENET = "ImageNet-1k (1.3 million photographs)"  # Touvron et al. 2021
PRETRAINED = {
    "vit_ti16.augreg": Pretrained(
        hub="timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        licence="Apache-2.0",
        parameters=5_717_416,
        megabytes=22.9,
        trained_on=AUGREG,
    ),
    "vit_s16.augreg": Pretrained(
        hub="timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
        licence="Apache-2.0",
        parameters=22_050_664,
        megabytes=88.2,
        trained_on=AUGREG,
    ),
    "vit_b16.augreg": Pretrained(
        hub="timm/vit_base_patch16_224.augreg_in21k_ft_in1k",
        licence="Apache-2.0",
        parameters=86_567_656,
        megabytes=346,
        trained_on=AUGREG,
    ),
    "deit_ti16.in1k": Pretrained(
        hub="timm/deit_tiny_patch16_224.fb_in1k",
        licence="Apache-2.0",
        parameters=5_717_416,
        megabytes=22.9,
        trained_on=IMAGENET,
    ),
    "deit_s16.in1k": Pretrained(
        hub="timm/deit_small_patch16_224.fb_in1k",
        licence="Apache-2.0",
        parameters=22_050_664,
        megabytes=88.2,
        trained_on=IMAGENET,
    ),
    "dinov2_s14.lvd142m": Pretrained(  # Oquab et al. 2024
        hub="facebook/dinov2-small",
        licence="Apache-2.0",
        parameters=22_056_576,
        megabytes=88.2,
        trained_on="LVD-142M (142 million photographs without labels)",
        image=518,
        classes=0,
    ),
}
SMALL, LARGER = "vit_ti16.augreg", "vit_s16.augreg"
"""What training starts from without an accelerator, and with one."""


def find_pretrained(name: str) -> Path | None:
    """Return the folder of the named weights, fetched if they are not in the cache; None for another name."""
    if name not in PRETRAINED:
        return None
    from saccade.hub.fetch import cached, fetch

    hub = PRETRAINED[name].hub
    return cached(hub) or fetch(hub)


def suggest_pretrained(name: str) -> str:
    """Return "; did you mean 'vit_ti16.augreg'?" for a name like those in the table, else nothing."""
    variant, dot, origin = name.rpartition(".")
    return did_you_mean(name, PRETRAINED) if variant and dot and origin and "/" not in name else ""


def rows() -> list[dict[str, str | int | float | bool]]:
    """Return the table for `saccade models --pretrained`."""
    from saccade.hub.fetch import cached

    return [
        {
            "name": name,
            "params": known.parameters,
            "MB": known.megabytes,
            "image": known.image,
            "cached": cached(known.hub) is not None,
            "licence": known.licence,
            "trained on": known.trained_on,
            "hub": known.hub,
        }
        for name, known in PRETRAINED.items()
    ]


def obtain(name: str) -> str:
    """Return "" if the weights are at hand or could be fetched quickly to begin with, else why not."""
    from saccade.hub.fetch import cached, fetch, reachable

    hub = PRETRAINED[name].hub
    if cached(hub):
        return ""
    if reason := reachable(hub):
        return reason
    try:
        fetch(hub)
    except SaccadeError as error:
        return str(error)
    return ""


def describe(name: str) -> str:
    """Return what weights from the table are, in a few words."""
    known = PRETRAINED[name]
    return f"{known.licence}, {known.megabytes:g} MB, trained on {known.trained_on}"
