"""Shapes of arrays in annotations, for what runs without torch.

jaxtyping takes longer to import than a picture to be answered. These are its names where it is loaded already
(torch's side of the package loads it, and so do the tests, which check every shape), and words otherwise.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Float32, Float64, Int32, Int64, Integer, Shaped, UInt8, UInt64
else:

    class Float32:
        """Only the kind of array is kept: `Float32[np.ndarray, "b 3"]` is `np.ndarray`."""

        def __class_getitem__(cls, told: tuple[Any, str]) -> Any:
            return told[0]

    Float64 = Int32 = Int64 = Integer = Shaped = UInt8 = UInt64 = Float32

__all__ = ["Float32", "Float64", "Int32", "Int64", "Integer", "Shaped", "UInt8", "UInt64"]
