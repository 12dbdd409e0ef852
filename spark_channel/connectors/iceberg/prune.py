"""Which data files `where` rules out, by the bounds that manifests have of whole numbers and dates."""

from collections.abc import Collection
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.literals import exact

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["value_ranges"]


def value_ranges(file: Any, schema: "Schema", columns: Any, names: Collection[str]) -> dict[str, ValueRange]:
    """The known ranges of the columns `names` in a data file; a column without bounds is omitted."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import DateType, IntegerType, LongType

    found = {}
    for name in names:
        field = schema.find_field(name)
        low = (file.lower_bounds or {}).get(field.field_id)
        high = (file.upper_bounds or {}).get(field.field_id)
        nulls = (file.null_value_counts or {}).get(field.field_id)
        if low is None or high is None or not isinstance(field.field_type, IntegerType | LongType | DateType):
            continue
        bounds: list[Any] = [from_bytes(field.field_type, each) for each in (low, high)]
        if isinstance(field.field_type, DateType):
            bounds = [date(1970, 1, 1) + timedelta(days=int(each)) for each in bounds]
        kind = columns.field(name).type
        found[name] = ValueRange(exact(bounds[0], kind), exact(bounds[1], kind), nulls, file.record_count)
    return found
