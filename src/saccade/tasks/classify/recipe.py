"""The settings of a classification run, and its defaults for a dataset."""

from dataclasses import dataclass, field, replace

from saccade.data.image.augment import Augment
from saccade.data.image.mixup import Mix
from saccade.recipe import Budget, Optim
from saccade.values import within
from saccade.vision.recipe import VisionRecipe

FEW, MANY = 1000, 20_000
"""Training images."""
MINUTES, EACH = 6.0, 500
"""How long fine-tuning may take without an accelerator, and the images for which a minute is enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyRecipe(VisionRecipe):
    """The settings of a run, except its data."""

    teacher: str = ""
    """A larger model to distil from."""
    keep: float = within(0.01, 1, default=1.0)
    """The share of the patches to keep at each of `places`; below 1 the model learns which to drop."""
    places: tuple[int, ...] = ()
    """The blocks before which patches are dropped; empty: the usual ones."""
    mix: Mix = field(default_factory=Mix)
    probe_first: bool = False
    """Fit the head to the frozen model's features before the first step; that is evaluated as epoch 0."""


def default_recipe(
    images: int, pretrained: bool, side: int, accelerator: bool = False
) -> tuple[ClassifyRecipe, str]:
    """Return a sensible recipe for this many training images of that side, and the reason in a sentence.

    Pretrained weights get a linear probe first, then all layers are fine-tuned: a head that fits does not
    distort the features (Kumar et al. 2022, https://arxiv.org/abs/2202.10054).
    """
    if side <= 64:
        augment = Augment(pad=max(side // 8, 1), flip=0.5)
    else:
        augment = Augment(crop=(0.5, 1.0) if pretrained else (0.3, 1.0))
    if pretrained:
        limit = 0.0 if accelerator else float(round(max(MINUTES, images / EACH)))
        epochs = 30 if images < FEW else 15 if images < MANY else 8
        made = ClassifyRecipe(
            optim=Optim(lr=2e-4 if images < FEW else 3e-4, layer_decay=0.75),
            budget=Budget(epochs=epochs, batch=16 if images < FEW else 32, limit=limit),
            augment=augment,
            mix=Mix(smoothing=0.1),
            droppath=0.05,
            probe_first=True,
        )
        why = f"fine-tuning on {images:,} images: a linear probe first, then all layers"
        return made, f"{why}; at most {limit:g} minutes (--epochs or --minutes changes it)" if limit else why
    budgets = ((FEW, Budget(epochs=100, batch=32)), (MANY, Budget(epochs=60, batch=64)))
    budget = next((budget for limit, budget in budgets if images < limit), Budget(epochs=20, batch=128))
    made = ClassifyRecipe(
        optim=Optim(lr=1e-3, ema=0.99 if images < MANY else 0.999),
        budget=budget,
        augment=replace(augment, policy="trivial"),
        mix=Mix(mixup=0.2, cutmix=0.5, smoothing=0.1) if images >= FEW else Mix(smoothing=0.1),
        droppath=0.1,
    )
    return (
        made,
        f"from scratch on {images:,} images: strong augmentation, because the ViT starts knowing nothing",
    )
