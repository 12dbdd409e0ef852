"""Reads the JSON answers of a web service."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from spark_channel.connectors.exact_json import Number
from spark_channel.connectors.files.exact_types import SMALL_INT, number_type
from spark_channel.connectors.files.text_types import merge_inferred
from spark_channel.connectors.http.options import HttpReadOptions
from spark_channel.connectors.http.pages import Page, WebService
from spark_channel.connectors.records import Columns, RecordReader
from spark_channel.connectors.records.paths import MISSING, found_at, path_in
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["HttpReader"]

_ROWS = 5_000


class HttpReader(RecordReader):
    """See `HttpReadOptions`. One split, also of a service without rows: to know that costs a request."""

    Options: ClassVar[type[ReadOptions]] = HttpReadOptions
    options: HttpReadOptions

    def __init__(self, options: ReadOptions, schema: pa.Schema | None = None) -> None:
        super().__init__(options, schema)
        self._is_given = schema is not None

    @property
    def _place(self) -> str:
        return self.options.address

    def resource_mark(self, split: Split) -> str | None:
        return urlsplit(self.options.url).netloc.rpartition("@")[2]

    def _sampled(self) -> pa.Schema:
        """The columns of as many pages as have `sampleRows` rows."""
        kinds: dict[str, pa.DataType] = {}
        rows = 0
        with WebService(self.options) as service:
            for page in service.pages():
                for row in page:
                    for name, value in row.items():
                        kinds[name] = merge_inferred(kinds.get(name, pa.null()), _kind(value))
                rows += len(page)
                if rows >= self.options.sample_rows:
                    break
        if not kinds:
            raise SourceError(
                f"{self.options.address} has no rows, so its columns are not known: name them with option 'schema', "
                "such as id BIGINT, name STRING"
            )
        return pa.schema(
            [
                (name, _read_as(kind) if self.options.infer_schema else pa.string())
                for name, kind in kinds.items()
            ]
        )

    @property
    def _is_inferred(self) -> bool:
        """Whether the user did not ask for these columns: then no row may have others, and no number is rounded."""
        return self.options.record_schema is None and (self.schema_is_own or not self._is_given)

    def split(self, advice: int) -> list[Split]:
        return [Split({})]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        inferred = self._is_inferred
        columns = Columns(self.schema(), replace(self.options.rules, exact=inferred))
        known = set(columns.schema.names) if inferred and self.options.columns is None else None
        size = max(1, min(_ROWS, self.fetch_size.rows or _ROWS))
        with WebService(self.options) as service:
            for number, page in enumerate(service.pages(), self.options.first_page):
                try:
                    _check_names(page, known)
                    if service.answered_object:
                        self._check_object(page[0], columns.schema.names)
                    for start in range(0, len(page), size):
                        yield columns.batch(page[start : start + size])
                except SourceError as error:
                    place = f" (page {number})" if self.options.page_param else ""
                    raise SourceError(f"{self.options.address}{place}: {error}") from error

    def _check_object(self, row: dict[str, Any], names: list[str]) -> None:
        """
        Raises:
            SourceError: an answer without an array has none of the columns: it may be an error of the service.
        """
        paths = [(name, path_in(name) or ()) for name in names]
        if not any(name in row or (path and found_at(row, path) is not MISSING) for name, path in paths):
            has = self.options.login.shown(", ".join(map(repr, row)))[:200]
            raise SourceError(
                f"the answer is one object with none of the columns: it has {has}; "
                "name the array of rows in 'resultKey', or in 'expect' what an answer without an error has"
            )


def _check_names(page: Page, known: set[str] | None) -> None:
    """
    Raises:
        SourceError: a row has a column that the sample did not.
    """
    for row in page if known is not None else ():
        unknown = row.keys() - (known or set())
        if unknown:
            raise SourceError(
                f"a row has {min(unknown)!r}, which no row of the sample had, so it would be lost; raise "
                "'sampleRows', or name the columns in option 'schema'"
            )


def _kind(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, Number):
        return number_type(value.text)
    if isinstance(value, int):
        return number_type(str(value))
    if isinstance(value, float):  # NaN and Infinity, which Python takes for JSON
        return pa.float64()
    return pa.null() if value is None else pa.string()


def _read_as(kind: pa.DataType) -> pa.DataType:
    if kind == SMALL_INT:
        return pa.int64()
    return pa.string() if pa.types.is_null(kind) else kind
