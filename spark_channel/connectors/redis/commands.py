"""The commands that write one row."""

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_channel.connectors.records.conversion import json_text, text_of
from spark_channel.connectors.redis.options import RedisWriteOptions
from spark_channel.errors import OptionError, SchemaError

__all__ = ["Command", "Commands"]

Command = tuple[bytes, ...]
_MOST = 1_000
"""Arguments of one command: a script of the server takes no more than some thousands."""


class Commands:
    """Makes the commands of rows of `schema`.

    Raises:
        OptionError: a column that the rows do not have. SchemaError: values without a text.
    """

    def __init__(self, options: RedisWriteOptions, schema: pa.Schema) -> None:
        self._options, self._zone = options, ZoneInfo(options.time_zone)
        score = () if options.score_column is None else (options.score_column,)
        others = {*options.key_columns, *score}
        self.values = options.value_columns or tuple(
            name for name in schema.names if name not in others
        )
        columns = set(schema.names)
        for option, names in (
            ("keyColumns", options.key_columns),
            ("valueColumns", self.values),
            ("scoreColumn", score),
        ):
            for name in names:
                if name not in columns:
                    raise OptionError(
                        f"option {option!r} names {name!r}, which the rows do not have; they have "
                        f"{', '.join(schema.names)}",
                        option=option,
                        got=name,
                        takes=", ".join(schema.names),
                    )
        self._check(schema)

    def _check(self, schema: pa.Schema) -> None:
        options = self._options
        if not options.key_columns:
            raise OptionError(
                "option 'keyColumns' is empty; it takes the columns of the key", option="keyColumns"
            )
        if len(options.key_columns) > 1 and not options.key_delimiter:
            raise OptionError(
                "option 'keyDelimiter' is empty, and with several columns in 'keyColumns' the key of ('a', 'bc') would "
                "be that of ('ab', 'c'); set it to a text that no value holds, such as ':'",
                option="keyDelimiter",
                got="",
            )
        if options.write_mode != "delete" and not self.values:
            raise OptionError(
                "no column is left for the value; name them in 'valueColumns'",
                option="valueColumns",
            )
        if (
            options.value_type in ("list", "set", "zset")
            and options.write_mode != "delete"
            and len(self.values) != 1
        ):
            raise OptionError(
                f"option 'valueColumns' names {', '.join(self.values)}; with valueType={options.value_type} it takes "
                "one column",
                option="valueColumns",
                got=", ".join(self.values),
                takes="one column",
            )
        for field in schema:
            if pa.types.is_duration(field.type) or pa.types.is_map(field.type):
                raise SchemaError(
                    f"column {field.name!r} of type {field.type} has no text; cast it to a string"
                )

    def commands(self, row: dict[str, Any]) -> list[Command]:
        """
        Raises:
            ValueError: a value that cannot be written.
        """
        options, key = self._options, self._key(row)
        if options.write_mode == "delete":
            if options.hash_fields is None:
                return [(b"DEL", key)]
            return [(b"HDEL", key, *(name.encode() for name in options.hash_fields))]
        commands: list[Command] = [(b"DEL", key)] if options.write_mode == "replace" else []
        commands += getattr(self, f"_{options.value_type}")(key, row)
        if options.expire_seconds is not None:
            commands.append((b"EXPIRE", key, str(options.expire_seconds).encode()))
        return commands

    def _key(self, row: dict[str, Any]) -> bytes:
        parts = []
        for name in self._options.key_columns:
            if row[name] is None:
                raise ValueError(f"key column {name!r} is NULL")
            parts.append(self._bytes(row[name]))
        delimiter = self._options.key_delimiter.encode()
        middle = delimiter.join(parts)
        if len(parts) > 1 and middle.split(delimiter) != parts:
            raise ValueError(
                f"key columns {', '.join(self._options.key_columns)} hold 'keyDelimiter' {delimiter.decode()!r}, so "
                f"other values may have the key {middle!r} too; set a delimiter that no value holds"
            )
        return self._options.key_prefix.encode() + middle + self._options.key_suffix.encode()

    def _bytes(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)].encode()
        try:
            text = text_of(value, self._zone)
            if isinstance(value, (dict, list)):
                json.loads(text, parse_constant=_refuse_constant)
            return text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text that is not Unicode") from None

    def _string(self, key: bytes, row: dict[str, Any]) -> Iterator[Command]:
        """A NULL is the absence of the key."""
        if len(self.values) > 1:
            values_shown = {name: self._plain(row[name]) for name in self.values}
            yield (
                b"SET",
                key,
                json.dumps(values_shown, ensure_ascii=False, allow_nan=False).encode(),
            )
        elif row[self.values[0]] is None:
            yield (b"DEL", key)
        else:
            yield (b"SET", key, self._bytes(row[self.values[0]]))

    def _plain(self, value: object) -> object:
        if isinstance(value, (dict, list)):
            return json.loads(json_text(value))
        return (
            value
            if value is None or isinstance(value, (bool, int, float))
            else self._bytes(value).decode()
        )

    def _hash(self, key: bytes, row: dict[str, Any]) -> Iterator[Command]:
        """A NULL is the absence of the field."""
        filled = [name for name in self.values if row[name] is not None]
        pairs = [part for name in filled for part in (name.encode(), self._bytes(row[name]))]
        yield from _cut((b"HSET", key), pairs)
        if self._options.write_mode == "upsert":
            yield from _cut(
                (b"HDEL", key), [name.encode() for name in self.values if row[name] is None]
            )

    def _list(self, key: bytes, row: dict[str, Any]) -> Iterator[Command]:
        yield from _cut((b"RPUSH", key), self._items(row))

    def _set(self, key: bytes, row: dict[str, Any]) -> Iterator[Command]:
        yield from _cut((b"SADD", key), self._items(row))

    def _items(self, row: dict[str, Any]) -> list[bytes]:
        value, delimiter = row[self.values[0]], self._options.value_delimiter
        if value is None:
            return []
        if delimiter and isinstance(value, str):
            return [part.encode() for part in value.split(delimiter)] if value else []
        items = value if isinstance(value, list) else [value]
        return [self._bytes(item) for item in items if item is not None]

    def _zset(self, key: bytes, row: dict[str, Any]) -> Iterator[Command]:
        assert self._options.score_column is not None
        score, member = row[self._options.score_column], row[self.values[0]]
        if member is None:
            return
        name = self._options.score_column
        try:
            number = float(score)
            exact = Decimal(repr(score) if isinstance(score, float) else score)
        except (ArithmeticError, TypeError, ValueError):
            number, exact = math.nan, Decimal()
        if math.isnan(number):
            raise ValueError(f"column {name!r}: {score!r} is not a score")
        if exact not in (Decimal(number), Decimal(repr(number))):
            raise ValueError(
                f"column {name!r}: {score} cannot be a score, which is a double: it would become {number!r}"
            )
        yield (b"ZADD", key, repr(number).encode(), self._bytes(member))


def _refuse_constant(name: str) -> None:
    """
    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} in a nested value, which JSON cannot hold")


def _cut(beginning: Command, parts: Sequence[bytes]) -> Iterator[Command]:
    for start in range(0, len(parts), _MOST):
        yield (*beginning, *parts[start : start + _MOST])
