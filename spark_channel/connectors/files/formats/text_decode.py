"""Values of text files: from text to Arrow's types, exactly."""

import pyarrow as pa

from spark_channel.connectors.base.types import SMALL_INT, merge_numbers
from spark_channel.connectors.files.formats.types import Notes, map_type
from spark_channel.connectors.files.options import TextReadOptions
from spark_channel.lazy import compute as pc
from spark_channel.transform.time_patterns import TimePattern

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
        times = TimePattern.from_text(options.date_format).parse(texts)
        days = times.cast(pa.date32(), safe=False)
        if not pc.all(pc.equal(days.cast(times.type), times), min_count=0).as_py():
            raise pa.ArrowInvalid("a date with a time of day")
        return days.cast(kind)
    if options.timestamp_format is not None:
        times = TimePattern.from_text(options.timestamp_format).parse(texts)
        if times.type.tz is None:
            return _in_zone(times, kind, options)
        if kind.tz is None:
            raise pa.ArrowInvalid("a time with a zone, for a column without one")
        return times.cast(kind)
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
        times = pc.assume_timezone(
            times, options.time_zone, ambiguous="earliest", nonexistent="latest"
        )
    else:
        times = times.cast(pa.timestamp(times.type.unit, "UTC"))
    return times.cast(kind)


def plain_inferred(kind: pa.DataType) -> pa.DataType:
    """An inferred type as a reader gives it: times in microseconds, what is only null as text."""
    return map_type(kind, _plain_inferred)


def _plain_inferred(kind: pa.DataType, _notes: Notes) -> pa.DataType:
    types = pa.types
    if kind == SMALL_INT:
        return pa.int64()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    others = (types.is_null, types.is_time, types.is_duration, types.is_binary)
    return pa.string() if any(is_other(kind) for is_other in others) else kind


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
