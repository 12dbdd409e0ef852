"""Reads keys by SCAN, and their values in pipelines. Each field of a hash is a column."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
import redis

from spark_channel.connectors.records import Columns, RecordReader, inferred_schema
from spark_channel.connectors.records.conversion import json_text
from spark_channel.connectors.redis.client import connected
from spark_channel.connectors.redis.options import RedisReadOptions
from spark_channel.connectors.redis.staging import OWN_KEYS
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["RedisReader"]

_ROWS = 1_000
_FIELDS = 10_000
"""Most names of fields in one command."""
KEY, TYPE, TTL, VALUE, FIELD_TTL = _OWN = ("_key", "_type", "_ttl_ms", "_value", "_field_ttl_ms")
_READS: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda pipeline, key: pipeline.get(key),
    "hash": lambda pipeline, key: pipeline.hgetall(key),
    "list": lambda pipeline, key: pipeline.lrange(key, 0, -1),
    "set": lambda pipeline, key: pipeline.smembers(key),
    "zset": lambda pipeline, key: pipeline.zrange(key, 0, -1, withscores=True),
}

_GONE = -2


class RedisReader(RecordReader):
    """See `RedisReadOptions`. One split: a cursor of SCAN cannot be cut."""

    Options: ClassVar[type[ReadOptions]] = RedisReadOptions
    options: RedisReadOptions
    _has_field_ttls = True  # until the server says that it has none

    @property
    def _place(self) -> str:
        return self.options.address

    def resource_mark(self, split: Split) -> str | None:
        return self.options.host

    def _sampled(self) -> pa.Schema:
        with connected(self.options, SourceError) as client:
            some: list[dict[str, Any]] = []
            for page in self._pages(client, min(_ROWS, self.options.sample_rows), None):
                some += page
                if len(some) >= self.options.sample_rows:
                    break
        if not some:
            raise SourceError(
                f"{self.options.address} has no keys that match {self.options.keys!r}, so the columns are not known: "
                f"name them with option 'schema', such as {KEY} STRING, {VALUE} STRING"
            )
        return inferred_schema(some)

    def split(self, advice: int) -> list[Split]:
        with connected(self.options, SourceError) as client:
            if next(self._keys(client, _ROWS), None) is None:
                return []
            whole = (
                self.options.keys == "*"
                and self.options.key_type is None
                and not self.options.cluster
            )
            return [Split({}, client.dbsize() if whole else None)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        columns = Columns(self.schema(), self.options.rules, key=KEY)
        size = max(1, min(_ROWS, self.fetch_size.rows or _ROWS))
        with connected(self.options, SourceError) as client:
            for page in self._pages(client, size, set(columns.schema.names)):
                yield columns.batch(page)

    def _keys(self, client: Any, size: int) -> Iterator[bytes]:
        """Without the claims of writes, unless they are asked for."""
        are_claims = self.options.keys.startswith(OWN_KEYS.decode())
        for key in client.scan_iter(
            match=self.options.keys, count=size, _type=self.options.key_type
        ):
            if are_claims or not key.startswith(OWN_KEYS):
                yield key

    def _pages(
        self, client: Any, size: int, columns: set[str] | None
    ) -> Iterator[list[dict[str, Any]]]:
        """Records of `size` keys. A key that is removed meanwhile is left out."""
        keys = self._keys(client, size)
        while some := list(dict.fromkeys(islice(keys, size))):
            with client.pipeline(transaction=False) as pipeline:
                for key in some:
                    pipeline.type(key)
                    pipeline.pttl(key)
                answers = pipeline.execute()
            kinds = [answer.decode() for answer in answers[::2]]
            with client.pipeline(transaction=False) as pipeline:
                for key, kind in zip(some, kinds, strict=True):
                    if kind == "none":
                        pipeline.exists(key)
                    elif kind not in _READS:
                        raise SourceError(
                            f"{self.options.address}: key {key!r} is a {kind}, which no column can hold; leave "
                            "it out with 'keys' or 'keyType'"
                        )
                    else:
                        _READS[kind](pipeline, key)
                # The server refuses the command for a key whose type has changed in between.
                values = pipeline.execute()
            hashes = {
                key: value
                for key, kind, value in zip(some, kinds, values, strict=True)
                if kind == "hash"
            }
            expiring = self._expiring(client, hashes, columns)
            page = [
                _record(key, kind, ttl, value, columns, expiring.get(key, {}), self.options.address)
                for key, kind, ttl, value in zip(some, kinds, answers[1::2], values, strict=True)
                if kind != "none" and value not in (None, {}, [], set())
            ]
            if page:
                yield page

    def _expiring(
        self, client: Any, hashes: dict[bytes, dict[bytes, bytes]], columns: set[str] | None
    ) -> dict[bytes, dict[bytes, int]]:
        """By key, the milliseconds after which fields expire that have such a time of their own.

        A field that is gone since its hash was read is taken out of `hashes`. Redis has these times since 7.4, Valkey
        since 9.0.
        """
        every = columns is None or not columns.isdisjoint((VALUE, FIELD_TTL))
        field_names: list[tuple[bytes, list[bytes]]] = []
        for key, fields in hashes.items():
            names = [name for name in fields if every or _plain(name) in (columns or ())]
            field_names += [
                (key, names[start : start + _FIELDS]) for start in range(0, len(names), _FIELDS)
            ]
        if not field_names or not self._has_field_ttls:
            return {}
        try:
            with client.pipeline(transaction=False) as pipeline:
                for key, names in field_names:
                    pipeline.execute_command("HPTTL", key, "FIELDS", len(names), *names)
                answers = pipeline.execute()
        except redis.RedisError as error:
            if not _is_unknown_command(error):
                raise
            self._has_field_ttls = False
            return {}
        expiring: dict[bytes, dict[bytes, int]] = {}
        for (key, names), answer in zip(field_names, answers, strict=True):
            for name, ttl in zip(names, answer or [_GONE] * len(names), strict=True):
                if ttl == _GONE:
                    del hashes[key][name]
                elif ttl >= 0:
                    expiring.setdefault(key, {})[name] = ttl
        return expiring


def _is_unknown_command(error: Exception) -> bool:
    """Whether HPTTL is not a command of the server. With `cluster`, the driver looks for it before it is sent."""
    messages = ("unknown command", "command doesn't exist")
    return "HPTTL" in str(error) and any(message in str(error).lower() for message in messages)


def _record(
    key: bytes,
    kind: str,
    ttl: int,
    value: Any,
    columns: set[str] | None,
    expiring: dict[bytes, int],
    address: str,
) -> dict[Any, Any]:
    """`columns` None: of a sample, where all columns are, and the value of a hash is in its fields."""
    record: dict[Any, Any] = {KEY: _plain(key), TTL: ttl if ttl >= 0 else None, TYPE: kind}
    column = VALUE
    try:
        if kind == "string":
            record[VALUE] = _plain(value)
        elif kind != "hash" if columns is None else VALUE in columns:
            record[VALUE] = json_text(_shown(kind, value))
        if expiring:
            column = FIELD_TTL
            record[FIELD_TTL] = json_text({field.decode(): ms for field, ms in expiring.items()})
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{address}: key {key!r}, a {kind}, holds {error.object!r}, which is not UTF-8, so JSON cannot hold it: "
            f"leave the key out with 'keys' or 'keyType', or column {column} with 'schema'"
        ) from None
    if expiring and columns is not None and FIELD_TTL not in columns:
        soon, after = next(iter(expiring.items()))
        raise SourceError(
            f"{address}: key {key!r}: field {_plain(soon)!r} expires in {after} ms, by a time of its own, which its "
            f"value does not show: add {FIELD_TTL} STRING to the columns (option 'schema'), or leave the key out with "
            "'keys'"
        )
    if kind == "hash":
        fields = {_plain(name): _plain(field_value) for name, field_value in value.items()}
        for name in fields:
            if columns is None and isinstance(name, bytes):
                why_not = "which is not UTF-8, so no column has its name"
            elif name in _OWN and (columns is None or name in columns):
                why_not = "which is a column of the connector's own"
            else:
                continue
            raise SourceError(
                f"{address}: key {key!r} has field {name!r}, {why_not}: leave the key out with 'keys' or 'keyType', or "
                "the column with 'schema'"
            )
        record |= {name: field_value for name, field_value in fields.items() if name not in record}
    return record


def _shown(kind: str, value: Any) -> Any:
    """
    Raises:
        UnicodeDecodeError: bytes that are no text.
    """
    if kind == "hash":
        return {name.decode(): text.decode() for name, text in value.items()}
    if kind == "zset":
        return {member.decode(): _score(score) for member, score in value}
    items = [item.decode() for item in value]
    return sorted(items) if kind == "set" else items


def _score(score: float) -> float | str:
    """JSON has no infinity: it is a text, as a write takes it."""
    if math.isfinite(score):
        return score
    return "Infinity" if score > 0 else "-Infinity"


def _plain(value: bytes) -> str | bytes:
    """A text, where it is one. Other bytes are read as BINARY; no column has the name of such a field."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
