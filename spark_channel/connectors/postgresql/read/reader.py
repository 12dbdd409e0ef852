"""Reads a table, a view or a query of a PostgreSQL database: by COPY, under a low limit by a cursor.

As Arrow, or, for a target that is PostgreSQL too, as COPY writes the rows.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import psycopg
import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, connecting
from spark_channel.connectors.base.contract import (
    ColumnFact,
    FetchSize,
    NativeRows,
    Read,
    Reader,
    native_batch,
)
from spark_channel.connectors.postgresql.catalog import (
    LOOKS_UP_MANY,
    Part,
    PgColumn,
    PgTable,
    described,
    find_rows,
    table_sql,
)
from spark_channel.connectors.postgresql.catalog.tables import look_up
from spark_channel.connectors.postgresql.dialect import PostgresDialect
from spark_channel.connectors.postgresql.failures import is_gone, is_short
from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.read.asyncpg_arguments import why_not_asyncpg
from spark_channel.connectors.postgresql.session import PgPlanSession, PgSession, literal_sql
from spark_channel.connectors.postgresql.types import SYSTEM, native_types
from spark_channel.connectors.sql.catalog import ReadColumn, Table
from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.connectors.sql.read.keyset import keyset_of
from spark_channel.connectors.sql.read.quantiles import places_of, quantiles_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import (
    Key,
    Quantiles,
    Splitter,
    split_conditions,
)
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.plain_text import log_of
from spark_channel.planning import Split
from spark_channel.retry import Retry

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition
    from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions, LogFacts, RetainedLog
    from spark_channel.connectors.base.health import Health
    from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
    from spark_channel.connectors.postgresql.session import PgReadSession

__all__ = [
    "PostgresReader",
    "PostgresSplitter",
]


# Splits by a key's quantiles, or by pages under a held snapshot.
#
# Quantiles come from the statistics of ANALYZE where they are fresh, else from a sample of pages,
# and from all
# rows of what is small, a view or a query. Under a limit few pages do, so that the server sorts for
# milliseconds.
# Bounds travel as PostgreSQL's own texts.


_SMALL_PAGES = 4096
"""A table of at most so many pages (32 MiB) is looked at whole."""
_PAGES_PER_SPLIT = 1000
"""Sampled for each split: the rows of a range then vary by about 3 %."""
_MIN_SAMPLED_PAGES = 3000
_MOST_SAMPLED_PAGES = 50_000
"""400 MiB, whose keys the server sorts in seconds. The many splits of a limited job then vary more, by about 20 %."""
_GENTLE_PAGES, _GENTLE_ROWS = 200, 8
"""Sampled under a limit, where that many rows are found for each split: the rows of a range may vary by a third."""
_STALE = 0.05
_OF_TYPES = """
WITH RECURSIVE part (oid) AS (
  SELECT atttypid UNION SELECT x.oid FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid
  CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
  ) AS x (oid) WHERE x.oid >= 16384
)
SELECT json_object_agg(id, said) FROM (
  SELECT 'label ' || e.oid AS id, e.enumlabel::text AS said
  FROM part JOIN pg_catalog.pg_enum e ON e.enumtypid = part.oid
  UNION ALL
  SELECT 'attributes ' || t.oid, string_agg(a.attnum || ' ' || a.atttypid, ', ' ORDER BY a.attnum)
  FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid AND t.typtype = 'c'
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped GROUP BY t.oid
) AS parts
"""
"""The parts of types that are not the server's own."""
_COLUMN_FACTS = """
SELECT attname::text, attnum::int, attnotnull OR atthasdef OR atthasmissing,
  coalesce((SELECT c.oid::text FROM pg_catalog.pg_constraint c
    WHERE c.conrelid = {oid} AND c.contype = 'p' AND attnum = ANY (c.conkey)), xmin::text),
  coalesce(pg_relation_filenode({oid})::text, (
    SELECT md5(string_agg(pg_relation_filenode(p.relid)::text, ' ' ORDER BY p.relid)) FROM pg_partition_tree({oid}) p)),
  CASE WHEN atttypid >= 16384 THEN ({types})::text END
FROM pg_catalog.pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
"""
"""VACUUM FULL, too, writes the catalog's row of a column that was added with a default
(findings/postgresql-vacuum-full-alters-columns.sh). A primary key is made again only by statements that may change the
values of its columns.
"""


