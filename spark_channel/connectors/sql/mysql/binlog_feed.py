"""A table's changes from the binary log: insert, update, delete and truncate as rows, in the order of the log.

A position is a set of GTIDs: the transactions that are done. So it holds on every server of the topology, and a range
between two positions has the same transactions forever, for as long as a server keeps its logs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.feed import ChangeFeed, FeedLag, FeedLimit
from spark_channel.connectors.split_reader import Token
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.change_feed import change_schema
from spark_channel.connectors.sql.cursor import check_same_columns
from spark_channel.connectors.sql.mysql.binlog_checks import charsets, check_server, check_table
from spark_channel.connectors.sql.mysql.binlog_decoder import (
    RESET,
    ChangeDecoder,
    FollowedTable,
)
from spark_channel.connectors.sql.mysql.binlog_dump import dumped, rights
from spark_channel.connectors.sql.mysql.binlog_events import Kind
from spark_channel.connectors.sql.mysql.dialect import MysqlTable
from spark_channel.connectors.sql.mysql.gtid import GtidSet, gtids_of
from spark_channel.connectors.sql.mysql.options import MysqlReadOptions
from spark_channel.connectors.sql.mysql.session import MysqlSession, is_away
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.planning import Split

__all__ = ["BinlogFeed"]

_NAME = "gtid"
_CHANGE_BYTES = 128
"""A change's size, where a limit is given in bytes alone."""
_MOST_LOOKED = 256 << 20
"""Bytes of the log that one look for the end of a range goes through."""
_FRESH_BYTES, _FRESH_SECONDS = 16 << 20, 60
"""A position without changes behind it stays behind the log by this much, at most: else its logs would be purged."""
_ASKED = 500


