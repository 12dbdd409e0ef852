"""Feeds of several tables by one log share this: how tables are listed, named in rows, and reported.

Each batch has rows of one table, with that table's columns, and its name in the last column, `_table`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.base.feed import TABLE, FeedLag, FeedOptions, TableLag, change_schema
from spark_channel.connectors.sql.feed.incremental_snapshot import (
    ChunkWindow,
    Key,
    SeveralTables,
    WatermarkLog,
)
from spark_channel.connectors.sql.feed.log_feed import BaseChunk, SchemaRule
from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError
from spark_channel.plain_text import log_of

__all__ = [
    "CHANGE_BYTES",
    "MOST_WAITS",
    "OWN_COLUMNS",
    "RANGE_ROWS",
    "RANGE_SECONDS",
    "READ_AGAIN",
    "REMOVE",
    "NamedLog",
    "TableWaiting",
    "base_refused",
    "check_base",
    "check_names",
    "check_options",
    "columns_advice",
    "is_pattern",
    "lag_of_tables",
    "listed",
    "no_column",
    "not_followed",
    "of_table",
    "renamed",
    "rows_schema",
    "rules_of",
    "warn_of_dropped",
    "warn_of_gone_rows",
    "with_name",
]

_log = log_of(__name__)

CHANGE_BYTES = 128
"""A change's size, where a limit is given in bytes alone."""
RANGE_ROWS = 500_000
"""Existing rows of a range, where no limit is given."""
RANGE_SECONDS = 0.4
"""The duration of a range of several tables, so that a chunk of one does not delay the changes of the others."""
MOST_WAITS = 3
"""Ranges of the log alone before the base has its turn, where more changes come than a range takes."""

OWN_COLUMNS = (TABLE, "_op", "_lsn", "_commit_ts")
REMOVE = (
    "`spark-channel tunnel remove-table`, after which the tunnel continues with the others where it is (a channel that "
    "is parked: after `spark-channel tunnel resume`)"
)
READ_AGAIN = (
    "`spark-channel tunnel resnapshot` for this table, which reads it again with the columns that it has now, and does "
    "not report rows deleted meanwhile"
)


# --- options, names and columns ---


def check_options(options: SqlReadOptions, instead: str) -> None:
    """`instead`: how one table is followed.

    Raises:
        OptionError: an option of one table.
    """
    for name, given in (("columns", options.columns), ("customSchema", options.custom_schema)):
        if given:
            raise OptionError(
                f"option {name!r} goes with one table, and 'tables' names several: omit it, or follow the table "
                f"by {instead}",
                option=name,
            )


def listed(text: str, quote: str = '"') -> list[str]:
    """The items of a list of names, of which some are in quotes.

    Raises:
        OptionError: it is empty, or has a quote without its partner.
    """
    name = re.compile(rf"(?:{quote}(?:[^{quote}]|{quote}{quote})*{quote}|[^{quote},])+")
    items = [each.strip() for each in name.findall(text)]
    if not all(items) or name.sub("", text) != "," * (len(items) - 1) or not items:
        raise OptionError(
            f"option 'tables' got {text!r}; it takes names of tables with commas between them, "
            "such as shop.orders, shop.items, or all tables of a schema: shop.*",
            option="tables",
            got=text,
        )
    return items


def is_pattern(item: str) -> bool:
    return item == "*" or item.endswith(".*")


def check_names(source: ReadSource, only: Collection[str] | None = None) -> None:
    """`only`: others of its columns are left out.

    Raises:
        SchemaError: a column has a name of the feed's own.
    """
    for name in source.names:
        if name in OWN_COLUMNS and (only is None or name in only):
            raise SchemaError(
                f"{source.label} has a column {name!r}, which is a name of the feed's own: "
                "rename the column, or omit the table"
            )


def check_base(name: str, why: str | None, instead: str, joins: str = "") -> None:
    """`why` its existing rows cannot be read beside its changes. `joins`: the message's words for a table that a tunnel
    did not begin with.

    Raises:
        SourceError: they cannot.
    """
    if why is not None:
        raise SourceError(
            f"table {name!r}{joins and f', {joins},'} cannot be read beside its changes: {why}. "
            f"Follow it by {instead}, or make a tunnel with it and tunnelType=stream, "
            "which does not read existing rows"
        )


def base_refused(instead: str) -> OptionError:
    """The error for existing rows that are to be read before the changes."""
    return OptionError(
        "option 'tables' reads existing rows beside the changes only: omit 'baseMode' and 'tunnelType', or follow "
        f"each table by {instead}",
        option="tables",
    )


def renamed(name: str, now: str) -> SourceError:
    """The error for a table that has another name now."""
    return SourceError(
        f"table {name!r} of the tunnel is {now!r} now. Rename it back; or run {REMOVE}, and "
        f"`spark-channel tunnel add-table --table {now}`, which reads its existing rows again"
    )


def columns_advice(rule: SchemaRule) -> str:
    """What to do about columns that a table does not continue with."""
    if rule.evolves:
        return f"Run {READ_AGAIN}"
    other = "" if rule.ignores else ", or with ignore to continue without them"
    return f"Start it again with onSchemaChange=evolve to continue with its new columns{other}; or run {READ_AGAIN}"