_OUT_OF_LINE = """
SELECT a.attname::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
WHERE c.oid = {oid} AND c.relreplident <> 'f' AND c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0
  AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1 AND a.attstorage IN ('x', 'e')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])
    AND (i.indisreplident OR (c.relreplident = 'd' AND i.indisprimary)))
ORDER BY a.attnum
"""
"""Columns that may have values in the table's TOAST relation, where that has any."""


_DIVIDERS = """
SELECT current_setting('server_version_num')::int >= 140000
    AND (SELECT c.relam = 2 FROM pg_catalog.pg_class c WHERE c.oid = {oid}),
  (SELECT array_agg(name) FROM unnest({names}::text[]) AS n (name)
    WHERE has_column_privilege({oid}::oid, name, 'SELECT'))
"""
"""Whether it is a heap (2), whose pages are scanned by ranges; which of the names may be read."""
_log = log_of(__name__)
_PIECE_BYTES = 1 << 20
_SOCKET_BYTES = 10 << 20
"""Linux lets a receive buffer grow to 6 MiB, and a send buffer to 4 MiB: so far a COPY runs ahead."""
_CHANGES_NOTHING = {"transaction_read_only": "on"}
_LONG_ROWS = 32
_LONG_VALUES = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.reltoastrelid <> 0
  AND c.oid IN (SELECT {name}::regclass UNION ALL SELECT relid FROM pg_catalog.pg_partition_tree({name}::regclass))
  AND pg_catalog.pg_relation_size(c.reltoastrelid) > 0)
