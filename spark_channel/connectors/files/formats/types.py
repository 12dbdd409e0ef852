"""The types as which a file's columns are read: plain ones that targets hold, and text for what has a text form.

Values are checked after a file library returned them: it copies bytes that are not text and times outside a day,
and trusts the offsets of Arrow files.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

import pyarrow as pa

from spark_channel.arrow_schema import is_list, rebuild
from spark_channel.connectors.files.formats.base import ReadRequest, inner_types
from spark_channel.errors import SchemaError, SourceError
from spark_channel.lazy import compute as pc

__all__ = [
    "INSTANT",
    "UTC",
    "Julian",
    "as_spark",
    "as_type",
    "check_types",
    "check_values",
    "checked",
    "first_julian",
    "leaf_columns",
    "map_leaves",
    "map_type",
    "picked",
    "plain_leaf",
    "renamed",
    "temporal_leaves",
    "text_leaves",
]

INSTANT = pa.timestamp("us", "UTC")
Notes = Mapping[bytes, bytes] | None
"""The metadata of a field."""
Change = Callable[[pa.DataType, Notes], pa.DataType]

_UUID_BYTES = 16
_DECIMAL128_BITS = 128
_HEX_EDGES = (0, 8, 12, 16, 20, 32)
_FIRST_GREGORIAN = -141_427
"""1582-10-15 in days since 1970."""
_FIRST_SURE = -2_208_988_800_000_000
"""1900-01-01 in microseconds: before it, Java's old and new classes know other offsets of zones."""
_EPOCH = date(1970, 1, 1)
_DAY = 86_400_000_000
UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Z", "+00:00", "UCT", "Zulu"})

_PART = 64 << 10
_VALIDATED = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_time)


def map_leaves(field: pa.Field, change: Change) -> pa.Field:
    """`field` with each type inside it that is not nested as `change` says. They are asked for in a file's order."""
    return pa.field(field.name, map_type(field.type, change, field.metadata), field.nullable)


