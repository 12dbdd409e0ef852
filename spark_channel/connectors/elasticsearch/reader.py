"""Reads an index by sliced scrolls: each slice is a split, and sees the index as it was when its scroll began."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.elasticsearch.client import Server, path_of, stored_at
from spark_channel.connectors.elasticsearch.options import ElasticReadOptions
from spark_channel.connectors.records import Columns, RecordReader, inferred_schema
from spark_channel.errors import ChannelError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["ElasticsearchReader"]

_ROWS = 5_000
_FIRST = 20
"""Documents whose size says how many are asked for at a time."""
_MOST_SLICES = 1_024
_ID = "_id"


class ElasticsearchReader(RecordReader):
    """See `ElasticReadOptions`."""

    Options: ClassVar[type[ReadOptions]] = ElasticReadOptions
    options: ElasticReadOptions

    @property
    def _place(self) -> str:
        return self.options.address

    def stored(self) -> Stored:
        return stored_at(self.options, SourceError)

    def resource_mark(self, split: Split) -> str | None:
        return urlsplit(self.options.url).netloc.rpartition("@")[2]

    def _sampled(self) -> pa.Schema:
        body = {
            "size": min(self.options.sample_rows, 10_000),
            "query": self._query(),
            "sort": ["_doc"],
        }
        with Server(self.options, SourceError) as server:
            hits, _ = self._page(
                server, server.ask("POST", path_of(self.options, "/_search"), body)
            )
        if not hits:
            raise SourceError(
                f"{self.options.address} has no documents that match, so its columns are not known: "
                "name them with option 'schema', such as _id STRING, name STRING"
            )
        return inferred_schema(hits)

    def _query(self) -> object:
        return json.loads(self.options.filter)

    def split(self, advice: int) -> list[Split]:
        with Server(self.options, SourceError) as server:
            answer = server.ask("POST", path_of(self.options, "/_count"), {"query": self._query()})
            with server.understood():
                rows = max(0, int(answer["count"]))
            portion = self._portion(server) if rows else 0
        if rows == 0:
            return []
        slices = max(1, min(advice, rows, _MOST_SLICES))
        return [
            Split({"slice": number, "of": slices, "portion": portion}, rows // slices)
            for number in range(slices)
        ]

    def _portion(self, server: Server) -> int:
        """How many documents one answer is asked for."""
        body = {"size": _FIRST, "query": self._query(), "sort": ["_doc"]}
        hits, _ = self._page(server, server.ask("POST", path_of(self.options, "/_search"), body))
        return min(_ROWS, server.fitting(len(hits))) if hits else _ROWS

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        columns = Columns(self.schema(), self.options.rules, key=_ID)
        size = min(split.params["portion"], self.fetch_size.rows or _ROWS)
        keep = f"{self.options.scroll_seconds}s"
        body: dict[str, Any] = {"size": size, "query": self._query(), "sort": ["_doc"]}
        if split.params["of"] > 1:
            body["slice"] = {"id": split.params["slice"], "max": split.params["of"]}
        with Server(self.options, SourceError) as server:
            # A portion that is lost cannot be asked for again: the scroll has moved on.
            answer = server.ask(
                "POST", path_of(self.options, f"/_search?scroll={keep}"), body, again=False
            )
            scroll = None
            try:
                while True:
                    hits, scroll = self._page(server, answer)
                    if not hits:
                        return
                    yield columns.batch(hits)
                    again = {"scroll": keep, "scroll_id": scroll}
                    answer = server.ask("POST", "/_search/scroll", again, again=False)
            finally:
                if scroll is not None:
                    self._forget(server, scroll)

    def _page(self, server: Server, answer: Any) -> tuple[list[dict[str, Any]], Any]:
        """The records of an answer, and the name of its scroll."""
        with server.understood():
            shards = answer.get("_shards", {})
            if shards.get("failed") or answer.get("timed_out"):
                raise SourceError(
                    f"{self.options.address}: {shards.get('failed', 0)} shards did not answer, so rows would be lost: "
                    f"{str(shards.get('failures', ''))[:300]}"
                )
            hits: list[dict[str, Any]] = answer["hits"]["hits"]
            for hit in hits:
                if "_source" not in hit:
                    raise SourceError(
                        f"{self.options.address}: document {hit.get('_id')!r} has no _source, "
                        "so its fields would be NULL: the index does not store it. "
                        "Enable _source in its mapping and index the documents again"
                    )
            return [_record(hit) for hit in hits], answer.get("_scroll_id")

    def _forget(self, server: Server, scroll: Any) -> None:
        try:
            server.ask(
                "DELETE", "/_search/scroll", {"scroll_id": [scroll]}, missing=True, again=False
            )
        except ChannelError:
            pass  # it ends by itself after `scrollSeconds`


def _record(hit: dict[str, Any]) -> dict[str, Any]:
    return {_ID: hit.get("_id"), **hit["_source"]}
