"""A feed of one table by its own slot, with the columns that it had when its stream began."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths, noted
from spark_channel.connectors.base.feed import (
    FeedLag,
    FeedLimit,
    Token,
    change_schema,
    missing_source,
)
from spark_channel.connectors.postgresql.catalog import Part, PartReader, PgTable, find_table
from spark_channel.connectors.postgresql.log.columns import TableColumns
from spark_channel.connectors.postgresql.log.feed import FollowedTable, ReplicationFeed
from spark_channel.connectors.postgresql.log.followed_columns import LogTypes, row_columns, row_key
from spark_channel.connectors.postgresql.log.kept_wal import warn_of_kept_wal
from spark_channel.connectors.postgresql.log.pgoutput import ChangeDecoder, TableShape
from spark_channel.connectors.postgresql.log.position import lsn_text
from spark_channel.connectors.postgresql.log.publication import Followed, Published, check_published
from spark_channel.connectors.postgresql.log.slot import flushed_lsn
from spark_channel.connectors.postgresql.log.tables_token import TablesToken
from spark_channel.connectors.postgresql.log.tokens import LogToken, token_of
from spark_channel.connectors.postgresql.log.watermarks import PgWatermarks, obstacle
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.feed.base_chunk import as_inserts, base_splits
from spark_channel.connectors.sql.feed.incremental_snapshot import WatermarkLog
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["OneTableFeed"]

_log = log_of(__name__)

_LEFT = "Reset the tunnel, or begin with a new checkpoint directory, to read all rows again"
"""What to do with a stream of one table that left its publication."""


class OneTableFeed(ReplicationFeed):
    """A list of one table, which has no name in it."""

    def _follow(self) -> None:
        """Find the table; one that is not there is `missing`."""
        self._schema = pa.schema([])
        self._lengths: TextLengths = {}
        self._shape = TableShape(0, f"table {self._reader.options.dbtable!r}", ())
        self._key: tuple[str, ...] = ()
        self._apart: tuple[str, ...] = ()
        with self._session() as session:
            try:
                source = self._reader.resolve(session)
            except SourceError as error:
                name = self._reader.options.dbtable
                if name is None or find_table(session, name) is not None:
                    raise
                self.missing = missing_source(error, "If it was renamed, give it its name back. ")
                return
            # Before there is a slot or a position, so that the stream's first state is older than its first change.
            oid = cast(PgTable, source.table).oid
            self._begins_with = self._published(session, [oid])
            cast(PartReader, self._reader).part = self._begins_with.parts.get(oid, Part())
            source = self._reader.resolve(session)
            self._shape = self._check(session, source)
            self._label = source.label
            self._columns = source.schema
            self._key, self._apart = row_key(source), row_columns(source)
            self._schema = change_schema(source.schema)
            self._lengths = source.text_lengths

    def _recall(self, token: LogToken) -> None:
        """Take a table that was dropped as it was when a range was handed out."""
        assert self.missing is not None
        options = self._reader.options
        # The options that choose columns need the present table.
        if token.table is None or options.columns or options.custom_schema:
            raise self.missing
        oid, shape = token.table
        self._shape = TableShape(oid, f"table {options.dbtable!r}", shape.columns)
        self._columns = LogTypes(self._session).schema(shape.columns)
        self._key, self._apart = shape.key, shape.apart
        self._schema = change_schema(self._columns)

    def _check_there(self) -> None:
        if self.missing is not None:
            raise self.missing

    def schema(self) -> pa.Schema:
        if self.missing is not None and not self._schema.names:
            raise self.missing
        return noted(self._schema, self._lengths)

    def earliest(self) -> list[Token]:
        """As far back as the slot goes."""
        self._check_there()
        with self._session() as session:
            return [self._begun(self._made(session) or self._confirmed(session))]

    def now(self) -> list[Token]:
        """A point that every transaction before it is visible at: a new slot's, if need be a temporary one's."""
        self._check_there()
        with self._session() as session:
            return [self._begun(self._place_now(session))]

    def _begun(self, lsn: int) -> Token:
        return self._noted(self._read_token(token_of(lsn)), self._begins_with)

    def _noted(self, token: TablesToken, published: Published) -> Token:
        return LogToken.single(token.held_by(published.entries)).token()

    def _read_token(self, token: Token) -> TablesToken:
        return LogToken.read(token).several(self._shape.oid, self._columns_now)

    @property
    def _columns_now(self) -> TableColumns:
        return TableColumns(self._shape.columns, self._key, self._apart)

    def end(self) -> list[Token]:
        with self._session() as session:
            return [token_of(flushed_lsn(session))]

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = tokens
        with self._session() as session:
            source = self._reader.resolve(session)
            reason = obstacle(session, source)
            if reason is not None:
                warn_of_kept_wal(session, source, reason, self._slot)
                return None
            position = LogToken.read(token)
            base = self._start(
                session, self._table("", self._shape.oid, self._columns_now), position.lsn
            )
        return [replace(position, base=base).token()]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        self._check_there()
        position = LogToken.read(after)
        with self._session() as session:
            source = self._reader.resolve(session)
            self._rule.check(self._columns, source.schema, source.label, self._key)
            self._check_same_table(source)
            published = self._check_published(session, source.label, position)
            end = self._planned(session, self._read_token(after), limit, upto)
        return after if end is None else self._noted(end, published)

    def changes(self, after: Token, upto: Token) -> list[Split]:
        if self.missing is not None:
            old, new = LogToken.read(after), LogToken.read(upto)
            self._recall(new if new.table is not None else old)
        return super().changes(after, upto)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        return base_splits(self._reader, advice, LogToken.read(upto[0]).lsn)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] in ("changes", "window"):
            yield from super().read(split)
            return
        for batch in self._reader.read(split):
            yield as_inserts(batch, self._schema, lsn_text(split.params["at"]))

    def lag(self, token: Token) -> FeedLag:
        if self.missing is not None:
            self._recall(LogToken.read(token))
        with self._session() as session:
            return replace(self._lag(session, self._read_token(token), [""]), tables=())

    def _table(self, name: str, oid: int, columns: TableColumns) -> FollowedTable:
        """With the columns that the stream began with, whatever a position has."""
        return FollowedTable(name, self._shape.oid, self._columns_now, self._columns)

    def _reader_of(self, session: PgReadSession, name: str, oid: int) -> SqlReader:
        return self._reader

    def _rows_of(
        self, session: PgReadSession, tables: Sequence[FollowedTable]
    ) -> Mapping[str, SqlReader]:
        if self.missing is None:
            return {table.name: self._reader for table in tables}
        _log.warning(
            "%s does not exist: its existing rows that were not read are lost, "
            "and its changes in the log are delivered",
            self._shape.label,
        )
        return {}

    def _decoder_of(self, table: FollowedTable, after: int, upto: int) -> ChangeDecoder:
        has = self._rule.has(self._has_column)
        decoder = ChangeDecoder(self._shape, self._schema, after, upto, has=has)
        decoder.follow_key(self._key, self._apart)
        return decoder

    def _chunk_columns(self, table: FollowedTable) -> pa.Schema | None:
        return table.schema

    def _given(self, batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
        return batch

    def _given_log(self, log: PgWatermarks, table: str) -> WatermarkLog[int, pa.RecordBatch]:
        return log

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column by now, which the stream did not begin with; else it was dropped."""
        if self.missing is not None:
            return False
        with self._session() as session:
            return (
                self._reader.options.columns is None and name in self._reader.resolve(session).names
            )

    def _check_same_table(self, source: ReadSource) -> None:
        """The log names a table by its number, which outlives a new name, and not a table that was made again."""
        if cast(PgTable, source.table).oid != self._shape.oid:
            raise SourceError(
                f"{source.label} is another table than the one that the stream began with, which was dropped or "
                "renamed. Reset the tunnel, or begin with a new checkpoint directory, to follow the new one"
            )

    def _check_published(self, session: PgReadSession, label: str, position: LogToken) -> Published:
        """Check that the publication still has what it had at `position`; if that token does not say, when this feed
        began.

        It runs for each range, before its end is known. A table that leaves after that is reported by the next range.
        """
        oid = self._shape.oid
        now, first = self._published(session, [oid]), self._begins_with
        table = Followed(label, oid, position.entries or first.entries.get(oid, ()))
        check_published(self._publication, [table], now, _LEFT)
        return now