def map_type(kind: pa.DataType, change: Change, notes: Notes = None) -> pa.DataType:
    """The same of one type, whose field has `notes`."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([map_leaves(field, change) for field in kind])
    if types.is_map(kind):
        key = map_leaves(kind.key_field, change)
        return pa.map_(key, map_leaves(kind.item_field, change))
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(map_leaves(kind.value_field, change))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(map_leaves(kind.value_field, change))
    if types.is_fixed_size_list(kind):
        return pa.list_(map_leaves(kind.value_field, change), kind.list_size)
    if isinstance(kind, pa.BaseExtensionType) and types.is_nested(kind.storage_type):
        return map_type(kind.storage_type, change, notes)
    return change(kind, notes)


def leaf_columns(schema: pa.Schema) -> list[int]:
    """The number of the column in which each leaf of a file is, in the file's order.

    The path of a leaf does not say it: a column `a.b` and the field `b` of a column `a` have the same one.
    """
    numbers: list[int] = []
    for number, field in enumerate(schema):

        def note(kind: pa.DataType, _notes: Notes, number: int = number) -> pa.DataType:
            numbers.append(number)
            return kind

        map_leaves(field, note)
    return numbers


def renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """`batch` of a file's columns with their names in the source."""
    source_names = [names[name] for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(batch.columns, names=source_names)


def picked(batch: pa.RecordBatch, columns: Sequence[str], label: str) -> pa.RecordBatch:
    """`batch` with these columns. A library that takes a name for a path brings other ones, too, or leaves it out.

    Raises:
        SourceError: a column did not come.
    """
    missing = [name for name in columns if batch.schema.names.count(name) != 1]
    if missing:
        raise SourceError(
            f"{label}: column {missing[0]!r} was asked for and did not come: the file's library takes its name for a "
            "path. Give the column a name without dots where the file is written"
        )
    return batch.select(list(columns))


def plain_leaf(kind: pa.DataType, notes: Notes = None) -> pa.DataType:
    """The type as which values of `kind` are read. Nested types are for `map_leaves`."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        name = kind.extension_name
        if name in ("arrow.uuid", "arrow.json"):
            return pa.string()
        return pa.bool_() if name == "arrow.bool8" else plain_leaf(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return map_type(kind.value_type, plain_leaf, notes)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.bit_width < _DECIMAL128_BITS:
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def as_spark(kind: pa.DataType, spark: str) -> pa.DataType | None:
    """The type of a number in a file that Spark notes as one of its own types; None = it is not of these."""
    if spark.startswith("interval"):
        if pa.types.is_int64(kind):
            return pa.duration("us")
        if pa.types.is_int32(kind):
            return pa.string()  # of months
    return None


def as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """`values` of a file as the type that `plain_leaf`, or the file's format, says for them."""
    types = pa.types
    if values.type.equals(kind):
        return values
    if isinstance(values, pa.ExtensionArray):
        return as_type(values.storage, kind)
    if types.is_run_end_encoded(values.type):
        return as_type(pc.run_end_decode(values), kind)
    if types.is_dictionary(values.type):
        return as_type(values.dictionary_decode(), kind)
    if types.is_integer(values.type) and types.is_temporal(kind):
        return values.view(kind)  # of microseconds, or of what the type says
    if types.is_integer(values.type) and types.is_string(kind):
        months = values.to_pylist()
        return pa.array([None if m is None else _interval_text((m, 0, 0)) for m in months], kind)
    if types.is_fixed_size_binary(values.type) and types.is_string(kind):
        text = _uuid_text if values.type.byte_width == _UUID_BYTES else _parquet_interval_text
        texts = [None if value is None else text(value) for value in values.to_pylist()]
        return pa.array(texts, kind)
    if types.is_struct(kind) or types.is_map(kind) or is_list(kind):
        return rebuild(values, kind, as_type)
    if types.is_timestamp(kind) and types.is_timestamp(values.type) and kind.tz:
        return values.view(pa.timestamp(values.type.unit, kind.tz)).cast(kind)
    return values.cast(kind)


def _uuid_text(value: bytes) -> str:
    digits = value.hex()
    return "-".join(digits[a:b] for a, b in pairwise(_HEX_EDGES))


def _parquet_interval_text(value: bytes) -> str | None:
    months, days, milliseconds = (int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8))
    return _interval_text((months, days, milliseconds * 1_000_000))


def _interval_text(value: tuple[int, int, int] | None) -> str | None:
    """In ISO 8601, as databases read it: P14M3DT5.5S."""
    if value is None:
        return None
    months, days, nanoseconds = value
    sign = "-" if nanoseconds < 0 else ""
    whole, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    seconds = f"{whole}.{fraction:09}".rstrip("0") if fraction else str(whole)
    text = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    if nanoseconds or not text:
        text += f"T{sign}{seconds}S"
    return f"P{text}"


def check_types(schema: pa.Schema, path: str) -> pa.Schema:
    """Return `schema`, whose names are text and whose types pyarrow all knows.

    Raises:
        SchemaError: names the column, whose type may be an interval of months, which has no class in pyarrow.
    """
    for number, field in enumerate(schema, 1):
        try:
            for _, kind in inner_types(field.name, field.type):
                pa.nulls(0, kind)
        except pa.ArrowNotImplementedError:
            continue  # a class there is, but it makes no NULLs
        except UnicodeDecodeError as error:
            raise SchemaError(
                f"{path}: the name of column {number}, or of a field in it, is not UTF-8: {error.object!r}. "
                "Write the file again with another name"
            ) from error
        except KeyError as error:
            raise SchemaError(
                f"{path}: column {field.name!r} ({field.type}) has a type that pyarrow cannot represent. Cast it to "
                "another type where the file is written"
            ) from error
    return schema