class BinlogFeed(ChangeFeed):
    """One partition: the log has one order. It takes nothing from the server that would have to be given back."""

    def __init__(self, reader: SqlReader) -> None:
        options = cast(MysqlReadOptions, reader.options)
        _check_options(options)
        self._reader = reader
        self._options = options
        with self._session() as session:
            source = reader.resolve(session)
            check_table(session, source)
            check_server(session, cast(MysqlTable, source.table).schema)
            self._gtids = gtids_of(session.is_mariadb)
            self._table = _followed(session, source, options, self._gtids)
            now = self._ended(session)
        self._columns = source.schema
        self._schema = change_schema(source.schema)
        self._source = source
        self._idle: tuple[str | None, GtidSet, int, int | None] = (None, now, 0, None)
        """Of the last look that found no change: where it began, how far it came, its bytes, its first time."""
        with dumped(options, now) as log:
            next(log, None)  # missing rights are told now

    def schema(self) -> pa.Schema:
        return self._schema

    def earliest(self) -> list[Token]:
        """As far back as the server has its logs."""
        with self._session() as session:
            if not session.is_mariadb:
                return [_token(self._gtids.parse(str(session.value("SELECT @@global.gtid_purged") or "")))]
            try:
                logs = session.rows("SHOW BINARY LOGS")
            except ChannelError as error:
                raise SourceError(f"{error}. {rights()}") from error
            return [_token(self._at(session, str(logs[0][0]), 4))]

    def now(self) -> list[Token]:
        """A point that every transaction up to it is visible at.

        MariaDB has a transaction in its log before its rows are visible, so there the point is that of a snapshot.
        """
        with self._session() as session:
            if not session.is_mariadb:
                return [_token(self._ended(session))]
            session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                found = {
                    str(name).lower(): value
                    for name, value in session.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")
                }
            finally:
                session.rows("ROLLBACK")
            file, at = found["binlog_snapshot_file"], int(found["binlog_snapshot_position"])
            return [_token(self._at(session, str(file), at))]

    def end(self) -> list[Token]:
        with self._session() as session:
            return [_token(self._ended(session))]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        start = self._position(after)
        with self._session() as session:
            source = self._reader.resolve(session)
            check_same_columns(self._columns, source.schema, source.label)
            self._check_place(session, start)
            end = self._end_of_range(session, start, _most(limit))
        if upto is not None:
            end = end.meet(self._position(upto))
        return after if end == start else _token(end)

    def reaches(self, token: Token, end: Token) -> bool:
        return self._position(token).covers(self._position(end))

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end = self._position(after), self._position(upto)
        return [] if start == end else [Split({"kind": "changes", "after": str(start), "upto": str(end)})]

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        note = {"at": str(self._position(upto[0]))}
        return [
            Split({**split.params, **note}, split.rows, split.nbytes) for split in self._reader.split(advice)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] == "changes":
            yield from self._changes(split)
            return
        for batch in self._reader.read(split):
            rows = batch.num_rows
            marks = [
                pa.repeat(pa.scalar("insert"), rows),
                pa.repeat(pa.scalar(split.params["at"]), rows),
                pa.nulls(rows, self._schema[-1].type),
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *marks], schema=self._schema)

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and is_away(error)

    def lag(self, token: Token) -> FeedLag:
        start = self._position(token)
        with self._session() as session:
            self._check_place(session, start)
            sizes = _sizes(session)
        with dumped(self._options, start) as log:
            decoder = self._counter()
            file, position, seconds, looked = "", 4, None, 0
            for event in log:
                looked += event.end
                if event.kind == Kind.ROTATE:
                    file = event.file()
                if event.kind in (Kind.MARIADB_GTID, Kind.MYSQL_GTID) and seconds is None:
                    position = max(4, event.position - len(event.data))
                    seconds = event.microseconds() / 1e6
                decoder.take(event)
                if decoder.found or looked > _MOST_LOOKED:
                    break
            else:
                return FeedLag(0, _behind(sizes, file, position) if seconds else 0, 0.0)
        return FeedLag(
            None, _behind(sizes, file, position), max(0.0, utc_now().timestamp() - (seconds or 0.0))
        )

    @contextmanager
    def _session(self) -> Iterator[MysqlSession]:
        with self._reader.connect("changes") as session:
            yield cast(MysqlSession, session)

    def _position(self, token: Token) -> GtidSet:
        text = token.get(_NAME)
        try:
            if set(token) == {_NAME} and isinstance(text, str):
                return self._gtids.parse(text)
        except ValueError:
            pass
        raise SourceError(
            f"the checkpoint {dict(token)!r} is not a position in this server's binary log: it is damaged, or of "
            f"another source. {RESET}"
        )

    def _ended(self, session: Session) -> GtidSet:
        """All that the server's log has now."""
        name = "gtid_binlog_pos" if cast(MysqlSession, session).is_mariadb else "gtid_executed"
        return self._gtids.parse(str(session.value(f"SELECT @@global.{name}") or ""))

    def _at(self, session: Session, file: str, at: int) -> GtidSet:
        literal = cast(MysqlSession, session).literal(file)
        return self._gtids.parse(str(session.value(f"SELECT BINLOG_GTID_POS({literal}, {at})") or ""))

    def _check_place(self, session: Session, start: GtidSet) -> None:
        ended = self._ended(session)
        if not ended.covers(start):
            raise SourceError(
                f"the checkpoint is at {start}, and the binary log of {session.place} ends at "
                f"{str(ended) or 'its start'}: the offset is from the future, of another server, or of one that "
                f"lost its last transactions in a crash (sync_binlog = 1 keeps them). {RESET}"
            )
        if not cast(MysqlSession, session).is_mariadb:
            purged = self._gtids.parse(str(session.value("SELECT @@global.gtid_purged") or ""))
            if not start.covers(purged):
                raise SourceError(
                    f"{session.place} does not have the changes after {start} any more, since its binary logs were "
                    f"purged up to {purged}. {RESET}, and have the server keep its logs for longer than a stream may "
                    "be stopped (binlog_expire_logs_seconds)"
                )

    def _counter(self) -> ChangeDecoder:
        return ChangeDecoder(self._table, None, _no_answers, counts=True)

    def _end_of_range(self, session: Session, start: GtidSet, most: int | None) -> GtidSet:
        """Where about `most` changes after `start` end; `start` if there are none, and it is fresh enough.

        Without a limit it is enough to know that there is a change: all up to now is taken.
        """
        key = str(start)
        known, position, looked, first = self._idle
        if known != key:
            position, looked, first = start, 0, None
        position, found, read = position.copy(), 0, 0
        with dumped(self._options, position) as log:
            decoder = self._counter()
            for event in log:
                read += len(event.data)
                if not decoder.take(event):
                    continue
                assert decoder.gtid is not None
                position.add(decoder.gtid)
                found += decoder.found
                decoder.found = 0
                first = first or event.seconds
                if found and most is None:
                    return self._ended(session)
                if (most is not None and found >= most) or read >= _MOST_LOOKED:
                    return position
            looked += read
        if found:
            return position
        if first is not None and (looked >= _FRESH_BYTES or utc_now().timestamp() - first >= _FRESH_SECONDS):
            return position
        self._idle = (key, position, looked, first)
        return start

    def _changes(self, split: Split) -> Iterator[pa.RecordBatch]:
        start, end = (self._gtids.parse(str(split.params[name])) for name in ("after", "upto"))
        remaining = start.remaining(end)
        with _Answers(self._options) as answers, dumped(self._options, start) as log:
            decoder = ChangeDecoder(self._table, remaining, answers.ask)
            try:
                yield from decoder.batches(log)
            except MisfitError as error:
                with self._session() as session:
                    raise self._reader.refused(session, self._source, error, " (in its binary log)") from None
            if not remaining.done:
                raise SourceError(
                    f"the binary log ends before {end}, up to which a range reaches that begins after {start}: this is "
                    "another server, which does not have them yet. Wait until it has, or name the first one"
                )


