"""JSON answers as rows, page by page."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from spark_channel.connectors.base.types import SMALL_INT, number_type
from spark_channel.connectors.files.formats.text_decode import merge_inferred
from spark_channel.connectors.http.client import Client
from spark_channel.connectors.http.options import HttpReadOptions
from spark_channel.connectors.records import Columns, RecordReader
from spark_channel.connectors.records.paths import MISSING, found_at, path_in, path_of
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split
from spark_channel.serialization import Number, parsed, written

__all__ = [
    "HttpReader",
]


Page = list[dict[str, Any]]
_NOT_FOUND, _NO_CONTENT = 404, 204
_HINTS = {
    400: "; check 'params'",
    401: "; check 'token', or 'user' and 'password'",
    403: "; the login lacks a right",
    404: "; check 'url'",
    405: "; check 'method'",
    407: "; check the login in 'proxy'",
}

_ROWS = 5_000


class WebService:
    """`answered_object`: the answer was one row, without an array."""

    def __init__(self, options: HttpReadOptions) -> None:
        self._options, self._login, self._client = options, options.login, Client(options)
        self.answered_object = False

    def __enter__(self) -> "WebService":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def pages(self) -> Iterator[Page]:
        """The rows of each page, until one is empty.

        Some services answer a request behind their end with HTTP 404, or with their last page again: behind a page
        that is not full, that is the end, too.
        """
        options = self._options
        if options.page_param is None:
            yield self._page(None) or []
            return
        before: Page = []
        number, full = options.first_page, options.page_size if options.page_size_param else None
        while True:
            ended = full is not None and 0 < len(before) < full
            page = self._page(number, may_lack=ended)
            if not page:
                return
            if page == before:
                if ended and (number > options.first_page + 1 or self._goes_by_pages(page)):
                    return
                raise SourceError(
                    f"{options.address}: page {number} has the same rows as the page before it, "
                    f"so the server ignores parameter {options.page_param!r}, and rows "
                    "would be missing or duplicated: check 'pageParam', or omit it if the server has one page"
                )
            yield page
            full = full or len(page)
            before, number = page, number + 1

    def _goes_by_pages(self, page: Page) -> bool:
        """Whether `page`, which came twice, is the only one: in pages of one row less, the second has the last row.

        Else the server may ignore the page's number, and send no more rows than it likes.
        """
        if len(page) == 1:
            return True
        try:
            return self._page(self._options.first_page + 1, size=len(page) - 1) == page[-1:]
        except SourceError:
            return False

    def _page(
        self, number: int | None, *, may_lack: bool = False, size: int | None = None
    ) -> Page | None:
        """None: the server has no such page."""
        options = self._options
        parameters = options.parameters
        if number is not None and options.page_param is not None:
            parameters[options.page_param] = number
            if options.page_size_param is not None:
                parameters[options.page_size_param] = size or options.page_size

        status, text = self._client.ask(parameters)
        later = number is not None and number > options.first_page
        if (may_lack and status == _NOT_FOUND) or (later and status == options.end_status):
            return None
        if status >= 300:
            hint = _HINTS.get(status, "")
            if later and status == _NOT_FOUND:
                hint = "; if this is how the server says that there are no more pages, set endStatus=404"
            raise self._client.refused(f"HTTP {status}", text, hint)
        return [] if status == _NO_CONTENT else self._rows(text)

    def _rows(self, text: bytes) -> Page:
        options = self._options
        encoding = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
        try:
            answer = parsed(text.decode(encoding))
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{options.address}: the answer is not {options.encoding} text ({error.reason} at byte {error.start}); "
                "name its encoding in option 'encoding'"
            ) from None
        except (ValueError, RecursionError):
            raise self._client.refused(
                "the answer is not JSON", text, "; check 'url' and the login"
            ) from None
        for name, value in options.expected.items():
            got = found_at(answer, path_of(name))
            if got is MISSING or isinstance(got, bool) != isinstance(value, bool) or got != value:
                sample = "nothing" if got is MISSING else self._login.shown(written(got))[:80]
                raise self._client.refused(
                    f"an answer has {sample} at {name!r}, where 'expect' says {written(value)}",
                    text,
                )
        rows = found_at(answer, path_of(options.result_key))
        if (rows is MISSING or rows is None) and options.expect is not None:
            return []
        if isinstance(rows, dict) and options.page_param is None:
            rows, self.answered_object = [rows], True
        if not isinstance(rows, list):
            raise self._client.refused(
                self._without_rows(answer, rows), text, f"; {self._instead(rows)}"
            )
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                sample = self._login.shown(written(row))[:80]
                raise SourceError(
                    f"{options.address}: row {number} of an answer is {sample}, which has no columns: "
                    "it takes an object"
                )
        return rows

    def _without_rows(self, answer: object, rows: object) -> str:
        where = (
            f"at {self._options.result_key!r} ('resultKey')"
            if self._options.result_key
            else "as a whole"
        )
        if rows is MISSING:
            names = (
                ", ".join(map(repr, list(answer)[:20])) if isinstance(answer, dict) else "no names"
            )
            return f"an answer has nothing {where}; it has {self._login.shown(names)[:200]}"
        kind = {type(None): "null", dict: "one object"}.get(type(rows), "a single value")
        return f"an answer is {kind} {where}, where rows are an array"

    def _instead(self, rows: object) -> str:
        if isinstance(rows, dict):
            return "pages have arrays of rows: name the array in 'resultKey'"
        if rows is None or rows is MISSING:
            return "if that means no rows, set 'expect' to the fields of a good answer, such as {\"code\": 0}"
        return "name the array of rows in 'resultKey'"


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
        known_names = (
            set(columns.schema.names) if inferred and self.options.columns is None else None
        )
        size = max(1, min(_ROWS, self.fetch_size.rows or _ROWS))
        with WebService(self.options) as service:
            for number, page in enumerate(service.pages(), self.options.first_page):
                try:
                    _check_names(page, known_names)
                    if service.answered_object:
                        self._check_object(page[0], columns.schema.names)
                    for start in range(0, len(page), size):
                        yield columns.batch(page[start : start + size])
                except SourceError as error:
                    page_text = f" (page {number})" if self.options.page_param else ""
                    raise SourceError(f"{self.options.address}{page_text}: {error}") from error

    def _check_object(self, row: dict[str, Any], names: list[str]) -> None:
        """
        Raises:
            SourceError: an answer without an array has none of the columns: it may be an error of the service.
        """
        paths = [(name, path_in(name) or ()) for name in names]
        if not any(
            name in row or (path and found_at(row, path) is not MISSING) for name, path in paths
        ):
            has = self.options.login.shown(", ".join(map(repr, row)))[:200]
            raise SourceError(
                f"the answer is one object with none of the columns: it has {has}; "
                "name the array of rows in 'resultKey', or in 'expect' what an answer without an error has"
            )


def _check_names(page: Page, known_names: set[str] | None) -> None:
    """
    Raises:
        SourceError: a row has a column that the sample did not.
    """
    for row in page if known_names is not None else ():
        unknown = row.keys() - (known_names or set())
        if unknown:
            raise SourceError(
                f"a row has {min(unknown)!r}, which no row of the sample had, so it would be lost; raise "
                "'sampleRows', or name the columns in option 'schema'"
            )


def _kind(value: object) -> pa.DataType:
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
