"""Writes documents in bulk. A rerun of a write by key replaces what it wrote before."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import bson
import pyarrow as pa
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError

from spark_channel.connectors.base.contract import WriteContext, WritePlan
from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.mongodb.client import (
    Documents,
    Encoder,
    connected,
    explained,
    stored_at,
)
from spark_channel.connectors.mongodb.options import MongoWriteOptions, query_document
from spark_channel.connectors.records.direct_writer import DirectWriter, Rejected, Sink
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions

__all__ = ["MongoWriter"]

_LARGEST = 16 << 20
_ID = "_id"


class MongoWriter(DirectWriter):
    """See `MongoWriteOptions`."""

    Options: ClassVar[type[WriteOptions]] = MongoWriteOptions
    options: MongoWriteOptions

    def exists(self) -> bool | None:
        with connected(self.options, TargetError) as documents:
            return bool(documents.database.list_collection_names(filter={"name": documents.name}))

    def stored(self) -> Stored:
        return stored_at(self.options, TargetError)

    def resource_mark(self) -> str | None:
        return self.options.hosts

    def check(self, schema: pa.Schema) -> None:
        Encoder(schema, self.options)
        missing = [name for name in self.options.key_columns if name not in schema.names]
        if self.options.write_mode != "insert" and missing:
            raise OptionError(
                f"option 'keyColumns' names {missing[0]!r}, which the rows do not have; they have "
                f"{', '.join(schema.names)}",
                option="keyColumns",
                got=missing[0],
                takes=", ".join(schema.names),
            )

    @property
    def replaces(self) -> bool:
        return self.options.write_mode != "insert"

    @property
    def before(self) -> Mapping[str, bool]:
        return {"deleteFilter": self.options.delete_filter is not None}

    def foreign_content(self, schema: pa.Schema) -> str:
        with connected(self.options, TargetError) as documents:
            count = documents.estimated_document_count()
        if not count:
            return ""
        some = f"about {count} {'document' if count == 1 else 'documents'}"
        return f"{some} of collection {self.options.collection!r}, whoever wrote them"

    def probe(self, *, empty: bool) -> None:
        with connected(self.options, TargetError) as documents:
            documents.database.command("ping")
            documents.find_one({}, {_ID: 1})  # a login that is refused says so here
            if empty:
                documents.delete_many({})

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        plan = super().prepare(context, schema)
        if self.options.delete_filter is not None:
            with connected(self.options, TargetError) as documents:
                documents.delete_many(query_document(self.options.delete_filter))
        return plan

    def connect(self, schema: pa.Schema) -> Sink:
        return _Bulk(self.options, schema)


class _Bulk:
    """Sends requests without an order: a document that is refused stops no other."""

    def __init__(self, options: MongoWriteOptions, schema: pa.Schema) -> None:
        self._options, self._encoder = options, Encoder(schema, options)
        self._held = ExitStack()
        self._documents: Documents = self._held.enter_context(connected(options, TargetError))

    def close(self) -> None:
        self._held.close()

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        rejected: list[Rejected] = []
        requests: dict[Any, tuple[int, Any]] = {}
        for number, row in enumerate(batch.to_pylist()):
            try:
                key, request = self._request(self._encoder.document(row), number)
            except (ValueError, OverflowError, BSONError) as error:
                rejected.append((number, str(error)))
                continue
            # Of rows with one key the last one counts, whatever order the server takes.
            requests.pop(key, None)
            requests[key] = (number, request)
        if requests:
            rejected += self._sent(list(requests.values()))
        return sorted(rejected)

    def _request(self, document: dict[str, Any], number: int) -> tuple[Any, Any]:
        options = self._options
        if options.write_mode == "insert":
            return number, RawBSONDocument(_encoded(_with_id(document)))
        key = {name: _at(document, name) for name in options.key_columns}
        empty = next((name for name, value in key.items() if value is None), None)
        if empty is not None:
            raise ValueError(f"key column {empty!r} is NULL")
        identity = _encoded(key)
        if options.write_mode == "replace":
            _encoded(document)
            return identity, ReplaceOne(key, document, upsert=True)
        names = [name for name in self._encoder.names if name not in key]
        change = {name: _at(document, name) for name in names}
        _encoded(change)
        return identity, UpdateOne(
            key, {"$set": change} if change else {"$setOnInsert": key}, upsert=True
        )

    def _sent(self, requests: list[tuple[int, Any]]) -> list[Rejected]:
        with explained(self._options, TargetError):
            return self._asked(requests)

    def _asked(self, requests: list[tuple[int, Any]]) -> list[Rejected]:
        operations = [request for _, request in requests]
        try:
            if self._options.write_mode == "insert":
                self._documents.insert_many(operations, ordered=False)
            else:
                self._documents.bulk_write(operations, ordered=False)
        except BulkWriteError as error:
            if error.details.get("writeConcernErrors"):
                raise
            return [
                (
                    requests[failure["index"]][0],
                    f"{str(failure.get('errmsg', 'refused'))[:400]} (code {failure.get('code')})",
                )
                for failure in error.details["writeErrors"]
            ]
        return []


def _encoded(document: dict[str, Any]) -> bytes:
    data = bson.encode(document)
    if len(data) > _LARGEST:
        raise ValueError(f"a document of {len(data)} bytes, and MongoDB takes 16 MiB")
    return data


def _with_id(document: dict[str, Any]) -> dict[str, Any]:
    """A NULL is not an `_id`: the document gets one, as does every document without."""
    return document if document.get(_ID) is not None else {**document, _ID: bson.ObjectId()}


def _at(document: dict[str, Any], name: str) -> object:
    inside: Any = document
    for part in name.split("."):
        inside = inside.get(part) if isinstance(inside, dict) else None
    return inside
