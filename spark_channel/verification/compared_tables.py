"""The two tables of a verification: their readers, what they declare, and what a task reads of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import without_notes
from spark_channel.connectors import Reader
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import describe, find_connector
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.splits import split_conditions
from spark_channel.errors import OptionError, SourceError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, Split
from spark_channel.transfers.plan import first_reachable, open_reader
from spark_channel.transform import Pipeline, prepare
from spark_channel.verification.compare import Buckets, Mask, TextOf, near, runs_of

__all__ = ["MOST_KEYS", "ROWS_PER_KEY", "Side", "open_sides"]

_log = log_of(__name__)


_KEYS_PER_STATEMENT = 500
MOST_KEYS, ROWS_PER_KEY = 20_000, 10
"""A database finds so many keys by their values in any case, and more where it has ten rows for each of them."""
_ROW_BYTES = 100
"""The assumed size of a row of a table without rows, in which rows may come."""
_RANGES_PER_STATEMENT = 100
_MOST_RANGES = 20_000
_MOST_PIECES = 64
"""A range of many buckets is cut into pieces of a 64th of all, so that several tasks share it."""
_JSON = frozenset({"json", "jsonb"})


@dataclass
class Side:
    """One table, folder or file. `role` is "source" or "target"; `end` is what its reader was made from."""

    role: str
    end: Endpoint
    reader: Reader
    steps: Pipeline
    """From the reader's rows to those that are compared: of a job's source, its transformers."""
    label: str
    json: frozenset[str] = frozenset()
    """Columns that its database declares to be JSON."""
    key: tuple[str, ...] = ()
    """Its primary key, or another key that holds no NULL; () = none that is known."""
    table: Table | None = None
    """What its database declares of it; None = a query, a view, a file."""
    all_columns: frozenset[str] = frozenset()
    """All its columns, in lower case, those that are left out included."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that all splits of one read share: a row's bytes, and the snapshot that they are read by."""

    def split(self, advice: int) -> list[Split]:
        """Splits of all rows."""
        splits = self.reader.split(advice)
        params = splits[0].params if splits else {"row_bytes": _ROW_BYTES}
        self.shared = {name: params[name] for name in ("row_bytes", "snapshot") if name in params}
        return splits

    @property
    def generated(self) -> frozenset[str]:
        """Columns that its database computes, so that they are not written."""
        columns = () if self.table is None else self.table.columns
        return frozenset(column.name for column in columns if column.generated)

    def finds(self, *names: str) -> bool:
        """Whether an index of its database finds rows by one of these columns."""
        if self.database is None or self.table is None:
            return False
        table, dialect = self.table, self.database.dialect
        first = {key[0] for key in (table.primary, *table.unique) if key}
        return any(name in first or dialect.finds(table, [name]) for name in names)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are compared."""
        return self.steps.output_schema

    @property
    def database(self) -> SqlReader | None:
        """The reader of a database, which finds rows by the columns that are compared; None = another."""
        if not isinstance(self.reader, SqlReader) or self.steps.steps:
            return None
        return None if self.reader.options.custom_schema else self.reader

    def limits_of(self, column: str) -> tuple[int, int] | None:
        """The least and the largest value of a column of whole numbers; None = no rows, or not found by an index."""
        if self.database is None or not self.finds(column):
            return None
        with self.database.connect("plan") as session:
            source = self.database.known(session)
            text = source.column(column)
            least, most = session.rows(source.sql([f"MIN({text})", f"MAX({text})"]))[0]
        try:
            return None if least is None else (int(least), int(most))
        except (TypeError, ValueError, OverflowError):  # SQLite holds any value in any column
            return None

    def of_buckets(
        self, key: str, buckets: Buckets, chosen: Mask, whole: Callable[[], list[Split]]
    ) -> list[Split]:
        """Splits that have all rows of the chosen buckets, and few others; `whole` returns those of all rows."""
        if buckets.edges is None or not self.finds(key):
            return whole()
        nulls = buckets.count - 1
        runs = runs_of(near(chosen[:nulls], _MOST_RANGES), -(-buckets.count // _MOST_PIECES))
        ranges = []
        for run in runs:
            bounds = buckets.bounds(*run)
            assert bounds is not None
            ranges.append([None if bound is None else [bound] for bound in bounds])
        params = {"kind": "ranges", "key": [key], **self.shared}
        splits = [
            Split({**params, "ranges": list(part)}) for part in _shares(ranges, runs, buckets.count)
        ]
        if chosen[nulls]:
            splits.append(Split({"kind": "null", "key": [key], **self.shared}))
        return splits

    def of_keys(self, key: Sequence[str], values: Sequence[list[Any]]) -> list[Split] | None:
        """Splits that have all rows with these keys, and few others; None = the reader cannot look up keys.

        Without an index a statement reads the whole table, so there is one at most.
        """
        if self.database is None or not values:
            return None
        if len(values) > _KEYS_PER_STATEMENT and not self.finds(*key):
            return None
        if not all(_can_be_looked_up(cell) for row in values for cell in row):
            return None
        params = {"kind": "keys", "key": list(key), **self.shared}
        splits = [
            Split({**params, "values": values[first : first + _KEYS_PER_STATEMENT]})
            for first in range(0, len(values), _KEYS_PER_STATEMENT)
        ]
        is_plain = all(
            str(cell).isascii() and "\0" not in str(cell) for row in values for cell in row
        )
        return splits if is_plain or self._takes(self.database, splits) else None

    def _takes(self, reader: SqlReader, splits: Sequence[Split]) -> bool:
        """Whether the database has the keys of these splits in its character set; no row is read."""
        with reader.connect("plan") as session:
            source = reader.known(session)
            try:
                for split in splits:
                    session.rows(source.sql(["1"], [*split_conditions(source, split), "1 = 0"]))
            except SourceError as error:
                _log.info(
                    "the %s cannot look up some keys of the other side, so its rows are read again: %s",
                    self.role,
                    error,
                )
                return False
        return True


def _shares(
    ranges: Sequence[list[Any]], runs: Sequence[tuple[int, int]], buckets: int
) -> Iterator[list[list[Any]]]:
    """The ranges in parts, each of which one statement reads."""
    part: list[list[Any]] = []
    bucket_count = 0
    for bounds, (first, last) in zip(ranges, runs, strict=True):
        part.append(bounds)
        bucket_count += last - first + 1
        if len(part) == _RANGES_PER_STATEMENT or bucket_count * _MOST_PIECES >= buckets:
            yield part
            part, bucket_count = [], 0
    if part:
        yield part


def _can_be_looked_up(value: object) -> bool:
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    return is_date or (isinstance(value, int | str) and not isinstance(value, bool | TextOf))


def open_sides(
    source: Endpoint,
    target: Endpoint,
    limits: Mapping[str, Any],
    *,
    exclude: Sequence[str],
    steps: Sequence[object] = (),
) -> tuple[Side, Side]:
    """Open the readers of both sides, and find their columns and keys. `steps` are run on the source's rows.

    Raises:
        ChannelError: an option, or what a side says of it.
    """
    sides = (
        _open("source", source, limits, exclude, steps),
        _open("target", reading_end(target), limits, exclude, ()),
    )
    columns = sides[0].all_columns | sides[1].all_columns
    if unknown := next((name for name in exclude if name.lower() not in columns), None):
        raise OptionError(
            f"option 'exclude' names column {unknown!r}, which neither side has: correct the name",
            option="exclude",
            got=unknown,
        )
    return sides


def _open(
    role: str,
    end: Endpoint,
    limits: Mapping[str, Any],
    exclude: Sequence[str],
    steps: Sequence[object],
) -> Side:
    if end.spark_format:
        raise UnsupportedError(
            f"the {role} is Spark's format {end.name!r}: verify reads by spark-channel's connectors. Name one with "
            "'name' instead of 'format'"
        )
    ends = end.resolve(first_reachable)
    if len(ends) > 1:
        raise UnsupportedError(
            f"the {role} has {len(ends)} tables: verify compares one table with one. Verify them one by one"
        )
    (end,) = ends
    reader, schema = _read(end, limits, warn=True)
    left_out = {name.lower() for name in exclude}
    all_columns = {name.lower() for name in schema.names}
    compared = [name for name in schema.names if name.lower() not in left_out]
    if left_out and compared and len(compared) < len(schema.names) and not steps:
        options = {name: value for name, value in end.options.items() if name.lower() != "columns"}
        end = replace(end, options={**options, "columns": ",".join(map(_quoted, compared))})
        reader, schema = _read(end, limits, warn=False)
    name = end.name or find_connector(dict(end.options), "reader").name
    side = Side(
        role, end, reader, prepare(steps, schema), f"{name} {describe(reader.options)}".strip()
    )
    side.all_columns = frozenset(all_columns | {name.lower() for name in side.schema.names})
    if side.database is not None:
        _look(side, side.database)
    return side


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _read(end: Endpoint, limits: Mapping[str, Any], *, warn: bool) -> tuple[Reader, pa.Schema]:
    reader, schema = open_reader(end, limits, warn=warn)
    if schema is None:
        schema = reader.schema()
    schema = without_notes(schema)
    return reader.with_schema(schema), schema


def _look(side: Side, reader: SqlReader) -> None:
    with reader.connect("plan") as session:
        source = reader.known(session)
        side.json = frozenset(
            column.name for column in source.columns if column.declared.lower() in _JSON
        )
        table = source.table
        if table is None or table.is_view:
            return
        side.table = table
        read = {column.name for column in source.columns}
        never_null = reader.dialect.is_never_null
        not_null = {column.name for column in table.columns if never_null(table, column)}
        if not not_null.issuperset(table.primary):  # a key of SQLite's may hold NULL
            nulls = " OR ".join(source.is_null(column) for column in table.primary)
            if not session.rows(reader.dialect.limited(source.sql(["1"], [nulls]), 1)):
                not_null |= set(table.primary)
    keys = (key for key in (table.primary, *table.unique) if not_null.issuperset(key))
    side.key = next((tuple(key) for key in keys if key and read.issuperset(key)), ())


def reading_end(end: Endpoint) -> Endpoint:
    """A target as its connector's reader takes it: without the options that only its writer has."""
    if end.spark_format:
        return end
    named = {"reader": end.name} if end.name else {}
    connector = find_connector({**named, **end.options}, "reader")
    only = _known(connector, "writer") - _known(connector, "reader")
    return replace(
        end,
        options={key: value for key, value in end.options.items() if key.lower() not in only},
        parts=tuple(
            replace(part, options={k: v for k, v in part.options.items() if k.lower() not in only})
            for part in end.parts
        ),
    )


def _known(connector: Connector, half: str) -> set[str]:
    if getattr(connector, half) is None:
        return set()
    model = connector.options_class(half)
    return {*model.names(), *(name.lower() for name in model.aliases)}
