"""MysqlReader, splits by index estimates, health."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import ClassVar, cast

from spark_channel.connectors.base.contract import ColumnFact, Reader
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions, LogFacts
from spark_channel.connectors.base.health import Health
from spark_channel.connectors.mysql.definition import read_definition, read_definitions
from spark_channel.connectors.mysql.dialect import (
    LOCAL_ENGINES,
    MysqlDialect,
    MysqlTable,
    find_rows,
    state_of,
    table_of,
)
from spark_channel.connectors.mysql.health import MysqlHealth
from spark_channel.connectors.mysql.options import MysqlReadOptions, address_of
from spark_channel.connectors.mysql.session import (
    MysqlSession,
    code_of,
    is_away,
    is_short,
    quoted,
)
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import Splitter
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["MysqlReader", "MysqlSplitter", "even_ranges"]


# Ranges of an integer key with about equal rows, by the server's index estimates, without a scan.


_DENIED = frozenset({1142, 1143})
"""No right on the table, or on a column of it."""
_CELLS_PER_RANGE = 16
_MOST_CELLS = 4096
"""Each costs the server two dives into an index, about 0.5 ms."""


def even_ranges(
    least: int, most: int, parts: int, estimate: Callable[[int, int], int]
) -> list[tuple[int, int, float]]:
    """Up to `parts` ranges [start, end) from `least` to `most`, each with its share of the rows.

    `estimate` returns about how many rows have keys in [start, end). The fullest range is halved again and again, until
    what is left is small beside a part; skewed keys only make it halve more often in one place.
    """
    cells = [(-estimate(least, most + 1), least, most + 1)]
    single: list[tuple[int, int, int]] = []
    wanted = min(_CELLS_PER_RANGE * parts, max(_MOST_CELLS, parts))
    while cells and len(cells) + len(single) < wanted:
        rows, start, end = heapq.heappop(cells)
        if end - start == 1:
            single.append((rows, start, end))
            continue
        middle = (start + end) // 2
        for low, high in ((start, middle), (middle, end)):
            heapq.heappush(cells, (-estimate(low, high), low, high))
    ordered = sorted((end, -rows) for rows, _, end in (*cells, *single))
    ends = [end for end, _ in ordered]
    sums = list(accumulate(rows for _, rows in ordered))
    total = max(1, sums[-1])
    chosen = [least, *_nearest(ends, sums, total, parts), most + 1]
    below = dict(zip(ends, sums, strict=True))
    below[least] = 0
    return [(start, end, (below[end] - below[start]) / total) for start, end in pairwise(chosen)]


def _nearest(ends: list[int], sums: list[int], total: int, parts: int) -> list[int]:
    """For each inner boundary the end of a cell that is nearest to its place; each is taken once."""
    found: list[int] = []
    at = 0
    for part in range(1, parts):
        place = total * part / parts
        while at + 1 < len(ends) and abs(sums[at + 1] - place) <= abs(sums[at] - place):
            at += 1
        if ends[at] < ends[-1] and (not found or ends[at] > found[-1]):
            found.append(ends[at])
    return found


# Splits a large table by the server's index estimates, other tables by stepping through the key.


_NO_SUCH_PLAN = 3999
"""MySQL's hypergraph optimizer has no plans as tables, which are the form that every server has."""
_LARGE_BYTES = 64 << 20
"""From here on a scan of the keys costs a server more than the exact number of rows is worth."""


class MysqlSplitter(Splitter):
    """Ranges by index estimates for a table of 64 MiB or more, or under a limit; else by steps through its key."""

    def ranges(self) -> list[Split] | None:
        source = self.source
        assert isinstance(source.table, MysqlTable)
        key = source.dialect.split_key(source.table)
        if not key or self.advice == 1:
            return None
        counting_is_long = source.condition is None and self._is_large(source.table)
        if len(key) == 1 and (self.gently or counting_is_long):
            column = source.column(key[0])
            of_all = replace(source, condition=None)  # else rows are read until one meets it
            least, most = self.session.rows(of_all.sql([f"MIN({column})", f"MAX({column})"]))[0]
            if isinstance(least, int) and isinstance(most, int):
                try:
                    return self._estimated(key[0], least, most)
                except SourceError as error:
                    if code_of(error) != _NO_SUCH_PLAN:
                        raise
        return self.stepped(key)

    def _is_large(self, table: MysqlTable) -> bool:
        dialect = self.source.dialect
        size = self.session.value(
            f"SELECT data_length FROM information_schema.tables WHERE table_schema = "  # noqa: S608 - quoted
            f"{dialect.literal(table.schema, None)} AND table_name = {dialect.literal(table.name, None)}"
        )
        return int(size or 0) >= _LARGE_BYTES

    def estimated_rows(self) -> int | None:
        """None also for an engine whose rows are elsewhere: FEDERATED, SPIDER, CONNECT."""
        table = self.source.table
        if isinstance(table, MysqlTable) and str(table.engine).lower() not in LOCAL_ENGINES:
            return None
        try:
            return self._planned()
        except SourceError as error:
            if code_of(error) != _NO_SUCH_PLAN:
                raise
            return None

    def _planned(self, *conditions: str) -> int:
        session = cast(MysqlSession, self.session)
        plan = session.named(f"EXPLAIN FORMAT=TRADITIONAL {self.source.sql(['1'], conditions)}")
        return int(plan["rows"] or 0)

    def _estimated(self, key: str, least: int, most: int) -> list[Split]:
        column = self.source.column(key)
        ranges = even_ranges(
            least,
            most,
            self.advice,
            lambda start, end: self._planned(f"{column} >= {start}", f"{column} < {end}"),
        )
        total = self._planned()
        return self.cut(
            [key],
            [[start] for start, _, _ in ranges[1:]],
            [round(total * each) for _, _, each in ranges],
        )


