"""How much an answer depends on its image, which decides what deleted cells are replaced by.

The usual fill is the blurred image. If that does not change the answer, no map can be tested with it, so
another fill is tried. The choice treats the model and its randomised copies alike (the blurred image is kept
if it changes the answer of any of them), so that the comparison with the copies stays exact.

Shapes: n images, k randomised models, f fills.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.explain.faithfulness.controls import randomise
from saccade.explain.faithfulness.fills import BLUR, DROP, MEAN, cell_grid, fitting_fills, perturbed
from saccade.explain.target import Target, confidence
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.nn.patch import Image
from saccade.wording import percent

BATCH = 64
"""Images in one forward pass."""
COPIES = 19
"""Models with randomised weights whose dependence on the image must be lower: 1 in 20 errs."""
EVIDENCE = 1.0
"""Smallest log-odds that an image must add to its target."""
WITHOUT = {DROP: "an image without its patches", MEAN: "an image of its mean colour alone"}
"""What is left when all cells are deleted."""
REMOVED = {DROP: "all patches are dropped", MEAN: "the mean colour covers everything"}

_Answers = Float[Tensor, "n f"]


def log_odds_gain(whole: Float[Tensor, "*b"], blank: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the log of the odds ratio; probabilities are clipped to a millionth from 0 and 1."""
    odds = [p.double().clamp(1e-6, 1 - 1e-6).logit() for p in (whole, blank)]
    return (odds[0] - odds[1]).float()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evidence:
    """What some images add to their targets, and to the answers of models with randomised weights."""

    fill: str
    whole: Float[np.ndarray, "n"]
    """Probability of the target."""
    blurred: Float[np.ndarray, "n"]
    """The same for the blurred image."""
    blank: Float[np.ndarray, "n"]
    """The same with all cells deleted: the blurred image again, unless another fill is used."""
    recognised: Bool[np.ndarray, "n"]
    """Whether the target is still predicted for the blurred image."""
    others: Float[np.ndarray, "n k"]
    """Log-odds that each image adds to the answers of the randomised models."""

    @property
    def gain(self) -> Float[np.ndarray, "n"]:
        """Log-odds that each image adds to its target."""
        whole, blank = (torch.from_numpy(p) for p in (self.whole, self.blank))
        return log_odds_gain(whole, blank).numpy()

    def part(self, images: slice) -> "Evidence":
        """Return what belongs to some of the images."""
        return Evidence(
            fill=self.fill,
            whole=self.whole[images],
            blurred=self.blurred[images],
            blank=self.blank[images],
            recognised=self.recognised[images],
            others=self.others[images],
        )

    @property
    def as_much(self) -> int:
        """How many randomised models depend on the images as much, in the mean."""
        return int(np.sum(self.others.mean(0) >= self.gain.mean()))

    def weakness(self, label: str = "") -> str:
        """Return why no map can be judged by these images, or "" if one can."""
        small = bool(self.gain.mean() < EVIDENCE)
        if not small and (self.fill == BLUR or not self.as_much):
            return ""
        whole, blurred, blank = (percent(float(p.mean()), 0) for p in (self.whole, self.blurred, self.blank))
        one = self.whole.shape[0] == 1
        empty = f"; {WITHOUT[self.fill]}: {blank}" if small and self.fill != BLUR else ""
        if not self.recognised.all():
            lead = f"the image{' hardly speaks' if one else 's hardly speak'} "
            lead += f"for {label or ('the class' if one else 'their classes')} "
            lead += f"({whole}; blurred: {blurred}{empty})"
        else:
            lead = f"the blurred image{' is' if one else 's are'} still recognised"
            lead += f"{label and f' as {label}'} ({blurred})"
            lead += f", and so is {WITHOUT[self.fill]} ({blank})" if empty else ""
        if not small:
            return f"{lead}, and {self.copies} change their answers as much when {REMOVED[self.fill]}"
        return (
            f"{lead}, while {self.copies} depend more on it" if self.fill == BLUR and self.as_much else lead
        )

    @property
    def copies(self) -> str:
        """Those models in words."""
        return f"{self.as_much} of {self.others.shape[1]} models with randomised weights"


def find_evidence(module: Vision, image: Image, target: Target, seed: int = 0) -> Evidence:
    """Compare images with themselves blurred, or else with another fill, for a model and 19 random copies."""
    fills = fitting_fills(module)
    whole, *blanks = _answers(module, image, fills)
    own = [_of(p, target) for p in (whole, *blanks)]
    gain = torch.stack([log_odds_gain(own[0], p) for p in own[1:]], 1)
    others = torch.stack([dependence(randomise(module, seed + i), image) for i in range(COPIES)], 1)
    enough = bool(gain[:, 0].mean() >= EVIDENCE) or bool((others[..., 0].mean(0) >= EVIDENCE).any())
    used = 0 if enough else 1
    predicted = blanks[0].argmax(-1) == target.cpu() if whole.shape[-1] > 1 else own[1] > 0.5
    return Evidence(
        fill=fills[used],
        whole=own[0].numpy(),
        blurred=own[1].numpy(),
        blank=own[1 + used].numpy(),
        recognised=predicted.numpy(),
        others=others[..., used].numpy(),
    )


def dependence(module: Vision, image: Image) -> _Answers:
    """Return the log-odds that each image adds to its predicted class, compared with each fill alone."""
    whole, *blanks = _answers(module, image, fitting_fills(module))
    answer = whole.argmax(-1)
    return torch.stack([log_odds_gain(_of(whole, answer), _of(p, answer)) for p in blanks], 1)


def _of(p: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, "n"]:
    return p.gather(1, target.cpu()[:, None])[:, 0]


def _answers(module: Vision, image: Image, fills: tuple[str, ...]) -> list[Float[Tensor, "n classes"]]:
    """Return the probabilities for the whole images, then with all of them deleted; on the CPU."""
    found: list[list[Tensor]] = [[] for _ in range(1 + len(fills))]
    with evaluating(module, gradients=True), torch.no_grad():
        for part in torch.split(image, BATCH):
            every = torch.arange(part.shape[0], device=part.device)
            all_away = torch.ones(
                part.shape[0], *cell_grid(module, part), dtype=torch.bool, device=part.device
            )
            logits = [module(part), *(perturbed(module, part, fill)(every, all_away) for fill in fills)]
            for kept, read in zip(found, logits, strict=True):
                kept.append(confidence(read.float()).cpu())
    return [torch.cat(parts) for parts in found]
