"""The sections of inside.html: what was measured of a model, with a title, a question and plots for each."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from saccade import values
from saccade.explain.inside import filters, head_plots, lens, norms, positions
from saccade.explain.inside.filters import Filters
from saccade.explain.inside.heads import HeadStatistics
from saccade.explain.inside.lens import Lens
from saccade.explain.inside.norms import Norms
from saccade.explain.inside.positions import Positions
from saccade.report.plots import Plot
from saccade.vision.model import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """All measurements; a sentence in place of one says why it does not apply."""

    model: str
    pictures: tuple[str, ...]
    answers: tuple[Prediction, ...]
    """One per image; none without a head."""
    positions: Positions | str
    filters: Filters
    heads: HeadStatistics | str
    lens: tuple[Lens, ...] | str
    norms: Norms | str

    def to_json(self) -> dict[str, Any]:
        """Return numbers, words and lists; what is not finite is null."""
        found: dict[str, Any] = _finite(values.to_json(self))
        return found


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
    return value


class InsideSection(NamedTuple):
    """A section of the page; `plots` draws what the field of the same name in `Inside` holds."""

    title: str
    question: str
    plots: Callable[[Any], Iterable[Plot | str]]


SECTIONS = {
    "positions": InsideSection(
        "Positions", "Has it learnt that an image has rows and columns?", positions.plots
    ),
    "filters": InsideSection("First filters", "What does its first layer respond to?", filters.plots),
    "heads": InsideSection(
        "Attention heads", "How far does each head attend, and what depends on it?", head_plots.plots
    ),
    "lens": InsideSection(
        "The answer by depth", "At what depth is the answer known, and by which patches?", lens.plots
    ),
    "norms": InsideSection("Token norms", "Does it use some patches as scratch memory?", norms.plots),
}


def section_plots(found: Inside) -> dict[str, list[Plot | str]]:
    """Return every plot, or why there is none, by section of the page."""
    measured = {name: getattr(found, name) for name in SECTIONS}
    return {
        name: [value] if isinstance(value, str) else list(SECTIONS[name].plots(value))
        for name, value in measured.items()
    }
