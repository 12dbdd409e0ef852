"""Values of text files: from text to Arrow's types, exactly."""

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.files.exact_types import SMALL_INT, merge_numbers
from spark_channel.connectors.files.options import TextReadOptions, strptime_pattern

__all__ = ["from_text", "merge_inferred", "needs_text", "plain_inferred"]

_ZONED = r"\d[T ]\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def needs_text(kind: pa.DataType, options: TextReadOptions) -> bool:
    """Whether a column of this type is read as text and made by `from_text`."""
    if pa.types.is_date(kind):
        return options.date_format is not None or not pa.types.is_date32(kind)
    if pa.types.is_timestamp(kind):
        return options.timestamp_format is not None or kind.tz is not None
    return False


def from_text(texts: pa.Array, kind: pa.DataType, options: TextReadOptions) -> pa.Array:
    """Dates and times of `kind` from their text.

    Raises:
        pa.ArrowInvalid: a text that is none.
    """
    if pa.types.is_date(kind):
        if options.date_format is None:
            return texts.cast(pa.date32()).cast(kind)
        days = pc.strptime(texts, format=strptime_pattern(options.date_format), unit="s")
        return days.cast(pa.date32()).cast(kind)
    naive = pa.timestamp("us")
    if options.timestamp_format is not None:
        times = pc.strptime(texts, format=strptime_pattern(options.timestamp_format), unit="us")
        return _in_zone(times.cast(naive), kind, options)
    if kind.tz is None:
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(pa.timestamp(kind.unit, kind.tz))
    if with_zone.null_count == texts.null_count:
        return with_zone
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(kind.unit))
    return pc.coalesce(with_zone, _in_zone(without, kind, options))


def _in_zone(times: pa.Array, kind: pa.DataType, options: TextReadOptions) -> pa.Array:
    if kind.tz is None:
        return times.cast(kind)
    if options.time_zone != "UTC":
        # The hour that a clock shows twice, or never, as Java reads it: the earlier offset.
        times = pc.assume_timezone(times, options.time_zone, ambiguous="earliest", nonexistent="latest")
    else:
        times = times.cast(pa.timestamp(times.type.unit, "UTC"))
    return times.cast(kind)


def plain_inferred(kind: pa.DataType) -> pa.DataType:
    """An inferred type as a reader gives it: times in microseconds, what is only null as text."""
    types = pa.types
    if kind == SMALL_INT:
        return pa.int64()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(plain_inferred(field.type)) for field in fields])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_inferred(kind.value_type)))
    if types.is_null(kind) or types.is_time(kind) or types.is_duration(kind) or types.is_binary(kind):
        return pa.string()
    return kind


def merge_inferred(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds what two samples found."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if (number := merge_numbers(one, other)) is not None:
        return number
    if types.is_struct(one) and types.is_struct(other):
        names = {one.field(i).name: one.field(i).type for i in range(one.num_fields)}
        for number in range(other.num_fields):
            field = other.field(number)
            names[field.name] = merge_inferred(names.get(field.name, pa.null()), field.type)
        return pa.struct(list(names.items()))
    if types.is_list(one) and types.is_list(other):
        return pa.list_(merge_inferred(one.value_type, other.value_type))
    times = [kind for kind in (one, other) if types.is_timestamp(kind)]
    if times and all(types.is_timestamp(kind) or types.is_date(kind) for kind in (one, other)):
        zones = {kind.tz for kind in times}
        return pa.timestamp("us", times[0].tz) if len(zones) == 1 else pa.string()
    return pa.string()
