"""Records as rows: with Kafka's own columns, or with the fields of their values."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from spark_channel.connectors.exact_json import Number
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.records import Columns
from spark_channel.errors import SourceError

__all__ = ["METADATA", "fields_of", "own_batch", "own_schema", "value_batches"]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = pa.timestamp("us", "UTC")
_OWN = (
    ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
    ("offset", pa.int64()), ("timestamp", _TIMESTAMP), ("timestampType", pa.int32()),
)  # fmt: skip


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


def _headers(message: Message) -> list[dict[str, Any]] | None:
    found: Any = message.headers()
    return None if found is None else [{"key": name, "value": value} for name, value in found]


_READS: dict[str, Callable[[Message], Any]] = {
    "key": lambda message: message.key(),
    "value": lambda message: message.value(),
    "topic": lambda message: message.topic(),
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "timestamp": _micros,
    "timestampType": lambda message: message.timestamp()[0] - 1,
    "headers": _headers,
}
METADATA = {
    f"_{name}": _READS[name] for name in ("key", "value", "topic", "partition", "offset", "timestamp")
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
    return f"offset {message.offset()} of partition {message.partition()} of topic {message.topic()!r}"


def fields_of(message: Message, *, exact: bool) -> dict[str, Any]:
    """The fields of a JSON object. A record without a value, which deletes its key, has none."""
    value: Any = message.value()
    if value is None:
        return {}
    try:
        found = json.loads(value, parse_float=Number if exact else None)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{_place(message)}: the value is not JSON: {str(error)[:100]}. "
            "Read the topic with valueFormat=binary, or only the records that fit with 'beginOffsets'"
        ) from None
    if not isinstance(found, dict):
        raise SourceError(
            f"{_place(message)}: the value is JSON but not an object, so it has no columns. "
            "Read the topic with valueFormat=binary"
        )
    return found


def value_batches(
    options: KafkaReadOptions, schema: pa.Schema
) -> Callable[[Sequence[Message]], pa.RecordBatch]:
    """What makes batches of `schema` of records whose values are JSON or text."""
    columns = Columns(schema, options.rules, key="_offset")
    wanted = [name for name in METADATA if name in schema.names or name == "_offset"]
    cut = None if options.value_format == "json" else _Cut(options, schema)

    def record(message: Message) -> dict[str, Any]:
        made = fields_of(message, exact=True) if cut is None else cut.fields(message)
        for name in wanted:
            made[name] = METADATA[name](message)
        if made.get("_timestamp") is not None and "_timestamp" in wanted:
            made["_timestamp"] = _instant(message, made["_timestamp"])
        return made

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

        declared = schema if options.record_schema is None else declared_schema(options.record_schema)
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
            name: None if part == self._null else part for name, part in zip(self._names, parts, strict=True)
        }
