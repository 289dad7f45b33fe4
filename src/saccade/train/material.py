"""What a run works with, and how it can end before its time."""

from dataclasses import dataclass, field

from torch import nn

from saccade.data.images import Images
from saccade.data.transform import Preprocess
from saccade.errors import SaccadeError
from saccade.models.build import Vision
from saccade.train.distributed import Team, current
from saccade.train.recipe import Recipe


class StoppedError(SaccadeError):
    """SIGINT or SIGTERM came; the state is saved."""

    exit_code = 130


class DivergedError(SaccadeError):
    """Numbers were not finite, again and again."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Material:
    """What a run works with."""

    recipe: Recipe
    train: Images
    val: Images | None
    """None: nothing is held back, so nothing is scored."""
    module: Vision
    preprocess: Preprocess
    teacher: nn.Module | None = None
    team: Team = field(default_factory=current)
    choose: bool = True
    """Keep the epoch that scores best on val; else the last one, so that val plays no part in training."""