"""


class PostgresSplitter(Splitter):
    """`held`: a snapshot is held open, so that rows stay in their pages."""

    held = False
    _looked_at: tuple[ReadSource, float] | None = None

    def ranges(self) -> list[Split] | None:
        table = self._table
        assert table is not None
        if self._has_pages(table):
            return self._by_pages(table.pages)
        key = self.source.dialect.split_key(table)
        if not key:
            return None
        quantiles = self._from_statistics(table, key) or self._from_rows(key)
        if (
            quantiles.rows == 0 and not quantiles.nulls
        ):  # none of the sampled rows meets the condition
            return None
        if len(key) == 1:
            return self.by_quantiles(key[0], quantiles)
        return [
            *self.cut(key, quantiles.bounds, quantiles.rows),
            *self.nulls(key[0], quantiles.nulls),
        ]

    def estimated_rows(self) -> int | None:
        """None also where a part of it is on another server, of which this one may know nothing."""
        ((plan,),) = self.session.rows(f"EXPLAIN (FORMAT JSON) {self.source.sql(['1'])}")
        plans = json.loads(plan) if isinstance(plan, str) else plan
        is_foreign = '"Node Type": "Foreign Scan"' in json.dumps(plans)
        return None if is_foreign else int(plans[0]["Plan"]["Plan Rows"])

    def quantiles(self, name: str) -> Quantiles:
        return self._from_rows((name,))

    def divider(self) -> tuple[str, ...]:
        """A key; without one pages, which need the snapshot, since an UPDATE moves a row to another ctid."""
        table = self._table
        if table is None or table.is_view:
            return ()
        has_pages = self._has_pages(table)
        names = [*table.key, "ctid"] if has_pages else list(table.key)
        if not names:
            return ()
        literals = ", ".join(self.source.dialect.literal(name, None) for name in names)
        (has_ranges, *readable) = self.session.rows(
            _DIVIDERS.format(oid=table.oid, names=f"ARRAY[{literals}]")
        )[0]
        may_read = set(readable[0] or ())
        if table.key and may_read.issuperset(table.key):
            return table.key
        return ("ctid",) if has_pages and has_ranges and "ctid" in may_read else ()

    def why_undivided(self) -> str:
        table = self._table
        if table is None or table.is_view:
            return super().why_undivided()
        no_key = "the table has no unique key of NOT NULL columns that this login may read"
        if self.held or not _is_alone(table):
            return f"{no_key}. Add one, or name a 'partitionColumn' of more values"
        return (
            f"{no_key}, and an UPDATE moves rows to other pages. Add one, or read it by a transfer with snapshot=true, "
            "which divides by pages"
        )

    def looked_at(self) -> tuple[ReadSource, float]:
        return self._looked_at or super().looked_at()

    def bound_text(self, text: str) -> str:
        return f"CAST({text} AS text)"

    @property
    def _table(self) -> PgTable | None:
        table = self.source.table
        assert table is None or isinstance(table, PgTable)
        return table

    def _has_pages(self, table: PgTable) -> bool:
        """Whether its rows stay in their pages, or a statement finds that they were moved."""
        return self.held and _is_alone(table)

    def _by_pages(self, pages: int) -> list[Split]:
        """Good for as long as one snapshot is held, since an update moves a row."""
        parts = max(1, min(self.advice, pages))
        return self.cut(
            ["ctid"], [[f"({pages * part // parts},0)"] for part in range(1, parts)], None
        )

    def _from_statistics(self, table: PgTable, key: Sequence[str]) -> Quantiles | None:
        """The histogram that ANALYZE made of a unique column, where few rows have changed since."""
        if self.source.condition is not None or len(key) != 1 or tuple(key) not in table.unique:
            return None
        if table.pages <= _SMALL_PAGES or table.kind == "p":
            return None
        schema, name, column = (
            self.source.dialect.literal(part, None) for part in (table.schema, table.name, key[0])
        )
        rows = self.session.rows(
            "SELECT s.histogram_bounds::text::text[], c.reltuples::bigint, "  # noqa: S608 - quoted
            "coalesce(t.n_mod_since_analyze, 0)::bigint "
            f"FROM pg_catalog.pg_stats s JOIN pg_catalog.pg_class c ON c.oid = {table.oid} "
            "LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid "
            f"WHERE s.schemaname = {schema} AND s.tablename = {name} AND s.attname = {column} "
            "AND s.most_common_vals IS NULL AND NOT s.inherited AND s.histogram_bounds IS NOT NULL"
        )
        if not rows:
            return None
        bounds, count, changed = rows[0]
        buckets = len(bounds) - 1
        even = (part for part in range(1, buckets + 1) if buckets % part == 0)
        parts = min(even, key=lambda part: abs(part - self.advice))
        if changed > _STALE * count or not self.advice * 0.75 <= parts <= self.advice * 1.5:
            return None
        step = buckets // parts
        return Quantiles([[str(bounds[part * step])] for part in range(1, parts)], int(count), None)

    def _from_rows(self, key: Sequence[str]) -> Quantiles:
        sampled, share = (
            self._sampled(_GENTLE_PAGES, 4 * _GENTLE_PAGES) if self.gently else (self.source, 1.0)
        )
        quantiles = self._found(sampled, key) if share < 1.0 else None
        if quantiles is None or (quantiles.rows or 0) < _GENTLE_ROWS * self.advice:
            sampled, share = self._sampled()
            quantiles = self._found(sampled, key)
        self._looked_at = sampled, share
        if share == 1.0:
            return quantiles
        rows, nulls = (
            None if number is None else round(number / share)
            for number in (quantiles.rows, quantiles.nulls)
        )
        # Rows that were not sampled may have what no sampled row has.
        counts = quantiles.counts and [round(number / share) for number in quantiles.counts]
        return Quantiles(
            quantiles.bounds, None if nulls and not rows else rows, nulls or None, counts
        )

    def _found(self, sampled: ReadSource, key: Sequence[str]) -> Quantiles:
        return self._of_one(sampled, key[0]) if len(key) == 1 else self._of_several(sampled, key)

    def _sampled(
        self, pages: int | None = None, small: int = _SMALL_PAGES
    ) -> tuple[ReadSource, float]:
        """Some pages of the table, and the share of them; all rows of one of `small` pages."""
        if pages is None:
            pages = min(
                max(_MIN_SAMPLED_PAGES, _PAGES_PER_SPLIT * self.advice), _MOST_SAMPLED_PAGES
            )
        table = self._table
        if table is None or table.is_view or table.pages <= max(small, pages):
            return self.source, 1.0
        share = pages / table.pages
        sample = f"{self.source.origin} TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (0)"
        return replace(self.source, origin=sample), share

    def _of_one(self, sampled: ReadSource, name: str) -> Quantiles:
        """One aggregate gives the number of rows, of NULLs, and the values at 0, 1/n, 2/n, ..., some of them equal."""
        column, count = sampled.column(name), places_of(self.advice)
        shares = ", ".join(repr(place / count) for place in range(count))
        values = f"percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY {column}) AS taken"
        looked = sampled.sql(["count(*) AS total", f"count({column}) AS present", values])
        rows = self.session.rows(
            "SELECT total, present, min(CAST(v AS text)), count(v) "  # noqa: S608 - quoted
            f"FROM ({looked}) AS looked LEFT JOIN LATERAL unnest(taken) AS u (v) ON true "
            "GROUP BY total, present, v ORDER BY v"
        )
        total, present = int(rows[0][0]), int(rows[0][1])
        starts: list[tuple[str, float]] = []
        before = 0
        for _, _, value, places in rows if present else ():
            starts.append((str(value), before * present / count))
            before += int(places)
        return quantiles_of(starts, present, total - present, self.advice)

    def _of_several(self, sampled: ReadSource, key: Sequence[str]) -> Quantiles:
        columns = [sampled.column(name) for name in key]
        names = [f"k{number}" for number in range(len(key))]
        texts = [
            f"CAST({column} AS text) AS {name}" for column, name in zip(columns, names, strict=True)
        ]
        ranked = sampled.sql(
            [
                *texts,
                f"row_number() OVER (ORDER BY {', '.join(columns)}) AS n",
                "count(*) OVER () AS total",
            ]
        )
        # The first row of each part is floor(total * part / advice) + 1. Of row n that part is asked, not of each part
        # its row: for many parts that would take longer than the sort.
        parts = self.advice
        rows_found = self.session.rows(
            f"SELECT {', '.join(names)}, total, n FROM ({ranked}) AS ranked "  # noqa: S608 - quoted
            f"WHERE ((n - 1) * {parts} + total - 1) / total * total / {parts} = n - 1 ORDER BY n"
        )
        bounds: list[Key] = [list(map(str, row[:-2])) for row in rows_found if row[-1] > 1]
        return Quantiles(bounds, int(rows_found[0][-2]) if rows_found else 0, 0)


class PostgresReader(SqlReader):
    """Splits by ranges of a key; under a held snapshot, which only a transfer has, by ranges of pages.

    One split is one statement and sees one state of the database. Splits of one job may see different
    states if another session writes meanwhile, unless option `snapshot` and `hold` tie them together.
    """

    Options: ClassVar[type[ReadOptions]] = PostgresReadOptions
    Splitter = PostgresSplitter
    takes_pieces = True
    native_system = SYSTEM
    options: PostgresReadOptions

    def __init__(self, options: PostgresReadOptions) -> None:
        super().__init__(options, PostgresDialect(local=options.timestamps_as == "local"))
        self._snapshot: str | None = None
        self._is_builtin = False
        self._why_no_copies: str | None = None
        self._long: bool | None = None
        self.part = Part()
        """The part of the table that a publication has, which its feed reads."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether it is the server that fails, and not what is read."""
        return is_gone(error) or is_short(error)

    def connect(self, purpose: str) -> PgSession:
        kind: type[PgSession] = PgPlanSession
        if purpose == "read":  # of a copy between two of PostgreSQL, nothing is: 20 MB
            from spark_channel.connectors.postgresql.session import PgReadSession

            kind = PgReadSession
        return kind.lent(
            self.options, failure=SourceError, purpose=purpose, settings=_CHANGES_NOTHING
        )

    def health(self) -> "Health":
        from spark_channel.connectors.postgresql.health import PostgresHealth

        return PostgresHealth(self.options, SourceError, self.row_cost)

    def knows_key(self, table: Table) -> bool:
        """Not of a table from which others inherit."""
        return super().knows_key(table) and isinstance(table, PgTable) and not table.is_parent

    def defined(self, session: Session, table: Table) -> "TableDefinition":
        assert isinstance(session, PgSession)
        assert isinstance(table, PgTable)
        from spark_channel.connectors.postgresql.definition import read_definition

        return read_definition(session, table)

    def definitions(self, readers: Sequence[Reader]) -> "list[TableDefinition | None]":
        from spark_channel.connectors.postgresql.definition import defined

        names = [cast(PostgresReader, reader).options.dbtable or "" for reader in readers]
        with self.connect("plan") as session:
            assert isinstance(session, PgSession)
            with session.transaction("", LOOKS_UP_MANY):
                rows = find_rows(session, names)
                tables = [None if row is None else described(*row) for row in rows]
                definitions = iter(
                    defined(session, [table for table in tables if table is not None])
                )
        return [None if table is None else next(definitions) for table in tables]

    def look_up(self, names: Sequence[str]) -> None:
        with self.connect("plan") as session, session.transaction("", LOOKS_UP_MANY):
            look_up(session, names)

    @property
    def is_builtin(self) -> bool:
        """Whether PostgreSQL itself has made the types of all columns. The source is known."""
        return self._is_builtin

    def resolve(self, session: Session) -> ReadSource:
        source = self._published(super().resolve(session))
        self._is_builtin = all(column.builtin for column in _declared(source))
        return source

    def _published(self, source: ReadSource) -> ReadSource:
        """`source` without the rows and columns that the publication leaves out."""
        names, condition = self.part.columns, self.part.condition
        if names is not None:
            out = [column.name for column in source.columns if column.name not in names]
            if out and self.options.columns is not None:
                raise OptionError(
                    f"option 'columns' names {', '.join(out)}, and the publication's column list of {source.label} has "
                    f"{', '.join(names)} only: omit it, or add it to the list with ALTER PUBLICATION ... SET TABLE",
                    option="columns",
                )
            columns = tuple(column for column in source.columns if column.name in names)
            source = replace(source, columns=columns)
        return source if condition is None else replace(source, condition=condition)

    @contextmanager
    def hold(self) -> Iterator[None]:
        if not self.options.snapshot:
            yield
            return
        with self.connect("snapshot") as session:
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._snapshot = str(session.value("SELECT pg_export_snapshot()"))
            begun = SYSTEM_CLOCK.now()
            try:
                yield
            finally:
                self._snapshot = None
                seconds = SYSTEM_CLOCK.now() - begun
                _log.info("the transaction of option 'snapshot' was open for %.0f s", seconds)

    def split(self, advice: int) -> list[Split]:
        if self.options.snapshot and self._snapshot is None:
            raise OptionError(
                "option 'snapshot' needs a process that holds the snapshot open until all rows are read, "
                "which only a transfer does: use spark_channel.transfer, or omit the option",
                option="snapshot",
            )
        with self.connect("plan") as session:
            if self.stored_is_asked:
                self.find_stored(session)
            with _of_snapshot(session, self._snapshot):
                splits = self.fine_splits(session, max(1, advice))
        snapshot = {"snapshot": self._snapshot} if self._snapshot is not None else {}
        return [Split({**split.params, **snapshot}, split.rows, split.nbytes) for split in splits]

    def splitter(self, session: Session, advice: int) -> PostgresSplitter:
        splitter = cast(PostgresSplitter, super().splitter(session, advice))
        splitter.held = self._snapshot is not None
        return splitter

    @contextmanager
    def reading(self) -> Iterator[Read]:
        connect: Callable[[str], PgSession] = self.copies if self.native else self.connect
        reached = partial(self._reached, partial(connect, "read"))
        # A new connection costs the server 10 to 50 ms of CPU.
        with SessionHolder(reached) as copies, SessionHolder(self.connected) as line:
            yield partial(self.naming_rights, partial(self._read, copies, line))

    def _reached(self, connect: Callable[[], PgSession]) -> PgSession:
        """A session, of a server that may be away for a while: a job is running."""
        retry = Retry(self.options.retry_timeout, what=f"reaching {self.options.address.shown}")
        with connecting():
            return retry.call(connect, is_gone)

    def remarks(self, splits: Sequence[Split]) -> list[str]:
        return [*self._remarks_on_rows(), *self._remarks_on_time(splits)]

    def _remarks_on_rows(self) -> list[str]:
        source = self._source
        if source is None or not isinstance(source.table, PgTable) or not source.table.is_filtered:
            return []
        remark = (
            f"row security applies to this login on {source.label}: only the rows that its policies show are read. "
            "A role with BYPASSRLS reads all rows"
        )
        return [remark]

    def _remarks_on_time(self, splits: Sequence[Split]) -> list[str]:
        if self._snapshot is None or self.fetch_size == FetchSize():
            return super().remarks(splits)
        remark = (
            "option 'snapshot' holds one transaction open until all rows are read, however slow the limit makes that: "
            "until then vacuum removes nothing that it can see. Without it each statement is short, and sees its own "
            "state"
        )
        return [remark]

    def native_or_reason(self, splits: Sequence[Split]) -> NativeRows | str:
        source, options = self._source, self.options
        if source is None:
            return "the table is not known"
        if options.custom_schema is not None:
            return "option 'customSchema' is set"
        if options.timestamps_as != "instant":
            return f"option 'timestampsAs' is {options.timestamps_as}"
        if options.floats_as != "number":
            return f"option 'floatsAs' is {options.floats_as}"
        types = native_types(_declared(source)) if self._is_builtin else None
        if types is None:
            return "a column has a type whose bytes another server may not understand"
        if any(self._rows_at_once(split) is not None for split in splits):
            return "the limit is so low that rows are fetched by a cursor"
        if options.statement_seconds and any(
            self.may_be_short(split) and keyset_of(source, split) is not None for split in splits
        ):
            # The key of the last row is not read from what COPY writes.
            return "option 'statementSeconds' needs the keys of the rows"
        obstacle = self.why_no_copies
        return obstacle or NativeRows(SYSTEM, source.schema, types)

    def may_be_short(self, split: Split) -> bool:
        """A snapshot's transaction is as long as its read."""
        return self._snapshot is None and "snapshot" not in split.params

    def _read(
        self, copies: SessionHolder, line: SessionHolder, split: Split
    ) -> Iterator[pa.RecordBatch]:
        batches = None if self.native else self.short(split, line)
        if batches is not None:
            yield from batches
            return
        if self._source is None and not self.native:
            self._known_by(copies)
        with copies.answering() as session:
            assert isinstance(session, PgSession)
            snapshot = split.params.get("snapshot")
            if snapshot is None and self._rows_at_once(split) is None:
                yield from self.rows(session, split)
                return
            with session.transaction() if snapshot is None else _of_snapshot(session, snapshot):
                yield from self.rows(session, split)

    def rows(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        if self.native:
            return self._as_native(cast("PgCopySession", session), split)
        return super().rows(session, split)

    def _as_native(self, session: "PgCopySession", split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as they come."""
        source = self._source
        assert source is not None  # or native rows would not have been requested
        columns = [source.column(column.name) for column in source.columns]
        sql = source.sql(columns, split_conditions(source, split))
        size = min(_PIECE_BYTES, self.batch_size(split).nbytes)
        try:
            for piece, bounds in session.copy(sql, len(columns), size):
                yield native_batch(piece, bounds)
        except ChannelError as error:
            raise self.ended(session, source, split, error) from error.__cause__

    def batches(self, session: Session, sql: str, split: Split) -> Iterator[pa.RecordBatch]:
        """By COPY; or by a cursor, under a limit that the sockets of a COPY would run far ahead of."""
        rows = self._rows_at_once(split)
        if rows is None:
            return super().batches(session, sql, split)
        return cast("PgReadSession", session).fetch(sql, rows)

    def short_batches(
        self,
        session: Session,
        sql: str,
        split: Split,
        columns: Sequence[ReadColumn],
        pacer: ReadPacer | None,
    ) -> Iterator[pa.RecordBatch]:
        """By COPY, which costs the server least; in pieces by a cursor, since a COPY fills the sockets at once."""
        if pacer is None:
            return super().short_batches(session, sql, split, columns, pacer)
        if self._has_long_values(session):
            pacer.most_rows = _LONG_ROWS
        return cast("PgReadSession", session).pieces(sql, lambda: pacer.rows)

    def _has_long_values(self, session: Session) -> bool:
        """Whether a value of the table is stored outside of its row: a piece is in memory before its size is known."""
        if self._long is None:
            table = self.known(session).table
            assert table is not None  # or it had no key
            name = literal_sql(table_sql(table.schema, table.name))
            self._long = bool(session.value(_LONG_VALUES.format(name=name)))
        return self._long

    def feed(self, options: "FeedOptions") -> "ChangeFeed":
        if options.slot is not None and options.cursor_column is not None:
            raise OptionError(
                "options 'slot' and 'cursorColumn' are two ways to follow a table: give one of them",
                option="slot",
            )
        if options.slot is not None and self.options.floats_as == "text":
            raise OptionError(
                "option 'floatsAs' got 'text', and logical replication has floats as numbers: omit it",
                option="floatsAs",
                got="text",
            )
        if options.cursor_column is not None:
            return super().feed(options)
        if options.slot is None:
            raise OptionError(
                "a PostgreSQL table is read as a stream by logical replication (options 'slot' and 'publication'), "
                "or by a column that only grows ('cursorColumn')",
                option="slot",
            )
        from spark_channel.connectors.postgresql.log.one_table import OneTableFeed

        return OneTableFeed(self, options)

    def tables_feed(self, options: "FeedOptions") -> "ChangeFeed":
        if options.slot is None:
            raise OptionError(
                f"option 'tables' got {options.tables!r}, and follows several tables by one PostgreSQL slot: "
                "give 'slot' and 'publication', or name one table with 'dbtable'",
                option="tables",
                got=options.tables,
            )
        from spark_channel.connectors.postgresql.log.tables import TablesFeed

        return TablesFeed(self, options)

    def unlogged(self) -> Sequence[str]:
        with self.looking() as (session, source):
            if not isinstance(source.table, PgTable):
                return ()
            rows_found = session.rows(_OUT_OF_LINE.format(oid=source.table.oid))
        return [str(name) for (name,) in rows_found]

    def column_facts(self) -> Mapping[str, ColumnFact]:
        with self.looking() as (session, source):
            if not isinstance(source.table, PgTable):
                return {}
            oid = source.table.oid
            rows_found = session.rows(_COLUMN_FACTS.format(oid=oid, types=_OF_TYPES))
        return {
            str(name): ColumnFact(
                f"{oid}.{number}",
                bool(filled),
                str(altered),
                str(rows or ""),
                json.loads(types or "{}"),
            )
            for name, number, filled, altered, rows, types in rows_found
        }

    def log_facts(self, slot: str | None) -> "LogFacts":
        from spark_channel.connectors.postgresql.log.rights import log_facts

        with self.connect("plan") as session:
            return log_facts(session, slot or "")

    def retained_logs(self) -> "list[RetainedLog]":
        from spark_channel.connectors.postgresql.catalog import retained_logs

        with self.connect("slots") as session:
            return retained_logs(session)

    def lasts(self, split: Split) -> bool:
        return "snapshot" not in split.params

    def resource_mark(self, split: Split) -> str | None:
        return self.options.address.parameters.get("host")

    @property
    def reaches_copies(self) -> bool:
        """Whether `copies` takes all that the options say of the connection."""
        return not self.why_no_copies

    @property
    def why_no_copies(self) -> str:
        """Why the connection cannot be that of `copies`; "" = it can. A login without a password is tried."""
        if self._why_no_copies is None:
            self._why_no_copies = self._tried_copies()
        return self._why_no_copies

    def _tried_copies(self) -> str:
        from spark_channel.connectors.postgresql.read.copy_login import login_parameters

        options = self.options.parameters("")
        try:
            parameters = login_parameters(options)
        except psycopg.Error:
            return "libpq could not log in once more"
        obstacle = why_not_asyncpg(parameters, os.environ)
        if obstacle or "password" in parameters:
            return obstacle
        try:
            with self.copies("plan"):
                return ""
        except SourceError as error:  # as by Kerberos, which libpq alone knows
            return f"a login without a password failed there: {error}"

    def copies(self, purpose: str) -> "PgCopySession":
        """A session that reads rows as COPY writes them."""
        from spark_channel.connectors.postgresql.read.copy_session import PgCopySession

        return PgCopySession.lent(
            self.options, failure=SourceError, purpose=purpose, settings=_CHANGES_NOTHING
        )

    def _rows_at_once(self, split: Split) -> int | None:
        """The rows of one FETCH; None: the limit is not low enough for a cursor."""
        width, limit = int(split.params["row_bytes"]), self.fetch_size
        in_rows = [] if limit.rows is None else [limit.rows * width]
        most = min(
            [*in_rows, *([] if limit.nbytes is None else [limit.nbytes])], default=_SOCKET_BYTES
        )
        if most >= _SOCKET_BYTES:
            return None
        rows = max(1, most // width)
        return rows if self.options.fetch_size is None else min(rows, self.options.fetch_size)


def _is_alone(table: PgTable) -> bool:
    """Whether all its rows are in one file, which each statement looks at: VACUUM FULL and CLUSTER write another."""
    return table.kind in ("r", "m") and not table.is_parent


def _declared(source: ReadSource) -> list[PgColumn]:
    """The declarations of the columns that are read."""
    columns = (source.about(column.name) for column in source.columns)
    return [column for column in columns if isinstance(column, PgColumn)]


def _of_snapshot(session: PgSession, snapshot: str | None) -> AbstractContextManager[None]:
    """A transaction that sees one state of the database: that of `snapshot`, or its own."""
    imported = [] if snapshot is None else [f"SET TRANSACTION SNAPSHOT {literal_sql(snapshot)}"]
    return session.transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY", *imported)
