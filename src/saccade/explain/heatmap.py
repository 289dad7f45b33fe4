"""A heat map of the evidence for a class, with its image: numbers first, colours on demand."""

import io
from base64 import b64encode
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from saccade.errors import ModelError, check_number

SEQUENTIAL, DIVERGING = "inferno", "RdBu_r"
"""matplotlib's names: dark to light in even steps; red for and blue against, pale for little."""
WEAKEST = 0.2
"""Share of the opacity left where the map is weakest, so that the image stays visible there."""
READABLE = 224
"""An image whose shorter side has fewer pixels is enlarged in a notebook."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap:
    """How much each cell of an image speaks for a class; displays itself in a notebook."""

    grid: Float32[np.ndarray, "rows columns"]
    """Higher is more evidence for the class; below zero, against it."""
    target: int
    """Index of the class."""
    label: str
    method: str
    probability: float
    """Of the class, as predicted."""
    picture: Image.Image
    """What the model saw: resized, not normalised."""
    score: float | None = None
    """Gain of the faithfulness meter, where it was measured."""
    value: float | None = None
    """The output itself, of a model with a single one, such as a count."""

    def __post_init__(self) -> None:
        if not np.isfinite(self.grid).all():
            raise ModelError(
                f"the map of {self.method} for {self.label!r} is not finite; expected finite numbers. "
                "The weights may be damaged: check them with `saccade doctor`"
            )
        self.grid.flags.writeable = False

    @property
    def answer(self) -> str:
        """How sure the model is of the class; of a model with a single output, what it says."""
        return f"{self.probability:.1%}" if self.value is None else f"{self.value:.4g}"

    @property
    def signed(self) -> bool:
        """Whether some cells speak against the class."""
        return bool(self.grid.min() < 0)

    def smooth(self, height: int, width: int) -> Float32[np.ndarray, "height width"]:
        """Resize the map (bicubic), clipped to its own range."""
        if self.grid.shape == (height, width):
            return self.grid
        large = Image.fromarray(self.grid).resize((width, height), Image.Resampling.BICUBIC)
        return np.clip(np.asarray(large, dtype=np.float32), self.grid.min(), self.grid.max())

    def shades(self, height: int, width: int) -> Float32[np.ndarray, "height width"]:
        """Return the resized map scaled to 0 to 1, as it is coloured: from its lowest to its highest number.

        With signs, 0.5 is zero and the strongest number of either sign is at one of the ends.
        """
        values = self.smooth(height, width)
        if self.signed:
            return np.float32(0.5) + values / (2 * np.abs(self.grid).max())
        low, high = self.grid.min(), self.grid.max()
        return (values - low) / (high - low) if high > low else np.zeros_like(values)

    def colours(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return the resized map in colours."""
        from matplotlib import colormaps

        table = colormaps[DIVERGING if self.signed else SEQUENTIAL]
        return np.rint(table(self.shades(height, width))[..., :3] * 255).astype(np.uint8)

    def overlay(self, alpha: float = 0.85, times: int = 1) -> Image.Image:
        """Draw the colours over the image, strong where the map is.

        Args:
            alpha: opacity of the strongest cell; 0 is the image alone.
            times: factor to enlarge by; pixels of the image become squares.
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
        """Return numbers and words only; numbers of the grid have as many digits as float32 needs."""
        words = {"method": self.method, "target": self.target, "label": self.label}
        numbers = {"probability": self.probability, "score": self.score}
        numbers |= {} if self.value is None else {"value": self.value}
        size = {"height": self.picture.height, "width": self.picture.width}
        return {**words, **numbers, **size, "grid": [[float(str(x)) for x in row] for row in self.grid]}

    def _repr_html_(self) -> str:
        title = escape(f"{self.label} ({self.answer}), {self.method}")
        source = f"data:image/png;base64,{b64encode(self._repr_png_()).decode()}"
        return f'<figure><img src="{source}" alt="{title}"><figcaption>{title}</figcaption></figure>'

    def _repr_png_(self) -> bytes:
        made = io.BytesIO()
        self.overlay(times=max(1, READABLE // min(self.picture.size))).save(made, "PNG")
        return made.getvalue()

    def __repr__(self) -> str:
        rows, columns = self.grid.shape
        return f"Heatmap({self.method} for {self.label!r} ({self.answer}), {rows} x {columns})"
