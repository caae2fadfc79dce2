"""Numbers that environments return, held against the dtype that their space says: a cast would
truncate fractions, wrap integers and read numbers out of texts, all in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def numbers_of(values: Any, dtype: np.dtype[Any], name: str = "an observation") -> Array:
    """Return what environments returned as an array that ``dtype`` can hold; it is not cast.

    Args:
        values: of one observation or of several, or of a part.
        dtype: of the space.
        name: what messages call it.

    Raises:
        ValueError: no numbers, fractions where the space says integers, or integers beyond its own.
    """
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    integers = dtype.kind in "iu"
    if array.dtype.kind not in ("iub" if integers else "fiub"):
        raise ValueError(f"an environment returned {name} of {array.dtype}, its space says {dtype}")
    if integers and array.size and not np.can_cast(array.dtype, dtype):
        least, most, limits = int(array.min()), int(array.max()), np.iinfo(dtype)
        if least < limits.min or most > limits.max:
            raise ValueError(
                f"an environment returned {name} with numbers from {least} to {most}, its space "
                f"says {dtype}"
            )
    return array


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return what `numbers_of` gave in ``dtype``; what is infinite then is found later."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)
