"""A map of what speaks for a class, with the picture it is about: numbers first, colours on demand."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from saccade.errors import ModelError, check_number

SEQUENTIAL, DIVERGING = "inferno", "RdBu_r"
"""matplotlib's names: from dark to light in even steps; and red for, blue against, the paler the less."""
WEAKEST = 0.2
"""How much of the opacity is left where the map is weakest: there one wants to see the picture."""
READABLE = 224
"""Pixels of the shorter side below which a picture is enlarged for a notebook."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap:
    """How much each place of a picture speaks for a class; in a notebook it shows itself."""

    grid: Float32[np.ndarray, "rows columns"]
    """Higher speaks more for the class; below zero, against it."""
    target: int
    """The number of the class."""
    label: str
    method: str
    probability: float
    """Of the class, as the model answers."""
    picture: Image.Image
    """What the model saw: fitted to its size, not normalised."""
    score: float | None = None
    """How true the map is, where it was measured."""

    def __post_init__(self) -> None:
        if not np.isfinite(self.grid).all():
            raise ModelError(
                f"the map of {self.method} for {self.label!r} holds numbers that are not finite, where "
                "finite ones were expected; the weights may be damaged: look at them with `saccade doctor`"
            )
        self.grid.flags.writeable = False

    @property
    def signed(self) -> bool:
        """Whether some places speak against the class."""
        return bool(self.grid.min() < 0)

    def smooth(self, height: int, width: int) -> Float32[np.ndarray, "height width"]:
        """The map at another size, bicubic, never above its highest or below its lowest number."""
        if self.grid.shape == (height, width):
            return self.grid
        large = Image.fromarray(self.grid).resize((width, height), Image.Resampling.BICUBIC)
        return np.clip(np.asarray(large, dtype=np.float32), self.grid.min(), self.grid.max())

    def shades(self, height: int, width: int) -> Float32[np.ndarray, "height width"]:
        """The smooth map between 0 and 1, as it is coloured: from its lowest to its highest number.

        If there are signs, 0.5 is zero, and the strongest number of either sign is at one of the ends.
        """
        values = self.smooth(height, width)
        if self.signed:
            return np.float32(0.5) + values / (2 * np.abs(self.grid).max())
        low, high = self.grid.min(), self.grid.max()
        return (values - low) / (high - low) if high > low else np.zeros_like(values)

    def colours(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """The smooth map in colours."""
        from matplotlib import colormaps

        table = colormaps[DIVERGING if self.signed else SEQUENTIAL]
        return np.rint(table(self.shades(height, width))[..., :3] * 255).astype(np.uint8)

    def overlay(self, alpha: float = 0.85, times: int = 1) -> Image.Image:
        """The colours over the picture, strong where the map is.

        Args:
            alpha: opacity of the strongest place; 0 is the picture alone.
            times: how many times larger to draw it; the pixels of the picture become squares.
        """
        check_number("alpha", alpha, 0, 1)
        check_number("times", times, 1, 1024)
        width, height = self.picture.width * times, self.picture.height * times
        under = self.picture.convert("RGB").resize((width, height), Image.Resampling.NEAREST)
        shades = self.shades(height, width)
        strength = np.abs(2 * shades - 1) if self.signed else shades
        opacity = Image.fromarray(
            np.rint(255 * alpha * (WEAKEST + (1 - WEAKEST) * strength)).astype(np.uint8)
        )
        return Image.composite(Image.fromarray(self.colours(height, width)), under, opacity)

    def to_json(self) -> dict[str, Any]:
        """Numbers and words only; a number of the grid has as many digits as float32 needs."""
        words = {"method": self.method, "target": self.target, "label": self.label}
        numbers = {"probability": self.probability, "score": self.score}
        size = {"height": self.picture.height, "width": self.picture.width}
        return {**words, **numbers, **size, "grid": [[float(str(x)) for x in row] for row in self.grid]}

    def _repr_png_(self) -> bytes:
        made = io.BytesIO()
        self.overlay(times=max(1, READABLE // min(self.picture.size))).save(made, "PNG")
        return made.getvalue()

    def __repr__(self) -> str:
        rows, columns = self.grid.shape
        return f"Heatmap({self.method} for {self.label!r} ({self.probability:.1%}), {rows} x {columns})"
