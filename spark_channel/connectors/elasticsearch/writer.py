"""Writes documents with the bulk API. A document with an id is written once, however often it is sent."""

import base64
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, ClassVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WritePlan
from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.elasticsearch.client import Server, path_of, stored_at
from spark_channel.connectors.elasticsearch.options import ElasticWriteOptions
from spark_channel.connectors.records.direct_writer import DirectWriter, Rejected, Sink
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.retry import Retry

__all__ = ["ElasticsearchWriter"]

_ID = "_id"
_BYTES = 8 << 20


class _Crowded(Exception):  # noqa: N818 - a state of the server
    """The server refused some documents because it is overloaded."""


class ElasticsearchWriter(DirectWriter):
    """See `ElasticWriteOptions`."""

    Options: ClassVar[type[WriteOptions]] = ElasticWriteOptions
    options: ElasticWriteOptions

    @property
    def replaces(self) -> bool:
        return self.options.write_mode != "insert"

    def exists(self) -> bool | None:
        with Server(self.options, TargetError) as server:
            return server.ask("GET", path_of(self.options, "/_count"), missing=True) is not None

    def stored(self) -> Stored | None:
        return stored_at(self.options, TargetError) if self.exists() else None

    def resource_mark(self) -> str | None:
        return urlsplit(self.options.url).netloc.rpartition("@")[2]

    def check(self, schema: pa.Schema) -> None:
        options = self.options
        for name in (*options.json_columns, *([options.id_column] if options.id_column else [])):
            if name not in schema.names:
                option = "idColumn" if name == options.id_column else "jsonColumns"
                raise OptionError(
                    f"option {option!r} names {name!r}, which the rows do not have; they have "
                    f"{', '.join(schema.names)}",
                    option=option,
                    got=name,
                    takes=", ".join(schema.names),
                )
        if options.write_mode != "insert" and id_of(options, schema) is None:
            raise OptionError(
                f"option 'writeMode' got {options.write_mode!r}, which needs ids: name their column with 'idColumn'",
                option="idColumn",
            )
        for field in schema:
            if (
                pa.types.is_duration(field.type)
                or pa.types.is_map(field.type)
                or not field.name.strip(".")
            ):
                raise SchemaError(
                    f"column {field.name!r} of type {field.type} has no JSON value; cast it to a string, or rename it"
                )

    def foreign_content(self, schema: pa.Schema) -> str:
        with Server(self.options, TargetError) as server:
            answer = server.ask("GET", path_of(self.options, "/_count"), missing=True)
        count = answer.get("count") if isinstance(answer, dict) else 0
        if not isinstance(count, int) or not count:
            return ""
        documents = f"{count} {'document' if count == 1 else 'documents'}"
        return f"{documents} of index {self.options.index!r}, whoever wrote them"

    def probe(self, *, empty: bool) -> None:
        options = self.options
        with Server(options, TargetError) as server:
            exists = server.ask("GET", path_of(options, "/_count"), missing=True) is not None
            if not exists and options.create_index is not None:
                server.ask("PUT", path_of(options), json.loads(options.create_index), again=False)
            if exists and empty:
                action = "/_delete_by_query?refresh=true&conflicts=proceed"
                server.ask("POST", path_of(options, action), {"query": {"match_all": {}}})

    def connect(self, schema: pa.Schema) -> Sink:
        return _Bulk(self.options, schema)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        """Makes searches see the rows, which they else do within the index's refresh interval."""
        if any(receipt.rows for receipt in receipts):
            with Server(self.options, TargetError) as server:
                server.ask("POST", path_of(self.options, "/_refresh"), missing=True)


def id_of(options: ElasticWriteOptions, schema: pa.Schema) -> str | None:
    return options.id_column or (_ID if _ID in schema.names else None)


