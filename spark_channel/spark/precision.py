"""What a Spark type promises of its values and an Arrow type does not say: digits of a time, fields of an interval.

Spark does not check the values of a Python source against them. A TIME(0) with a fraction would be two values for
`distinct` and one in the next file; so each batch of a read is checked here.
"""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StructType,
)

from spark_channel.arrow_schema import entries_of
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.spark.schema import types_inside

__all__ = ["DeclaredPrecision"]

_NANOSECOND_DIGITS = 9
_MICROSECONDS_OF = {
    DayTimeIntervalType.DAY: 86_400_000_000,
    DayTimeIntervalType.HOUR: 3_600_000_000,
    DayTimeIntervalType.MINUTE: 60_000_000,
}
"""The last field of an interval -> its unit. Arrow's durations and Spark's seconds both have microseconds."""


@dataclass(frozen=True, slots=True)
class DeclaredPrecision:
    """The columns of a schema whose types have a unit that Arrow does not know: their numbers, names and types."""

    columns: tuple[tuple[int, str, DataType], ...]

    @classmethod
    def from_schema(cls, schema: StructType) -> "DeclaredPrecision | None":
        """None: Arrow's types say all that the schema does."""
        columns = tuple(
            (number, field.name, field.dataType)
            for number, field in enumerate(schema.fields)
            if any(_unit(kind) is not None for _, kind in types_inside(field.dataType, field.name))
        )
        return cls(columns) if columns else None

    def check(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaError: a value with digits, or fields, that its declared type does not have; names both.
        """
        for number, name, kind in self.columns:
            _check(batch.column(number), kind, name)


def _unit(kind: DataType) -> int | None:
    """The smallest step between two values of a type, in the unit of its Arrow type; None = that unit itself."""
    if type(kind).__name__ == "TimeType":  # since Spark 4.1
        digits = _NANOSECOND_DIGITS - int(kind.precision)  # type: ignore[attr-defined] # as above
        return 10**digits if digits > 0 else None
    if isinstance(kind, DayTimeIntervalType):
        return _MICROSECONDS_OF.get(kind.endField)
    return None


def _check(values: pa.Array, kind: DataType, path: str) -> None:
    unit = _unit(kind)
    if unit is not None:
        _check_unit(values, kind, unit, path)
    elif isinstance(kind, StructType):
        for inner, field in zip(values.flatten(), kind.fields, strict=True):
            _check(inner, field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check(values.flatten(), kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        keys, items = entries_of(values)
        _check(keys, kind.keyType, f"{path}.key")
        _check(items, kind.valueType, f"{path}.value")


def _check_unit(values: pa.Array, kind: DataType, unit: int, path: str) -> None:
    numbers = values.cast(pa.int64())
    remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, unit), unit))
    index = pc.index(pc.not_equal(remainder, 0), True).as_py()
    if index < 0:
        return
    declared = kind.simpleString().upper()
    if isinstance(kind, DayTimeIntervalType):
        value, wider = f"an interval of {values[index].as_py()}", "INTERVAL DAY TO SECOND"
    else:
        value, wider = (
            str(values.slice(index, 1).cast(pa.string())[0]),
            "more digits, or STRING",
        )
    raise SchemaError(
        f"column {path!r} holds {value}, which is not a value of {declared}, the type in Spark's schema. Spark would "
        f"show the value but cut it when it is written: read the column by .schema(...) with {wider}"
    )
