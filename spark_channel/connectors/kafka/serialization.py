"""Converts Kafka's records to rows, and rows to records."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Message

from spark_channel.connectors.files.formats.json import JsonEncoder, JsonFormat
from spark_channel.connectors.files.formats.text_encode import has_bytes, value_text
from spark_channel.connectors.files.options import JsonWriteOptions
from spark_channel.connectors.kafka.options import KafkaReadOptions, KafkaWriteOptions
from spark_channel.connectors.records import Columns
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.lazy import compute as pc
from spark_channel.serialization import Number

__all__ = [
    "METADATA",
    "Record",
    "Records",
    "fields_of",
    "own_batch",
    "own_schema",
    "record_maker",
    "value_batches",
]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = pa.timestamp("us", "UTC")
_OWN = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIMESTAMP),
    ("timestampType", pa.int32()),
)
_TEXT = pa.large_string()
_ANY = -1
"""The partition that the client chooses."""


def own_schema(options: KafkaReadOptions) -> pa.Schema:
    """As Spark's own source names them."""
    headers = [("headers", HEADERS)] if options.include_headers else []
    return pa.schema([*_OWN, *headers])


def _micros(message: Message) -> int | None:
    kind, millis = message.timestamp()
    if kind == 0:
        return None
    if abs(millis) >= 1 << 53:
        raise _strange(message)
    return millis * 1000


def _decoded_headers(message: Message) -> list[dict[str, Any]] | None:
    headers: Any = message.headers()
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


_READS: dict[str, Callable[[Message], Any]] = {
    "key": lambda message: message.key(),
    "value": lambda message: message.value(),
    "topic": lambda message: message.topic(),
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "timestamp": _micros,
    "timestampType": lambda message: message.timestamp()[0] - 1,
    "headers": _decoded_headers,
}
METADATA = {
    f"_{name}": _READS[name]
    for name in ("key", "value", "topic", "partition", "offset", "timestamp")
}
"""Columns of `schema` that are not of the value."""


def own_batch(schema: pa.Schema, page: Sequence[Message]) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        read = _READS[field.name]
        values = [read(message) for message in page]
        if pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _place(message: Message) -> str:
    return (
        f"offset {message.offset()} of partition {message.partition()} of topic {message.topic()!r}"
    )


def fields_of(message: Message, *, exact: bool) -> dict[str, Any]:
    """The fields of a JSON object. A record without a value, which deletes its key, has none."""
    value: Any = message.value()
    if value is None:
        return {}
    try:
        fields = json.loads(value, parse_float=Number if exact else None)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{_place(message)}: the value is not JSON: {str(error)[:100]}. "
            "Read the topic with valueFormat=binary, or only the records that fit with 'beginOffsets'"
        ) from None
    if not isinstance(fields, dict):
        raise SourceError(
            f"{_place(message)}: the value is JSON but not an object, so it has no columns. "
            "Read the topic with valueFormat=binary"
        )
    return fields


def value_batches(
    options: KafkaReadOptions, schema: pa.Schema
) -> Callable[[Sequence[Message]], pa.RecordBatch]:
    """Return a function that makes batches of `schema` from records whose values are JSON or text."""
    columns = Columns(schema, options.rules, key="_offset")
    metadata = [name for name in METADATA if name in schema.names or name == "_offset"]
    cut = None if options.value_format == "json" else _Cut(options, schema)

    def record(message: Message) -> dict[str, Any]:
        fields = fields_of(message, exact=True) if cut is None else cut.fields(message)
        for name in metadata:
            fields[name] = METADATA[name](message)
        if fields.get("_timestamp") is not None and "_timestamp" in metadata:
            fields["_timestamp"] = _instant(message, fields["_timestamp"])
        return fields

    return lambda page: columns.batch([record(message) for message in page])