class _Answers:
    """A session that converts what only the server can, made when it is first needed."""

    def __init__(self, options: MysqlReadOptions) -> None:
        self._options = options
        self._session: MysqlSession | None = None

    def __enter__(self) -> "_Answers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    def ask(self, expression: str, values: Sequence[bytes]) -> Sequence[str]:
        if self._session is None:
            self._session = MysqlSession(self._options, SourceError)
        found: list[Any] = []
        for begin in range(0, len(values), _ASKED):
            asked = (expression.format(f"X'{value.hex()}'") for value in values[begin : begin + _ASKED])
            found += self._session.rows(f"SELECT {', '.join(asked)}")[0]
        return [str(each) for each in found]


def _no_answers(expression: str, values: Sequence[bytes]) -> Sequence[str]:
    raise AssertionError("a decoder that counts converts nothing")


def _check_options(options: MysqlReadOptions) -> None:
    for name in ("where", "query"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"option 'binlog' follows a whole table, and {name!r} names a part of one: omit it, name the table "
                "with 'dbtable', and filter the stream's rows",
                option=name,
            )
    if options.timestamps_as == "local":
        raise OptionError(
            "option 'timestampsAs' got 'local', and the binary log has TIMESTAMPs in UTC: omit it",
            option="timestampsAs", got="local",
        )  # fmt: skip


def _followed(
    session: MysqlSession, source: ReadSource, options: MysqlReadOptions, gtids: type[GtidSet]
) -> FollowedTable:
    table = cast(MysqlTable, source.table)
    key = table.primary or (table.unique[0] if table.unique else ())
    return FollowedTable(
        database=table.schema, name=table.name, label=source.label, columns=source.columns, names=tuple(source.names),
        key=key, charsets=charsets(session), gtids=gtids, zero_dates=options.zero_dates == "null",
        folds=str(session.value("SELECT @@lower_case_table_names")) != "0",
    )  # fmt: skip


def _token(position: GtidSet) -> Token:
    return {_NAME: str(position)}


def _most(limit: FeedLimit) -> int | None:
    found = [] if limit.rows is None else [limit.rows]
    if limit.nbytes is not None:
        found.append(max(1, limit.nbytes // _CHANGE_BYTES))
    return min(found, default=None)


def _sizes(session: MysqlSession) -> list[tuple[str, int]]:
    """The log's files and their bytes; [] without the right to see them."""
    try:
        return [(str(row[0]), int(row[1])) for row in session.rows("SHOW BINARY LOGS")]
    except ChannelError:
        return []


def _behind(sizes: Sequence[tuple[str, int]], file: str, position: int) -> int | None:
    names = [name for name, _ in sizes]
    if file not in names:
        return None
    return max(0, sum(size for _, size in sizes[names.index(file) :]) - position)
