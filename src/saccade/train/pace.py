"""Estimate how many more steps fit into a time budget, from measured step and evaluation times."""

FIRST = 3
"""Steps before the first estimate; the first steps are slower than the rest."""
OFTEN = 20
RECENT = 0.05
"""The weight of the newest step in the running mean."""


class Pace:
    """Tracks the time spent; without a budget it only counts the seconds."""

    def __init__(self, minutes: float, per_epoch: int) -> None:
        self.seconds, self.per_epoch = minutes * 60, per_epoch
        self.spent = 0.0
        """Seconds of training and evaluation so far, those before a resume included."""
        self._each = self._scoring = 0.0
        self._steps = 0

    def step(self, seconds: float) -> bool:
        """Count a step; return whether to correct the number of steps."""
        self.spent += seconds
        self._steps += 1
        weight = RECENT if self._steps > FIRST else 1.0
        self._each += weight * (seconds - self._each)
        return bool(self.seconds) and (self._steps == FIRST or self._steps % OFTEN == 0)

    def scored(self, seconds: float) -> None:
        """Count an evaluation; two more follow at the end, for the last epoch and for the report."""
        self.spent += seconds
        self._scoring = seconds

    def left(self) -> int:
        """Return how many more steps fit."""
        left = self.seconds - self.spent - 2 * self._scoring
        return max(1, int(left / (self._each + self._scoring / self.per_epoch)))