def _instant(message: Message, micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _strange(message) from None


def _strange(message: Message) -> SourceError:
    return SourceError(
        f"{_place(message)}: its time, {message.timestamp()[1]} ms since 1970, is too large: "
        "a producer may count in other units. Leave the time out, with 'columns' or 'schema'"
    )


class _Cut:
    """Cuts texts into the columns of the schema that is declared, also where only some of them are read."""

    def __init__(self, options: KafkaReadOptions, schema: pa.Schema) -> None:
        from spark_channel.connectors.records import declared_schema

        declared = (
            schema if options.record_schema is None else declared_schema(options.record_schema)
        )
        self._names = [name for name in declared.names if name not in METADATA]
        self._delimiter, self._null = options.delimiter, options.null_value

    def fields(self, message: Message) -> dict[str, Any]:
        value: Any = message.value()
        if value is None or not self._names:
            return {}
        try:
            parts = value.decode().split(self._delimiter)
        except UnicodeDecodeError:
            raise SourceError(
                f"{_place(message)}: the value is not UTF-8; read the topic with valueFormat=binary"
            ) from None
        if len(parts) != len(self._names):
            raise SourceError(
                f"{_place(message)}: the value has {len(parts)} parts at {self._delimiter!r}, and 'schema' names "
                f"{len(self._names)}; check 'delimiter' and 'schema', or read the topic with valueFormat=binary"
            )
        return {
            name: None if part == self._null else part
            for name, part in zip(self._names, parts, strict=True)
        }


class Record(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a batch, by the number of their row, and the rows that are none: (number, why)."""

    made: Sequence[tuple[int, Record]]
    refused: Sequence[tuple[int, str]]


def record_maker(options: KafkaWriteOptions, schema: pa.Schema) -> "_OwnColumns | _Texts":
    """
    Raises:
        SchemaError: a column that has no place in a record. OptionError: a name that is not a column.
    """
    return (
        _OwnColumns(options, schema)
        if options.value_format == "binary"
        else _Texts(options, schema)
    )


class _OwnColumns:
    """Rows with Kafka's own columns, as Spark's sink takes them."""

    def __init__(self, options: KafkaWriteOptions, schema: pa.Schema) -> None:
        self._options = options
        checks = {
            "value": (has_bytes, "STRING or BINARY"),
            "key": (has_bytes, "STRING or BINARY"),
            "topic": (
                lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
                "STRING",
            ),
            "partition": (pa.types.is_integer, "INT"),
            "headers": (_is_headers, "ARRAY<STRUCT<key STRING, value BINARY>>"),
        }
        for field in schema:
            if field.name not in checks:
                raise SchemaError(
                    f"column {field.name!r} has no place in a record: valueFormat=binary takes the columns "
                    f"{', '.join(checks)}. Select those, or write the rows with valueFormat=json"
                )
            fits, takes = checks[field.name]
            if not fits(field.type):
                raise SchemaError(f"column {field.name!r} has type {field.type}; it takes {takes}")
        if "value" not in schema.names:
            raise SchemaError(
                "the rows have no column 'value'; rename one, or write the rows with valueFormat=json"
            )
        if options.topic is None and "topic" not in schema.names:
            raise OptionError(
                "option 'topic' is missing, and the rows have no column 'topic'", option="topic"
            )
        for name, value in (("topic", options.topic), ("partition", options.partition)):
            if value is not None and name in schema.names:
                raise OptionError(
                    f"option {name!r} got {value!r}, and the rows have a column {name!r}: omit one of them",
                    option=name,
                    got=str(value),
                )

    def records(self, batch: pa.RecordBatch) -> Records:
        rows = batch.num_rows
        columns = {name: batch.column(i).to_pylist() for i, name in enumerate(batch.schema.names)}
        none = [None] * rows
        topics = columns.get("topic") or [self._options.topic] * rows
        partitions = columns.get("partition", [self._options.partition] * rows)
        records: list[tuple[int, Record]] = []
        refused: list[tuple[int, str]] = []
        parts = zip(
            topics,
            partitions,
            columns.get("key", none),
            columns["value"],
            columns.get("headers", none),
            strict=True,
        )
        for number, (topic, partition, key, value, headers) in enumerate(parts):
            if not topic:
                refused.append((number, "column 'topic' is NULL or empty"))
            elif partition is not None and not 0 <= partition < 1 << 31:
                refused.append(
                    (number, f"column 'partition': no partition has the number {partition}")
                )
            else:
                record = Record(
                    topic,
                    _ANY if partition is None else partition,
                    _bytes(key),
                    _bytes(value),
                    _encoded_headers(headers),
                )
                records.append((number, record))
        return Records(records, refused)


def _is_headers(kind: pa.DataType) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(
        kind.value_type
    ):
        return False
    parts = {field.name: field.type for field in kind.value_type}
    return (
        set(parts) == set(HEADERS.value_type.names)
        and types.is_string(parts["key"])
        and has_bytes(parts["value"])
    )


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _encoded_headers(value: Any) -> list[tuple[str, bytes | None]] | None:
    return (
        None
        if value is None
        else [(header["key"] or "", _bytes(header["value"])) for header in value if header]
    )


class _Texts:
    """Rows as JSON objects, or as joined texts; the key is made of some of their columns."""

    def __init__(self, options: KafkaWriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._values = options.value_columns or tuple(schema.names)
        self._keys = options.key_columns or ()
        columns = set(schema.names)
        for option, names in (("keyColumns", self._keys), ("valueColumns", self._values)):
            for name in names:
                if name not in columns:
                    raise OptionError(
                        f"option {option!r} names {name!r}, which the rows do not have; they have "
                        f"{', '.join(schema.names)}",
                        option=option,
                        got=name,
                        takes=", ".join(schema.names),
                    )
        json, plain = options.value_format == "json", JsonFormat()
        for name in self._values:
            kind = schema.field(name).type
            if not (plain.carries(kind) if json else _has_text(kind)):
                raise SchemaError(
                    f"column {name!r} of type {kind} has no text; cast it to a string, such as hex()"
                )
        for name in self._keys:
            kind = schema.field(name).type
            whole = len(self._keys) == 1 and (
                pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
            )
            if not _has_text(kind) and not whole:
                raise SchemaError(
                    f"key column {name!r} of type {kind} has no text; cast it to a string"
                )

    def records(self, batch: pa.RecordBatch) -> Records:
        if not batch.num_rows:
            return Records((), ())
        options, keys = self._options, self._made_keys(batch)
        values = self._objects(batch) if options.value_format == "json" else self._joined(batch)
        topic, partition = (
            options.topic or "",
            _ANY if options.partition is None else options.partition,
        )
        records: list[tuple[int, Record]] = []
        refused: list[tuple[int, str]] = []
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            if key is None and len(self._keys) > 1:
                refused.append((number, f"one of the key columns {', '.join(self._keys)} is NULL"))
            else:
                records.append((number, Record(topic, partition, key, value, None)))
        return Records(records, refused)

    def _objects(self, batch: pa.RecordBatch) -> list[bytes]:
        options = JsonWriteOptions(path="-", ignore_null_fields=self._options.ignore_null_fields)
        chosen, lines = batch.select(self._values), io.BytesIO()
        encoder = JsonEncoder(lines, chosen.schema, options)
        encoder.write(chosen)
        # A line end inside a value is written as an escape.
        return lines.getvalue().split(b"\n")[: batch.num_rows]

    def _joined(self, batch: pa.RecordBatch) -> list[bytes]:
        texts = [
            pc.fill_null(self._text(batch.column(name)), self._options.null_value)
            for name in self._values
        ]
        lines = pc.binary_join_element_wise(*texts, pa.scalar(self._options.delimiter, _TEXT))
        return lines.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return] # pyarrow is untyped

    def _made_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        if not self._keys:
            return [None] * batch.num_rows
        first = batch.column(self._keys[0])
        if len(self._keys) == 1 and not _has_text(first.type):
            return first.to_pylist()  # type: ignore[no-any-return] # pyarrow is untyped
        texts = [self._text(batch.column(name)) for name in self._keys]
        joined = pc.binary_join_element_wise(*texts, pa.scalar(self._options.key_delimiter, _TEXT))
        return joined.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return] # pyarrow is untyped

    def _text(self, values: pa.Array) -> pa.Array:
        kind, types = values.type, pa.types
        if types.is_timestamp(kind):
            local = (
                values
                if kind.tz is None
                else pc.local_timestamp(
                    values.cast(pa.timestamp(kind.unit, self._options.time_zone))
                )
            )
            return local.cast(_TEXT)
        if types.is_string(kind) or types.is_large_string(kind):
            return values.cast(_TEXT)
        return value_text(values)


def _has_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
    )
