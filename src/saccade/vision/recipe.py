"""The settings that all tasks on images share."""

from dataclasses import dataclass, field

from saccade.data.image.augment import Augment
from saccade.errors import check_word
from saccade.recipe import Recipe
from saccade.values import within


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionRecipe(Recipe):
    """The settings of a run on images, whatever the task."""

    image: int = within(0, 2**14, default=0)
    """Side of the images in pixels; 0: the model's own."""
    freeze: str = "none"
    """none: train everything. body: train the head only. N: freeze the patches and the first N blocks."""
    droppath: float = within(0, 0.99, default=0.0)
    """Stochastic depth: how often the last block is skipped in training; earlier blocks less often."""
    augment: Augment = field(default_factory=Augment)

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # slots=True creates a new class, which super() does not find
        if not self.freeze.isdecimal() or len(self.freeze) > 9:
            check_word("freeze", self.freeze, ("none", "body"))