class _Bulk:
    def __init__(self, options: ElasticWriteOptions, schema: pa.Schema) -> None:
        self._options, self._id = options, id_of(options, schema)
        self._zone, self._json = ZoneInfo(options.time_zone), frozenset(options.json_columns)
        self._separators = dict(options.array_separators)
        self._server = Server(options, TargetError)
        self._retry = Retry(options.retry_timeout, what=f"writing {options.address}")

    def close(self) -> None:
        self._server.close()

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        rejected: list[Rejected] = []
        actions: dict[Any, tuple[int, bytes]] = {}
        for number, row in enumerate(batch.to_pylist()):
            try:
                key, lines = self._lines(row, number)
            except ValueError as error:
                rejected.append((number, str(error)))
                continue
            if self._options.write_mode != "insert":
                actions.pop(key, None)  # of rows with one id the last one counts
            actions[key if self._options.write_mode != "insert" else number] = (number, lines)
        waiting: list[tuple[int, bytes]] = []
        size = 0
        for number, lines in actions.values():
            if waiting and size + len(lines) > _BYTES:
                rejected += self._sent(waiting)
                waiting, size = [], 0
            waiting.append((number, lines))
            size += len(lines)
        if waiting:
            rejected += self._sent(waiting)
        return sorted(rejected)

    def _lines(self, row: dict[str, Any], number: int) -> tuple[Any, bytes]:
        document: dict[str, Any] = {}
        for name, value in row.items():
            if name != self._id or name != _ID:
                document[name] = self._value(name, value)
        action: dict[str, Any] = {}
        if self._id is not None:
            if row[self._id] is None:
                raise ValueError(f"id column {self._id!r} is NULL")
            action[_ID] = str(row[self._id])
            if len(action[_ID].encode()) > 512:
                raise ValueError(f"id column {self._id!r}: an id has at most 512 bytes")
        mode = self._options.write_mode
        word = {
            "insert": "index" if self._id is None else "create",
            "replace": "index",
            "upsert": "update",
        }[mode]
        body = {"doc": document, "doc_as_upsert": True} if mode == "upsert" else document
        text = (
            json.dumps({word: action})
            + "\n"
            + json.dumps(body, ensure_ascii=False, allow_nan=False)
            + "\n"
        )
        try:
            return action.get(_ID, number), text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text that is not Unicode") from None

    def _value(self, name: str, value: object) -> object:
        if name in self._json and isinstance(value, str):
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                raise ValueError(f"column {name!r}: {value[:60]!r} is not JSON") from None
        if name in self._separators and isinstance(value, str):
            return value.split(self._separators[name]) if value else []
        return self._plain(value)

    def _plain(self, value: object) -> object:
        if isinstance(value, datetime):
            moment = value if value.tzinfo is not None else value.replace(tzinfo=self._zone)
            return moment.isoformat(
                timespec="microseconds" if moment.microsecond % 1000 else "milliseconds"
            )
        if isinstance(value, (date, time)):
            return value.isoformat()
        if isinstance(value, Decimal):
            # A text, which Elasticsearch reads into numbers: JSON's own are doubles.
            return str(value)
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, dict):
            return {name: self._plain(item) for name, item in value.items()}
        return [self._plain(item) for item in value] if isinstance(value, list) else value

    def _sent(self, documents: list[tuple[int, bytes]]) -> list[Rejected]:
        rejected: list[Rejected] = []
        remaining = documents

        def send() -> None:
            nonlocal remaining
            body = b"".join(lines for _, lines in remaining)
            # Documents without ids that may have arrived would arrive twice.
            again = self._id is not None and self._options.write_mode != "insert"
            bulk_answer = self._server.ask(
                "POST", path_of(self._options, "/_bulk"), body, again=again
            )
            crowded, refused = [], []
            with self._server.understood():
                for document, item in zip(remaining, bulk_answer["items"], strict=True):
                    (answer,) = item.values()
                    if answer["status"] == 429:
                        crowded.append(document)
                    elif answer["status"] >= 400:
                        refused.append((document[0], _reason(answer)))
            rejected.extend(refused)
            remaining = crowded
            if crowded:
                raise _Crowded(
                    f"{len(crowded)} documents are refused because the server is overloaded (HTTP 429)"
                )

        try:
            self._retry.call(send, lambda error: isinstance(error, _Crowded))
        except _Crowded as error:
            raise TargetError(
                f"{self._options.address}: {error} for {self._options.retry_timeout:g} s ('retryTimeout'): write "
                "slower, with 'rowsPerSecond'"
            ) from None
        return rejected


def _reason(answer: dict[str, Any]) -> str:
    error = answer.get("error") or {}
    if not isinstance(error, dict):
        return f"{str(error)[:300]} (HTTP {answer['status']})"
    cause = (error.get("caused_by") or {}).get("reason")
    reason = f"{error.get('type')}: {error.get('reason')}" + (f": {cause}" if cause else "")
    return f"{reason[:400]} (HTTP {answer['status']})"
