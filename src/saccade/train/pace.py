"""A time budget: how many more steps fit, from the time that steps and scoring take on this machine."""

FIRST = 3
"""The steps after which the first guess is made; until then they are slower than they will be."""
OFTEN = 20
RECENT = 0.05
"""The weight of the newest step in the running mean."""


class Pace:
    """Follows the clock; without a budget it only counts the seconds."""

    def __init__(self, minutes: float, per_epoch: int) -> None:
        self.seconds, self.per_epoch = minutes * 60, per_epoch
        self.spent = 0.0
        """Seconds of training and scoring so far, those before a resume too."""
        self._each = self._scoring = 0.0
        self._steps = 0

    def step(self, seconds: float) -> bool:
        """Count a step; is it time to correct the number of steps?"""
        self.spent += seconds
        self._steps += 1
        weight = RECENT if self._steps > FIRST else 1.0
        self._each += weight * (seconds - self._each)
        return bool(self.seconds) and (self._steps == FIRST or self._steps % OFTEN == 0)

    def scored(self, seconds: float) -> None:
        """Count a scoring; another two are to come at the end, for the last epoch and for the report."""
        self.spent += seconds
        self._scoring = seconds

    def left(self) -> int:
        """How many more steps fit."""
        left = self.seconds - self.spent - 2 * self._scoring
        return max(1, int(left / (self._each + self._scoring / self.per_epoch)))
