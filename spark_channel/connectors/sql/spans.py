"""The dates and times that Spark holds. Pure."""

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DAYS", "MICROSECONDS", "first_outside"]

DAYS = (-719_162, 2_932_896)
"""Of the years 1 to 9999, as are the microseconds."""
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_FINITE = (-(2**63) + 2, 2**63 - 2)
"""Of other units: the ends stand for infinities."""
_DAY = 86_400_000_000


def first_outside(array: pa.Array) -> int:
    """The index of the first date, timestamp or time of day that Spark cannot hold; -1 = there is none."""
    kind = array.type
    width = pa.int64()
    if pa.types.is_date32(kind):
        width, (least, most) = pa.int32(), DAYS
    elif pa.types.is_timestamp(kind):
        least, most = MICROSECONDS if kind.unit == "us" else _FINITE
    elif pa.types.is_time64(kind):
        least, most = 0, _DAY * (1000 if kind.unit == "ns" else 1) - 1
    else:
        return -1
    numbers = pc.cast(array, width)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        return -1
    return int(pc.index(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), True).as_py())
