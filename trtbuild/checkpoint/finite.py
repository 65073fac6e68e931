"""Whether weights are numbers: the check every conversion makes on each tensor while it has it in hand."""

from __future__ import annotations

import numpy as np

from trtbuild.checkpoint.spec import Array
from trtbuild.errors import InputRefused

_SLICE = 1 << 22


def _first_not_finite(array: Array) -> int | None:
    """Flat index of the first NaN or infinity; looked for in slices, so that it costs little memory."""
    if array.dtype.kind in "iub":
        return None
    flat = array.reshape(-1)
    for start in range(0, flat.size, _SLICE):
        finite = np.isfinite(flat[start : start + _SLICE])
        if not finite.all():
            return start + int(np.argmin(finite))
    return None


def all_finite(array: Array) -> bool:
    """Whether no element is NaN or infinite; integers always are finite."""
    return _first_not_finite(array) is None


def check_finite(array: Array, where: str) -> None:
    """Raise InputRefused naming the tensor (`where`), the value and its index unless every element is finite."""
    index = _first_not_finite(array)
    if index is not None:
        position = [int(i) for i in np.unravel_index(index, array.shape)]
        raise InputRefused(
            f"holds {float(array.reshape(-1)[index])} at {position}",
            where=where,
            hint="the weights are damaged: get them again, or take another checkpoint of this model",
        )
