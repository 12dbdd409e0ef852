"""The feed of one table by the binary log, with the columns that it had when its stream began."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from spark_channel.arrow_schema import noted
from spark_channel.connectors.base.feed import (
    FeedLag,
    FeedLimit,
    Token,
    change_schema,
    missing_source,
)
from spark_channel.connectors.mysql.binlog_decoder import ChangeDecoder
from spark_channel.connectors.mysql.binlog_feed import BinlogFeed
from spark_channel.connectors.mysql.binlog_position import GtidSet
from spark_channel.connectors.mysql.binlog_schema import check_server, check_table
from spark_channel.connectors.mysql.binlog_snapshot import obstacle, start_of
from spark_channel.connectors.mysql.binlog_table import FollowedTable
from spark_channel.connectors.mysql.binlog_token import (
    BinlogPlace,
    BinlogToken,
    TablesToken,
    followed,
    noted_table,
    recalled,
)
from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.log_feed import as_inserts, base_splits
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import SourceError
from spark_channel.planning import Split

__all__ = ["OneTableFeed"]

_log = logging.getLogger(__name__)


class OneTableFeed(BinlogFeed):
    """A list of one table, which has no name in it."""

    _cuts_at_alter = False

    def _follow(self, session: MysqlSession) -> None:
        """Find the table; one that is not there is `missing`."""
        self._schema = pa.schema([])
        try:
            source = self._reader.resolve(session)
        except SourceError as error:
            name = self._options.dbtable
            if name is None or self._reader.dialect.find_table(session, name) is not None:
                raise
            self.missing = missing_source(error)
            return
        check_table(session, source)
        check_server(session, cast(MysqlTable, source.table).schema)
        self._source = source
        self._table = followed(self._server, source, self._options)
        self._columns, self._schema = source.schema, change_schema(source.schema)

    def _recall(self, token: BinlogToken) -> None:
        """Take a table that was dropped as it was when a range was handed out."""
        assert self.missing is not None
        if token.table is None:
            raise self.missing
        self._table = recalled(self._server, self._reader, token.table)
        self._schema = change_schema(self._table.schema)

    def _check_there(self) -> None:
        if self.missing is not None:
            raise self.missing

    def schema(self) -> pa.Schema:
        if self.missing is not None and not self._schema.names:
            raise self.missing
        return self._schema if self.missing else noted(self._schema, self._source.text_lengths)

    def earliest(self) -> list[Token]:
        self._check_there()
        return super().earliest()

    def now(self) -> list[Token]:
        self._check_there()
        return super().now()

    def end(self) -> list[Token]:
        with self._session() as session:
            return [self._begun(session, self._ended(session))]

    def _begun(self, session: MysqlSession, position: GtidSet) -> Token:
        return self._known(BinlogToken(position))

    def _known(self, token: BinlogToken) -> Token:
        """With the table's present columns."""
        return replace(token, table=None if self.missing else noted_table(self._table)).token()

    def _read(self, token: Token) -> TablesToken:
        return BinlogToken.read(token, self._gtids).several()

    def _written(self, token: TablesToken) -> Token:
        return self._known(BinlogToken.of(token))

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = tokens
        with self._session() as session:
            source = self._reader.resolve(session)
            why = obstacle(source)
            if why is not None:
                _log.warning(
                    "%s is read as a whole before its changes: %s. Until then the server must keep its binary logs "
                    "(binlog_expire_logs_seconds)",
                    source.label,
                    why,
                )
                return None
            found = BinlogToken.read(token, self._gtids)
            self._check_place(session, found.position)
            return [replace(found, base=start_of(session, source, found.position)).token()]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        self._check_there()
        with self._session() as session:
            source = self._reader.resolve(session)
            self._rule.check(self._columns, source.schema, source.label, self._table.key)
            check_table(session, source)
            return self._range(session, after, limit, upto)

    def changes(self, after: Token, upto: Token) -> list[Split]:
        if self.missing is not None:
            old, new = BinlogToken.read(after, self._gtids), BinlogToken.read(upto, self._gtids)
            self._recall(new if new.table is not None else old)
        return super().changes(after, upto)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        return base_splits(self._reader, advice, str(self._position(upto[0])))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] in ("changes", "window"):
            yield from super().read(split)
            return
        for batch in self._reader.read(split):
            yield as_inserts(batch, self._schema, split.params["at"])

    def lag(self, token: Token) -> FeedLag:
        found = self._read(token)
        return FeedLag() if self.missing is not None else replace(self._lag(found), tables=())

    def _recalled(self, name: str, place: BinlogPlace) -> FollowedTable:
        """With the columns that the stream began with."""
        return self._table

    def _reader_of(self, table: FollowedTable) -> SqlReader:
        return self._reader

    def _source_of(
        self, session: MysqlSession, place: BinlogPlace, position: GtidSet
    ) -> ReadSource | None:
        return self._reader.resolve(session)

    def _has_rows(self, place: BinlogPlace, start: GtidSet) -> bool:
        if self.missing is None:
            return True
        _log.warning(
            "%s does not exist: its existing rows that were not read are lost, "
            "and its changes in the log are delivered",
            self._table.label,
        )
        return False

    def _has(self, *, in_range: bool) -> Callable[[str], bool] | None:
        return self._rule.has(self._has_column)

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column by now, which the stream did not begin with; else it was dropped."""
        if self.missing is not None:
            return False
        with self._session() as session:
            return self._options.columns is None and name in self._reader.resolve(session).names

    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        """The error for a value that its column's type cannot hold."""
        if self.missing is not None:
            return SourceError(
                f"column {error.column.name!r} of {self._table.label} has {error.what}"
            )
        with self._session() as session:
            return self._reader.refused(session, self._source, error, " (in its binary log)")
