"""Reads a collection by ranges of `_id`, each in the order of the index, so that a lost read continues after a row."""

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any, ClassVar

import bson
import pyarrow as pa
from pymongo.errors import OperationFailure, PyMongoError

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import Read
from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.mongodb.client import (
    Documents,
    connected,
    is_passing,
    plain,
    stored_at,
)
from spark_channel.connectors.mongodb.options import MongoReadOptions, query_document
from spark_channel.connectors.records import Columns, RecordReader, inferred_schema
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split
from spark_channel.retry import Retry

__all__ = ["MongoReader"]

_ROWS = 10_000
_BYTES = 16 << 20
_SAMPLES_PER_SPLIT = 20
_MOST_SAMPLES = 10_000
_ID = "_id"


class MongoReader(RecordReader):
    """See `MongoReadOptions`. A view has no `_id` index, and is read as one split."""

    Options: ClassVar[type[ReadOptions]] = MongoReadOptions
    options: MongoReadOptions

    @property
    def _place(self) -> str:
        return self.options.address

    def _sampled(self) -> pa.Schema:
        with connected(self.options, SourceError) as documents:
            some = documents.find(self._filter()).limit(self.options.sample_rows)
            schema = inferred_schema(map(plain, islice(some, self.options.sample_rows)))
        if not schema.names:
            raise SourceError(
                f"{self.options.address} has no documents that match, so its columns are not known: "
                "name them with option 'schema', such as _id STRING, name STRING"
            )
        return schema

    def stored(self) -> Stored:
        return stored_at(self.options, SourceError)

    def resource_mark(self, split: Split) -> str | None:
        return self.options.hosts

    def split(self, advice: int) -> list[Split]:
        with connected(self.options, SourceError) as documents:
            if documents.find_one(self._filter(), {_ID: 1}) is None:
                return []
            if not _has_ids(documents) or not _reads_ranges(documents):
                return [Split({"ordered": False})]
            rows = max(1, documents.estimated_document_count())
            size = _document_bytes(documents)
            bounds = _bounds(documents, rows, advice) if advice > 1 and rows > 1 else []
        edges = [None, *bounds, None]
        split_rows = max(1, rows // (len(edges) - 1))
        return [
            Split(
                {
                    "ordered": True,
                    "from": _packed(start),
                    "to": _packed(end),
                    "document_bytes": size,
                },
                split_rows,
                split_rows * size if size else None,
            )
            for start, end in pairwise(edges)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self.reading() as read:
            yield from read(split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        columns = Columns(self.schema(), self.options.rules, key=_ID)
        with connected(self.options, SourceError) as documents:

            def read(split: Split) -> Iterator[pa.RecordBatch]:
                size = self._batch_rows(split)
                for page in self._pages(documents, split, size):
                    yield columns.batch([plain(document) for document in page])

            yield read

    def _batch_rows(self, split: Split) -> int:
        document_bytes = split.params.get("document_bytes") or 1_000
        rows = [_ROWS, max(1, _BYTES // document_bytes)]
        if self.fetch_size.rows is not None:
            rows.append(self.fetch_size.rows)
        if self.fetch_size.nbytes is not None:
            rows.append(max(1, self.fetch_size.nbytes // document_bytes))
        return max(1, min(rows))

    def _pages(
        self, documents: Documents, split: Split, size: int
    ) -> Iterator[list[dict[str, Any]]]:
        """Lists of at most `size` documents. After a lost connection or cursor it continues after the last one."""
        position = _Place(_unpacked(split.params.get("from")), _unpacked(split.params.get("to")))
        ordered = bool(split.params["ordered"])
        retry = Retry(
            self.options.retry_timeout, what=f"reading {self.options.address}", clock=SYSTEM_CLOCK
        )
        cursor: Any = None
        try:
            while True:

                def page() -> list[dict[str, Any]] | None:
                    nonlocal cursor
                    if cursor is None:
                        cursor = self._cursor(documents, position, size, ordered)
                        position.opened()
                    try:
                        data = next(cursor, None)
                    except PyMongoError:
                        cursor.close()
                        cursor = None
                        raise
                    return None if data is None else bson.decode_all(data, documents.codec_options)

                # Without an order nothing says which documents were returned already.
                page_found = retry.call(page, is_passing) if ordered or cursor is None else page()
                if page_found is None:
                    return
                remaining = [document for document in page_found if not position.is_done(document)]
                for start in range(0, len(remaining), size):
                    some = remaining[start : start + size]
                    position.after(some[-1])
                    yield some
        finally:
            if cursor is not None:
                cursor.close()

    def _cursor(self, documents: Documents, position: "_Place", size: int, ordered: bool) -> Any:
        """Gives the bytes of each answer: at most `size` documents, and what one message of the server holds."""
        batches: Any = documents.find_raw_batches(
            self._filter(), self._projection(), batch_size=size
        )
        if not ordered:
            return batches
        # Bounds of the index, and no condition: a condition compares values of one type with each other alone.
        batches = batches.hint([(_ID, 1)]).sort(_ID, 1)
        if position.start is not None:
            batches = batches.min([(_ID, position.start[0])])
        return batches if position.end is None else batches.max([(_ID, position.end[0])])

    def _filter(self) -> dict[str, Any]:
        return query_document(self.options.filter)

    def _projection(self) -> dict[str, int] | None:
        """The fields that the columns need; None: all, since a name with dots may also be a field's own."""
        names = self.schema().names
        if any("." in name or name.startswith("$") for name in names):
            return None
        return dict.fromkeys([*names, _ID], 1)


class _Place:
    """Between which `_id`s documents are read, and after which of them. Each bound is a tuple of one value."""

    def __init__(self, start: tuple[Any] | None, end: tuple[Any] | None) -> None:
        self.start, self.end = start, end
        self._last: bytes | None = None
        self._first = True

    def opened(self) -> None:
        """A cursor begins at `start`."""
        self._first = True

    def after(self, document: dict[str, Any]) -> None:
        if _ID in document:
            self.start, self._last = (document[_ID],), bson.encode({_ID: document[_ID]})

    def is_done(self, document: dict[str, Any]) -> bool:
        """The lower bound is included, so that a read that continues meets the last document again."""
        first, self._first = self._first, False
        return (
            first and self._last is not None and bson.encode({_ID: document.get(_ID)}) == self._last
        )


def _packed(bound: tuple[Any] | None) -> str:
    return "" if bound is None else base64.b64encode(bson.encode({_ID: bound[0]})).decode("ascii")


def _unpacked(text: str | None) -> tuple[Any] | None:
    return (bson.decode(base64.b64decode(text))[_ID],) if text else None


def _has_ids(documents: Documents) -> bool:
    """Whether it is a collection with the `_id` index, and no view and no time series."""
    collections = documents.database.list_collections(filter={"name": documents.name})
    return all(
        collection.get("type", "collection") == "collection"
        for collection in islice(collections, 1)
    )


def _reads_ranges(documents: Documents) -> bool:
    """Whether the server reads ranges of an index: some that speak its protocol ignore the bounds, and return all."""
    in_order = documents.find({}, {_ID: 1}).hint([(_ID, 1)]).sort(_ID, 1).limit(1)
    return all(
        next(documents.find({}, {_ID: 1}).hint([(_ID, 1)]).max([(_ID, first[_ID])]).limit(1), None)
        is None
        for first in in_order
    )


def _document_bytes(documents: Documents) -> int | None:
    try:
        stats = documents.database.command("collStats", documents.name)
    except OperationFailure:  # a right that a reader need not have
        return None
    size = stats.get("avgObjSize")
    return max(1, int(size)) if isinstance(size, (int, float)) and 0 < size < math.inf else None


def _bounds(documents: Documents, rows: int, advice: int) -> list[tuple[Any] | None]:
    """`_id`s between splits of about equal rows, from a sample that the server sorts by its own order of types."""
    size = min(rows, advice * _SAMPLES_PER_SPLIT, _MOST_SAMPLES)
    pipeline = [{"$sample": {"size": size}}, {"$project": {_ID: 1}}, {"$sort": {_ID: 1}}]
    ids = [(document[_ID],) for document in islice(documents.aggregate(pipeline), size)]
    picked = [ids[len(ids) * n // advice] for n in range(1, advice)] if ids else []
    bounds: list[tuple[Any] | None] = []
    for bound in picked:
        if not bounds or _packed(bounds[-1]) != _packed(bound):
            bounds.append(bound)
    return bounds