# Reads a table, a view or a query of a MySQL server as Arrow.


class MysqlReader(SqlReader):
    """See `SqlReader`."""

    Options: ClassVar[type[ReadOptions]] = MysqlReadOptions
    Splitter = MysqlSplitter
    options: MysqlReadOptions
    dialect: MysqlDialect

    def __init__(self, options: MysqlReadOptions) -> None:
        dialect = MysqlDialect(
            zero_dates=options.zero_dates == "null",
            one_is_bit=options.tiny_int1_is_bit,
            local=options.timestamps_as == "local",
            wide_as_text=options.wide_decimals == "text",
        )
        super().__init__(options, dialect)
        dialect.in_utc = options.is_plain_table

    def is_lost(self, error: BaseException) -> bool:
        """Whether it is the server that fails, and not what is read."""
        return is_away(error) or is_short(error)

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        with MysqlSession(self.options, SourceError, patient=purpose == "read") as session:
            if purpose == "read":
                session.wait_for_slow_reader()
            if self.dialect.in_utc:
                session.execute("SET SESSION time_zone = '+00:00'")
            yield session

    def health(self) -> Health:

        return MysqlHealth(self.options, SourceError, self.row_cost)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        if self.options.binlog and options.cursor_column is not None:
            raise OptionError(
                "options 'binlog' and 'cursorColumn' are two ways to follow a table: give one of them",
                option="binlog",
            )
        if not self.options.binlog and options.cursor_column is None:
            raise OptionError(
                "a MySQL table is read as a stream from the binary log (option 'binlog' true), "
                "or by a column that only grows ('cursorColumn')",
                option="cursorColumn",
            )
        if not self.options.binlog:
            return super().feed(options)
        from spark_channel.connectors.mysql.log.tables import OneTableFeed

        return OneTableFeed(self, options)

    def tables_feed(self, options: FeedOptions) -> ChangeFeed:
        if not self.options.binlog:
            raise OptionError(
                f"option 'tables' got {options.tables!r}, and several tables of MySQL are followed by the binary log: "
                "set 'binlog' to true, or name one table with 'dbtable'",
                option="tables",
                got=options.tables,
            )
        from spark_channel.connectors.mysql.log.tables import BinlogTablesFeed

        return BinlogTablesFeed(self, options)

    def column_facts(self) -> Mapping[str, ColumnFact]:
        with self.looking() as (_, source):
            columns = () if source.table is None else source.table.columns
        return {
            each.name: ColumnFact("", each.not_null or each.has_default or each.generated)
            for each in columns
        }

    def log_facts(self, slot: str | None) -> LogFacts:
        from spark_channel.connectors.mysql.log.dump import log_facts

        with self.connect("plan") as session:
            return log_facts(session)

    def defined(self, session: Session, table: Table) -> TableDefinition:
        assert isinstance(table, MysqlTable)
        if table.is_view:
            return super().defined(session, table)
        return read_definition(session, table, self.dialect)

    def definitions(self, readers: Sequence[Reader]) -> list[TableDefinition | None]:
        names = [cast(MysqlReader, reader).options.dbtable or "" for reader in readers]
        with self.connect("plan") as session:
            rows = find_rows(session, names)
            tables = [
                None if each is None or "VIEW" in str(each.table[2]) else (table_of(each), each)
                for each in rows
            ]
            there = [each for each in tables if each is not None]
            found = iter(read_definitions(session, there, self.dialect))
        return [None if table is None else next(found) for table in tables]

    def resolve(self, session: Session) -> ReadSource:
        """A view may hold the user's conditions: it is read in the zone of the server."""
        source = self._seen_whole(session, super().resolve(session))
        if self.dialect.in_utc and source.table is not None and source.table.is_view:
            self.dialect.in_utc = False
            session.execute("SET SESSION time_zone = DEFAULT")
            source = self._seen_whole(session, super().resolve(session))
        return source

    def planned(self, session: Session) -> ReadSource:
        source = self.resolve(session)
        if not isinstance(source.table, MysqlTable) or source.table.is_view:
            return source
        table = replace(source.table, state=state_of(session, source.table))
        return replace(source, table=table)

    def _seen_whole(self, session: Session, source: ReadSource) -> ReadSource:
        """Check that the login may read all columns: the server's catalog does not show it the others.

        Without them it does not show all columns of a key either, so that the rest of them may not be unique.

        Raises:
            SourceError: it may not, and option `columns` does not choose.
        """
        table = source.table
        if not isinstance(table, MysqlTable):
            return source
        try:
            session.rows(f"SELECT * FROM {source.origin} LIMIT 0")  # noqa: S608 - quoted
        except ChannelError as error:
            if code_of(error) not in _DENIED:
                raise
            if self.options.columns is None:
                user, _, host = str(session.rows("SELECT CURRENT_USER()")[0][0]).rpartition("@")
                raise SourceError(
                    f"this login may read only the columns {', '.join(source.names)} of {source.label} in "
                    f"{session.place}, and the server hides the others: run GRANT SELECT ON "
                    f"{quoted(table.schema)}.{quoted(table.name)} TO {quoted(user)}@{quoted(host)}, or choose columns "
                    "with option 'columns'"
                ) from error
            blind = replace(table, unique=(), primary=(), loose=(), keys=(), indexes=())
            return replace(source, table=blind)
        return source

    def resource_mark(self, split: Split) -> str | None:
        return address_of(self.options).host