def checked(
    batch: pa.RecordBatch,
    request: ReadRequest,
    names: Mapping[str, str],
    readable: pa.Schema,
    *,
    decoded: bool,
) -> pa.RecordBatch:
    """Return `batch` in the types of `readable`, the columns of its file. Its text is UTF-8.

    A column that is wanted as binary may hold any bytes, and keeps them. `names`: see `pick`.
    `decoded`: the library computed the offsets. Those of an Arrow file come from the file, and are checked.

    Raises:
        SourceError: names the column.
    """
    as_bytes = {name for name, column in names.items() if _is_bytes(column, request.schema)}
    _check_values(batch, as_bytes, request.shown, decoded=decoded)
    columns = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        kind = readable.field(name).type
        same = values.type.equals(kind)
        if same or (pa.types.is_string(kind) and name in as_bytes):
            columns.append(values)
            continue
        try:
            columns.append(as_type(values, kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"{request.shown}: column {name!r} ({values.type}) cannot be read as {kind}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def check_values(batch: pa.RecordBatch, schema: pa.Schema, label: str, *, decoded: bool) -> None:
    """
    Raises:
        SourceError: text that is not UTF-8 in a column that is not `schema` as binary, a time that no day has, or
            offsets that are wrong.
    """
    as_bytes = {name for name in batch.schema.names if _is_bytes(name, schema)}
    _check_values(batch, as_bytes, label, decoded=decoded)


def _check_values(
    batch: pa.RecordBatch, as_bytes: Collection[str], label: str, *, decoded: bool
) -> None:
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            _check(values, decoded=decoded, any_bytes=name in as_bytes)
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            fix = (
                "; to read its bytes, give a schema in which it is binary"
                if "UTF8" in reason
                else ""
            )
            raise SourceError(
                f"{label}: column {name!r} ({values.type}) holds a value that is not valid: {reason}{fix}"
            ) from error


def _check(values: pa.Array, *, decoded: bool, any_bytes: bool) -> None:
    """Raises pa.ArrowInvalid. Looks at no more than it must: a full validation takes 5 ns for each text or time."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if not decoded:
            values.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).validate(
                full=True
            )
        if any_bytes or _is_ascii(values):
            return
    elif decoded and not any(is_kind(kind) for is_kind in _VALIDATED):
        return
    values.validate(full=True)


def _is_bytes(name: str, schema: pa.Schema) -> bool:
    index = schema.get_field_index(name)
    if index < 0:
        return False
    kind = schema.field(index).type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_ascii(values: pa.Array) -> bool:
    _, offsets, data = values.buffers()
    if not len(values) or data is None or offsets is None:  # no offsets are needed for no values
        return True
    edges = memoryview(offsets).cast("i" if pa.types.is_string(values.type) else "q")
    start, end = edges[values.offset], edges[values.offset + len(values)]
    return all(
        data.slice(at, min(_PART, end - at)).to_pybytes().isascii()
        for at in range(start, end, _PART)
    )


@dataclass(frozen=True, slots=True)
class Julian:
    """What a file says of its days before 1582-10-15: they are of the Julian calendar.

    `zone`: where its times were local when they were written; None = not known. `holds`: the columns, at any depth,
    for which this is so are those with types for which it is true.
    """

    zone: str | None
    holds: Callable[[str], bool]

    def rebased(self, batch: pa.RecordBatch, label: str) -> pa.RecordBatch:
        """The same dates and times in the Gregorian calendar, as Spark reads them.

        Raises:
            SourceError: an old time in another zone than UTC, or an old date inside another value; names the column.
        """
        columns = [
            self._rebased(values, name, label) if self.holds(name) else values
            for name, values in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _rebased(self, values: pa.Array, name: str, label: str) -> pa.Array:
        kind = values.type
        if pa.types.is_date32(kind):
            days = values.view(pa.int32())
            if (pc.min(days).as_py() or 0) >= _FIRST_GREGORIAN:
                return values
            return _gregorian(days).view(kind)
        if pa.types.is_timestamp(kind) and kind.tz:
            micros = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
            oldest = pc.min(micros).as_py() or 0
            if oldest >= _FIRST_SURE:
                return values
            if self.zone not in UTC:
                raise SourceError(
                    f"{label}: column {name!r} holds {pa.scalar(oldest, pa.timestamp('us'))}, a time before 1900 in "
                    f"the calendar and the zone ({self.zone or 'not known'}) of an old version of Spark or Hive, "
                    "which cannot be converted exactly. Write the file again as Parquet with Spark 3 or later"
                )
            midnights = pc.floor_temporal(micros.view(pa.timestamp("us")), unit="day")
            days = midnights.cast(pa.date32()).view(pa.int32())
            moved = pc.subtract(_gregorian(days), days)
            return (
                pc.add(micros, pc.multiply(moved.cast(pa.int64()), _DAY))
                .view(pa.timestamp("us", kind.tz))
                .cast(kind)
            )
        if pa.types.is_nested(kind):
            for leaf in temporal_leaves(values):
                self._check_new(leaf, name, label)
        return values

    def check(self, batch: pa.RecordBatch, label: str) -> None:
        """
        Raises:
            SourceError: a date or time of the Julian calendar; names the column.
        """
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if self.holds(name):
                for leaf in temporal_leaves(values):
                    self._check_new(leaf, name, label)

    def _check_new(self, leaf: pa.Array, name: str, label: str) -> None:
        if not self._rebased(leaf, name, label).equals(leaf):
            raise SourceError(
                f"{label}: column {name!r} holds {pc.min(leaf)} inside another value, in the Julian calendar of "
                "Hive and old versions of Spark. Write the file again as Parquet with Spark 3 or later"
            )


def first_julian(leaf: pa.Array) -> object:
    """A date of `leaf` for which calendars differ; None = there is none."""
    if not pa.types.is_date32(leaf.type):
        return None
    oldest = pc.min(leaf.view(pa.int32())).as_py()
    is_julian = oldest is not None and oldest < _FIRST_GREGORIAN
    return pc.min(leaf).as_py() if is_julian else None


def temporal_leaves(values: pa.Array) -> list[pa.Array]:
    """The dates and timestamps in `values`, at any depth."""
    return _leaves(values, lambda kind: pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def text_leaves(values: pa.Array) -> list[pa.Array]:
    """The texts in `values`, at any depth."""
    return _leaves(values, lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _leaves(values: pa.Array, is_wanted: Callable[[pa.DataType], bool]) -> list[pa.Array]:
    kind = values.type
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        values = values.cast(pa.list_(entry))
    if pa.types.is_struct(kind):
        return [leaf for child in values.flatten() for leaf in _leaves(child, is_wanted)]
    if pa.types.is_nested(values.type):
        return _leaves(values.flatten(), is_wanted)
    return [values] if is_wanted(kind) else []


def _gregorian(days: pa.Int32Array) -> pa.Int32Array:
    """Days since 1970 of the same year, month and day; those before 1582-10-15 are Julian."""
    coded = days.dictionary_encode()
    gregorian = [
        day if day >= _FIRST_GREGORIAN else _one_gregorian(day)
        for day in coded.dictionary.to_pylist()
    ]
    return pa.array(gregorian, pa.int32()).take(coded.indices)


def _one_gregorian(day: int) -> int:
    # Richards' algorithm, from the number of the Julian day.
    count = day + 2_440_588 + 32_082
    years = (4 * count + 3) // 1461
    day_of_cycle = count - 1461 * years // 4
    months = (5 * day_of_cycle + 2) // 153
    year, month = years - 4800 + months // 10, months + 3 - 12 * (months // 10)
    of_month = day_of_cycle - (153 * months + 2) // 5
    # The years 1000, 1100, ... have a 29 February in the Julian calendar alone: Spark makes it 1 March.
    return (date(year, month, 1) + timedelta(of_month) - _EPOCH).days
