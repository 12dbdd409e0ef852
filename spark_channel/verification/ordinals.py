"""Whole numbers in order, for ranges of a key."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_channel.arrow_schema import numpy_name
from spark_channel.verification.arrow_buffers import decoded, fixed_width, null_mask
from spark_channel.verification.forms import Form

__all__ = ["has_ordinals", "ordinals"]


def has_ordinals(form: Form) -> bool:
    """Whether every system has the values of this form in the order of their numbers."""
    return form.name == "integer"


def ordinals(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """The numbers of a column whose form `has_ordinals`, and which of them are NULL; None = no one is."""
    values = decoded(values)
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64), np.ones(len(values), np.bool_)
    numbers = fixed_width(values, numpy_name(values.type))
    return numbers.astype(np.int64), null_mask(values) if values.null_count else None
