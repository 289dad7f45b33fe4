"""Where a pixel came from: the affine map from an image to what a model sees, for points, boxes and masks."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from saccade.data.image.decode import FULL, Colour
from saccade.data.image.resize import INTERPOLATIONS, Sides
from saccade.shapes import Float64, Shaped

Six = tuple[float, float, float, float, float, float]
Points = Shaped[np.ndarray, "n 2"]
Boxes = Shaped[np.ndarray, "n 4"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The map x' = a x + b y + c, y' = d x + e y + f from a source image to a result; (a, ..., f) is `six`.

    Coordinates are in pixels, x to the right and y down, from the top left corner of the image, so that the
    first pixel has its centre at (0.5, 0.5). The source is the upright image, as `decode` returns it.
    """

    six: Six
    source: Sides
    """Height and width of the source."""
    size: Sides
    """Height and width of the result."""

    @classmethod
    def of(cls, picture: Image.Image) -> "Geometry":
        """Return the map that `decode` applied: the identity, unless it decoded a JPEG at 1/2, 1/4 or 1/8."""
        sides = picture.height, picture.width
        full: Sides = picture.info.get(FULL, sides)
        shrink = max(round(full[0] / sides[0]), round(full[1] / sides[1]))  # the last pixel may be partial
        return cls((1 / shrink, 0.0, 0.0, 0.0, 1 / shrink, 0.0), full, sides)

    @property
    def matrix(self) -> Float64[np.ndarray, "2 3"]:
        return np.array(self.six).reshape(2, 3)

    @property
    def inverse(self) -> "Geometry":
        """From the result back to the source."""
        a, b, c, d, e, f = self.six
        area = a * e - b * d
        a, b, d, e = e / area, -b / area, -d / area, a / area
        return Geometry((a, b, -(a * c + b * f), d, e, -(d * c + e * f)), self.size, self.source)

    def then(self, six: Six, size: Sides | None = None) -> "Geometry":
        """Return this map followed by another one."""
        a, b, c, d, e, f = self.six
        p, q, r, s, t, u = six
        both = (
            *(p * a + q * d, p * b + q * e, p * c + q * f + r),
            *(s * a + t * d, s * b + t * e, s * c + t * f + u),
        )
        return Geometry(both, self.source, size or self.size)

    def __matmul__(self, first: "Geometry") -> "Geometry":
        """Return `first` followed by this map, as the product of their matrices does."""
        assert first.size == self.source
        return first.then(self.six, self.size)

    def resize(self, size: Sides) -> "Geometry":
        """Return this map followed by a resize."""
        (tall, wide), (height, width) = self.size, size
        return self.then((width / wide, 0.0, 0.0, 0.0, height / tall, 0.0), size)

    def crop(self, corner: Sides, size: Sides) -> "Geometry":
        """Return this map followed by a crop at `corner`; a negative corner pads."""
        return self.then((1.0, 0.0, -float(corner[1]), 0.0, 1.0, -float(corner[0])), size)

    def flip(self) -> "Geometry":
        """Return this map followed by a horizontal flip."""
        return self.then((-1.0, 0.0, float(self.size[1]), 0.0, 1.0, 0.0))

    def points(self, points: Points) -> Float64[np.ndarray, "n 2"]:
        """Map points (x, y)."""
        return np.asarray(points, np.float64) @ self.matrix[:, :2].T + self.matrix[:, 2]

    def boxes(self, boxes: Boxes, *, clip: bool = True) -> Float64[np.ndarray, "n 4"]:
        """Map boxes (left, top, right, bottom) to the smallest upright boxes around them.

        Args:
            clip: Cut off what lies outside the result; a box that is all outside becomes empty.
        """
        corners = np.asarray(boxes, np.float64)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)
        moved = self.points(corners).reshape(-1, 4, 2)
        result = np.concatenate([moved.min(1), moved.max(1)], axis=1)
        height, width = self.size
        return result.clip(0, [width, height, width, height]) if clip else result

    def mask(self, mask: Shaped[np.ndarray, "height width"], fill: int = 0) -> np.ndarray:
        """Map a mask of any type; each pixel takes the nearest one of the source, or `fill` outside it."""
        assert mask.shape == self.source
        rows, columns = np.indices(self.size)
        back = self.inverse.points(np.stack([columns.ravel(), rows.ravel()], axis=1) + 0.5)
        x, y = np.floor(back).astype(np.int64).T
        inside = (x >= 0) & (y >= 0) & (x < self.source[1]) & (y < self.source[0])
        result = np.full(len(back), fill, mask.dtype)
        result[inside] = mask[y[inside], x[inside]]
        return result.reshape(self.size)

    def picture(
        self, image: Image.Image, interpolation: str = "bilinear", fill: int | Colour = 0
    ) -> Image.Image:
        """Map an image; it is not smoothed first, so one that shrinks a lot has jagged edges."""
        assert (image.height, image.width) == self.source
        how = INTERPOLATIONS[interpolation]
        back, size = self.inverse.six, (self.size[1], self.size[0])
        return image.transform(size, Image.Transform.AFFINE, back, how, fillcolor=fill)