def rules_of(options: FeedOptions) -> tuple[SchemaRule, SchemaRule]:
    """The rule of ranges that are planned, and that of ranges that were handed out: they are read whatever their tables
    have got or lost since, and the next range reports it.
    """
    evolves, ignores = options.evolves, options.ignores
    advice = columns_advice(SchemaRule(evolves=evolves, ignores=ignores))
    rule = SchemaRule(evolves=evolves, ignores=ignores, advice=advice)
    return rule, rule if ignores else SchemaRule(ignores=True, advice=advice, logs=False)


def not_followed(item: str) -> OptionError:
    """The error for options that name a table which was not one of the tunnel's when it was made."""
    return OptionError(
        f"option 'tables' names {item!r}, which the tunnel does not follow: add it with `spark-channel "
        f"tunnel add-table --table {item}`",
        option="tables",
        got=item,
    )


@contextmanager
def of_table(name: str) -> Iterator[None]:
    """Have the errors raised inside name the table that they are about."""
    try:
        yield
    except ChannelError as error:
        error.tables = error.tables or (name,)
        raise


def warn_of_dropped(name: str) -> None:
    _log.warning(
        "table %r of the tunnel was dropped: its changes up to then are delivered, and the other tables "
        "continue. `spark-channel tunnel remove-table --table %s` removes it from the tunnel",
        name,
        name,
    )


def warn_of_gone_rows(name: str) -> None:
    _log.warning(
        "table %r was dropped before existing rows of it were read, which are gone: its changes in the log are "
        "delivered",
        name,
    )


def no_column(_name: str) -> bool:
    """A position has the columns of its tables: the log has no others."""
    return False


# --- rows ---


def rows_schema() -> pa.Schema:
    """The columns that the rows of all tables have."""
    common = change_schema(pa.schema([]))
    return common.append(pa.field(TABLE, pa.string()))


def with_name(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    names = pa.repeat(pa.scalar(name), batch.num_rows)
    schema = batch.schema.append(pa.field(TABLE, pa.string()))
    return pa.RecordBatch.from_arrays([*batch.columns, names], schema=schema)


class NamedLog:
    """Chunks whose rows have their table's name. See `WatermarkLog`."""

    def __init__(self, log: WatermarkLog[Any, Any], name: str) -> None:
        self._log, self._name = log, name
        self.mark, self.events = log.mark, log.events

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> "_NamedChunk":
        with of_table(self._name):
            return _NamedChunk(cast(BaseChunk, self._log.chunk(lower, upper, rows)), self._name)


class _NamedChunk:
    def __init__(self, chunk: BaseChunk, name: str) -> None:
        self._chunk, self._name = chunk, name
        self.last, self.nbytes, self.sees = chunk.last, chunk.nbytes, chunk.sees

    def kept(self, window: ChunkWindow) -> Iterator[pa.RecordBatch]:
        for batch in self._chunk.kept(window):
            yield with_name(batch, self._name)


# --- lag ---


@dataclass(frozen=True, slots=True)
class TableWaiting:
    """`changes` of a table, `nbytes` of them as the log has them, and the `seconds` since the commit of the first;
    None = not known.
    """

    changes: int | None = None
    nbytes: int | None = None
    seconds: float | None = None


def lag_of_tables(
    token: SeveralTables, waiting: Mapping[str, TableWaiting], present: Sequence[str]
) -> FeedLag:
    """By what waits of each table. `present`: the tables that were not dropped."""
    tables = tuple(
        _lag_of(name, place, waiting[name], is_there=name in present)
        for name, place in token.tables.items()
    )
    changes = _sum([each.changes for each in tables])
    # Where one has changes that were not counted, the first of those that were is the oldest in the log.
    seconds = max((each.seconds for each in tables if each.seconds is not None), default=None)
    if token.is_read:
        return FeedLag(changes, seconds=seconds, tables=tables)
    bases = [each.base for each in token.tables.values() if each.since is not None]
    # None: one waits, and how many it has is not known.
    known = [each for each in bases if each is not None]
    unknown = [None] * (len(bases) - len(known))
    left = _sum([*unknown, *(each.left for each in known)])
    return FeedLag(
        None if changes is None or left is None else left + changes,
        seconds=seconds,
        base_read=sum(each.read for each in known),
        base_rows=_sum([*unknown, *(each.rows for each in known)]),
        base_chunks=sum(each.chunks for each in known),
        tables=tables,
    )


def _lag_of(name: str, place: Any, waiting: TableWaiting, *, is_there: bool) -> TableLag:
    lag = TableLag(
        name, "changes", changes=waiting.changes, nbytes=waiting.nbytes, seconds=waiting.seconds
    )
    if not is_there:
        return replace(lag, stage="dropped")
    if place.since is None:
        return lag
    if place.base is None:
        return replace(lag, stage="waits")
    base = place.base
    return replace(
        lag, stage="base", base_read=base.read, base_rows=base.rows, base_chunks=base.chunks
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None
