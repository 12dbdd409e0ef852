"""A table's changes from the binary log: insert, update, delete and truncate as rows, in the order of the log.

A position is a set of GTIDs: the transactions that are done. So it holds on every server of the topology, and a range
between two positions has the same transactions forever, for as long as a server keeps its logs.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from spark_channel.arrow_schema import noted
from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import (
    ChangeFeed,
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
    missing_source,
)
from spark_channel.connectors.mysql.binlog_decoder import ChangeDecoder
from spark_channel.connectors.mysql.binlog_dump import dumped, rights
from spark_channel.connectors.mysql.binlog_events import Kind
from spark_channel.connectors.mysql.binlog_position import GtidSet
from spark_channel.connectors.mysql.binlog_schema import check_server, check_table
from spark_channel.connectors.mysql.binlog_snapshot import (
    BinlogWatermarks,
    bound_of,
    obstacle,
    snapshot_place,
    start_of,
)
from spark_channel.connectors.mysql.binlog_table import RESET, WindowReporter
from spark_channel.connectors.mysql.binlog_token import (
    BinlogToken,
    LogServer,
    followed,
    noted_table,
    recalled,
)
from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession, is_away
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.incremental_snapshot import BaseProgress, read_window
from spark_channel.connectors.sql.keyset import SessionHolder
from spark_channel.connectors.sql.log_feed import SchemaRule, as_inserts
from spark_channel.connectors.sql.log_tables import CHANGE_BYTES, MOST_WAITS, RANGE_ROWS
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.planning import Split

__all__ = [
    "FRESH_BYTES",
    "FRESH_SECONDS",
    "MOST_LOOKED",
    "Answers",
    "BinlogFeed",
    "no_answers",
    "sizes_of",
]

_log = logging.getLogger(__name__)

_MOST_COUNTED = 100_000
"""Changes that one question for the lag counts."""
MOST_LOOKED = 256 << 20
"""Bytes of the log that one look for the end of a range goes through."""
FRESH_BYTES, FRESH_SECONDS = 16 << 20, 60
"""A position without changes behind it stays behind the log by this much, at most: else its logs would be purged."""
_ASKED = 500


class BinlogFeed(ChangeFeed):
    """One partition: the log has one order. It takes nothing from the server that would have to be given back."""

    can_evolve = True

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        self._reader = reader
        self._options = cast(MysqlReadOptions, reader.options)
        _check_options(self._options)
        self._rule = SchemaRule(evolves=options.evolves, ignores=options.ignores)
        with self._session() as session:
            self._server = LogServer.of(session)
            self._gtids = self._server.gtids
            self._follow(session)
            now = self._ended(session)
        self._idle: tuple[str | None, GtidSet, int, int | None] = (None, now, 0, None)
        """The last look that found no change: where it began, how far it came, its bytes, its first time."""
        with dumped(self._options, now) as log:
            next(log, None)  # fails here if the user lacks the rights

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
        self._columns = self._table.schema
        self._schema = change_schema(self._columns)

    def _check_there(self) -> None:
        if self.missing is not None:
            raise self.missing

    def schema(self) -> pa.Schema:
        if self.missing is not None and not self._schema.names:
            raise self.missing
        return self._schema if self.missing else noted(self._schema, self._source.text_lengths)

    def earliest(self) -> list[Token]:
        """As far back as the server has its logs."""
        self._check_there()
        with self._session() as session:
            return [self._token(self._first(session))]

    def _first(self, session: MysqlSession) -> GtidSet:
        if not session.is_mariadb:
            return self._gtids.parse(str(session.value("SELECT @@global.gtid_purged") or ""))
        try:
            logs = session.rows("SHOW BINARY LOGS")
        except ChannelError as error:
            raise SourceError(f"{error}. {rights()}") from error
        return self._at(session, str(logs[0][0]), 4)

    def now(self) -> list[Token]:
        """A point that every transaction up to it is visible at.

        MariaDB has a transaction in its log before its rows are visible, so there the point is that of a snapshot.
        """
        self._check_there()
        with self._session() as session:
            return [self._token(self._visible(session))]

    def _visible(self, session: MysqlSession) -> GtidSet:
        """A point that every transaction up to it is visible at; see `now`."""
        if not session.is_mariadb:
            return self._ended(session)
        session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            return self._seen(session)
        finally:
            session.rows("ROLLBACK")

    def end(self) -> list[Token]:
        with self._session() as session:
            return [self._token(self._ended(session))]

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
            position = self._position(token)
            self._check_place(session, position)
            return [
                replace(
                    BinlogToken.read(token, self._gtids), base=start_of(session, source, position)
                ).token()
            ]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        self._check_there()
        found = BinlogToken.read(after, self._gtids)
        start = found.position
        with self._session() as session:
            source = self._reader.resolve(session)
            self._rule.check(self._columns, source.schema, source.label, self._table.key)
            check_table(session, source)
            self._check_place(session, start)
            if found.base is not None:
                made = self._next(session, source, start, found.base, limit, upto)
                return after if made == replace(found, table=None) else self._known(made).token()
            end = self._within(
                start, self._end_of_range(session, start, limit.most_rows(CHANGE_BYTES)), upto
            )
        return after if end == start else self._token(end)

    def _known(self, token: BinlogToken) -> BinlogToken:
        """With the table's present columns."""
        return replace(token, table=None if self.missing else noted_table(self._table))

    def _token(self, position: GtidSet) -> Token:
        return self._known(BinlogToken(position)).token()

    def reaches(self, token: Token, end: Token) -> bool:
        return self._position(token).covers(self._position(end))

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = BinlogToken.read(after, self._gtids), BinlogToken.read(upto, self._gtids)
        if self.missing is not None:
            self._recall(new if new.table is not None else old)
        places = {"after": str(old.position), "upto": str(new.position)}
        lower = None if old.base is None else old.base.after
        if old.base is not None and (new.base is None or new.base.after != lower):
            upper = old.base.until if new.base is None else new.base.after
            chunk = {
                "lower": lower,
                "upper": upper,
                "order": old.base.order,
                "since": old.base.since,
            }
            return [Split({"kind": "window", **places, **chunk})]
        return [] if old.position == new.position else [Split({"kind": "changes", **places})]

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        note = {"at": str(self._position(upto[0]))}
        return [
            Split({**split.params, **note}, split.rows, split.nbytes)
            for split in self._reader.split(advice)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] == "changes":
            yield from self._changes(split)
            return
        if split.params["kind"] == "window":
            if self.missing is None:
                yield from self._window(split)
                return
            _log.warning(
                "%s does not exist: its existing rows that were not read are lost, "
                "and its changes in the log are delivered",
                self._table.label,
            )
            yield from self._changes(split)
            return
        for batch in self._reader.read(split):
            yield as_inserts(batch, self._schema, split.params["at"])

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and is_away(error)

    def lag(self, token: Token) -> FeedLag:
        found = BinlogToken.read(token, self._gtids)
        if self.missing is not None:
            return FeedLag()
        lag, base = self._log_lag(found.position), found.base
        if base is None:
            return lag
        rows = None if base.left is None or lag.rows is None else base.left + lag.rows
        return replace(
            lag, rows=rows, base_read=base.read, base_rows=base.rows, base_chunks=base.chunks
        )

    def _log_lag(self, start: GtidSet) -> FeedLag:
        with self._session() as session:
            self._check_place(session, start)
            sizes = sizes_of(session)
        count, nbytes, begun = self._waiting(self._counter(), start, sizes)
        now = utc_now().timestamp()
        return FeedLag(count, nbytes, max(0.0, now - begun) if begun else 0.0)

    def _waiting(
        self, decoder: ChangeDecoder, start: GtidSet, sizes: Sequence[tuple[str, int]]
    ) -> tuple[int | None, int | None, float]:
        """How many changes are in the log after `start`, how many bytes it has from there on, and when the first change
        was committed; 0.0 = there is none. None = not known.
        """
        file, position, count, looked = "", 4, 0, 0
        seconds = first = begun = 0.0
        with dumped(self._options, start) as log:
            for event in log:
                looked += event.end
                if event.kind == Kind.ROTATE:
                    file = event.file()
                if event.kind in (Kind.MARIADB_GTID, Kind.MYSQL_GTID):
                    seconds = event.microseconds() / 1e6
                    if not first:
                        position, first = max(4, event.position - len(event.data)), seconds
                has_ended = decoder.take(event)
                if decoder.found and not begun:
                    begun = seconds
                count += decoder.found if has_ended else 0
                if count >= _MOST_COUNTED or looked > MOST_LOOKED:
                    return None, _behind(sizes, file, position), begun or first
        return count, _behind(sizes, file, position) if first else 0, begun

    @contextmanager
    def _session(self) -> Iterator[MysqlSession]:
        with self._reader.connect("changes") as session:
            yield cast(MysqlSession, session)

    def _position(self, token: Token) -> GtidSet:
        return BinlogToken.read(token, self._gtids).position

    def _ended(self, session: Session) -> GtidSet:
        """All that the server's log has now."""
        name = "gtid_binlog_pos" if cast(MysqlSession, session).is_mariadb else "gtid_executed"
        return self._gtids.parse(str(session.value(f"SELECT @@global.{name}") or ""))

    def _seen(self, session: Session) -> GtidSet:
        """All that the snapshot of the open transaction sees; of MySQL, some that every later one sees."""
        if not cast(MysqlSession, session).is_mariadb:
            return self._ended(session)
        return self._at(session, *snapshot_place(session))

    def _at(self, session: Session, file: str, at: int) -> GtidSet:
        own = cast(MysqlSession, session)
        found = own.value(f"SELECT BINLOG_GTID_POS({own.literal(file)}, {at})")
        if found is None:  # which is not the empty text, a log's beginning
            raise SourceError(
                f"{own.place} does not find position {at} in its binary log {file}: "
                "the file was removed meanwhile, or a large transaction made it longer than 4 GiB, "
                "where BINLOG_GTID_POS does not look. Run FLUSH BINARY LOGS, and start the stream again"
            )
        return self._gtids.parse(str(found))

    def _check_place(self, session: Session, start: GtidSet) -> None:
        ended = self._ended(session)
        if not ended.covers(start):
            raise SourceError(
                f"the checkpoint is at {start}, and the binary log of {session.place} ends "
                f"at {str(ended) or 'its start'}: the offset is from the future, of another server, "
                f"or of one that lost its last transactions in a crash (sync_binlog = 1 keeps them). {RESET}"
            )
        if not cast(MysqlSession, session).is_mariadb:
            purged = self._gtids.parse(str(session.value("SELECT @@global.gtid_purged") or ""))
            if not start.covers(purged):
                raise SourceError(
                    f"{session.place} does not have the changes after {start} any more, "
                    f"since its binary logs were purged up to {purged}. {RESET}, and have the server keep "
                    "its logs for longer than a stream may be stopped (binlog_expire_logs_seconds)"
                )

    def _counter(self) -> ChangeDecoder:
        return ChangeDecoder([self._table], None, no_answers, counts=True, has=self._has)

    @property
    def _has(self) -> Callable[[str], bool] | None:
        return self._rule.has(self._has_column)

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column by now, which the stream did not begin with; else it was dropped."""
        if self.missing is not None:
            return False
        with self._session() as session:
            return self._options.columns is None and name in self._reader.resolve(session).names

    def _end_of_range(self, session: Session, start: GtidSet, most: int | None) -> GtidSet:
        """Where about `most` changes after `start` end; `start` if there are none, and it is fresh enough.

        Without a limit it is enough to know that there is a change: all up to now is taken.
        """
        key = str(start)
        known, position, looked, first = self._idle
        if known != key:
            position, looked, first = start, 0, None
        position, found, read = position.copy(), 0, 0
        for changes, nbytes, seconds in self._passed(position):
            found, read = found + changes, read + nbytes
            first = first or seconds
            if found and most is None:
                return self._ended(session)
            if (most is not None and found >= most) or read >= MOST_LOOKED:
                return position
        looked += read
        if found:
            return position
        if first is not None and (
            looked >= FRESH_BYTES or utc_now().timestamp() - first >= FRESH_SECONDS
        ):
            return position
        self._idle = (key, position, looked, first)
        return start

    def _within(self, start: GtidSet, end: GtidSet, upto: Token | None) -> GtidSet:
        """`end`, but not past `upto`, and not before `start`."""
        if upto is None:
            return end
        cut = end.meet(self._position(upto))
        return start if start.covers(cut) else cut

    def _passed(self, position: GtidSet) -> Iterator[tuple[int, int, int]]:
        """For each transaction behind `position`, which it is added to: its changes, bytes, and time."""
        with dumped(self._options, position.copy()) as log:
            decoder, read = self._counter(), 0
            for event in log:
                read += len(event.data)
                if decoder.take(event):
                    assert decoder.gtid is not None
                    position.add(decoder.gtid)
                    yield decoder.found, read, event.seconds
                    decoder.found = read = 0

    def _next(
        self,
        session: MysqlSession,
        source: ReadSource,
        start: GtidSet,
        base: BaseProgress,
        limit: FeedLimit,
        upto: Token | None,
    ) -> BinlogToken:
        """The next range while the base is read: what is in the log, and a chunk.

        Where the limit cuts the log, the log alone: it may be purged. After three such ranges the base has its turn.
        """
        most = limit.most_rows(CHANGE_BYTES)
        if not self.reads_base:
            end = self._within(start, self._end_of_range(session, start, most), upto)
            return BinlogToken(end, base)
        count, read, is_cut = 0, 0, False
        end = self._ended(session)
        if most is not None:
            position = start.copy()
            for changes, nbytes, _ in self._passed(position):
                count, read = count + changes, read + nbytes
                is_cut = count >= most or read >= MOST_LOOKED
                if is_cut:
                    break
            end = position
        end = self._within(start, end, upto)
        if is_cut and base.waited < MOST_WAITS:
            return BinlogToken(end, replace(base, waited=base.waited + 1))
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return BinlogToken(end, base.advanced(bound_of(session, source, base, rows), rows))

    def _changes(self, split: Split) -> Iterator[pa.RecordBatch]:
        start, end = (self._gtids.parse(str(split.params[name])) for name in ("after", "upto"))
        with Answers(self._options) as answers:
            decoder = ChangeDecoder([self._table], start.remaining(end), answers.ask, has=self._has)
            yield from self._decoded(decoder, start, end)

    def _window(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Changes, and the existing rows of a range of keys."""
        params = split.params
        start, end = (self._gtids.parse(str(params[name])) for name in ("after", "upto"))
        lower, upper = params["lower"], params["upper"]
        with (
            Answers(self._options) as answers,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):

            def events(
                begin: GtidSet, after: GtidSet, upto: GtidSet, telling: WindowReporter
            ) -> Iterator[pa.RecordBatch]:
                decoder = ChangeDecoder(
                    [self._table],
                    after.remaining(upto),
                    answers.ask,
                    telling=telling,
                    has=self._has,
                )
                return self._decoded(decoder, begin, upto)

            log = BinlogWatermarks(
                self._reader,
                rows,
                self._seen,
                events,
                self._columns,
                self._schema,
                start,
                end,
                rule=self._rule,
                order=params["order"],
                since=params["since"],
            )
            yield from read_window(
                log,
                start,
                end,
                None if lower is None else tuple(lower),
                tuple(upper),
                log.chunk_rows(),
            )

    def _decoded(
        self, decoder: ChangeDecoder, begin: GtidSet, end: GtidSet
    ) -> Iterator[pa.RecordBatch]:
        if decoder.done:
            return
        with dumped(self._options, begin) as log:
            try:
                yield from decoder.batches(log)
            except MisfitError as error:
                raise self._refused(decoder, error) from None
        if decoder.lacks:
            raise SourceError(
                f"the binary log ends before {end}, up to which a range reaches that begins after {begin}: "
                "this is another server, which does not have them yet. "
                "Wait until it has, or name the first one"
            )

    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        """The error for a value that its column's type cannot hold."""
        if self.missing is not None:
            return SourceError(
                f"column {error.column.name!r} of {self._table.label} has {error.what}"
            )
        with self._session() as session:
            return self._reader.refused(session, self._source, error, " (in its binary log)")


class Answers:
    """A session that converts what only the server can, made when it is first needed."""

    def __init__(self, options: MysqlReadOptions) -> None:
        self._options = options
        self._session: MysqlSession | None = None

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    def ask(self, expression: str, values: Sequence[bytes]) -> Sequence[str]:
        if self._session is None:
            self._session = MysqlSession(self._options, SourceError)
        found: list[Any] = []
        for begin in range(0, len(values), _ASKED):
            asked = (
                expression.format(f"X'{value.hex()}'") for value in values[begin : begin + _ASKED]
            )
            found += self._session.rows(f"SELECT {', '.join(asked)}")[0]
        return [str(each) for each in found]


def no_answers(expression: str, values: Sequence[bytes]) -> Sequence[str]:
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
            option="timestampsAs",
            got="local",
        )


def sizes_of(session: MysqlSession) -> list[tuple[str, int]]:
    """The log's files and their bytes; [] without the right to see them."""
    try:
        return [(str(row[0]), int(row[1])) for row in session.rows("SHOW BINARY LOGS")]
    except ChannelError as error:
        if is_away(error):
            raise
        return []


def _behind(sizes: Sequence[tuple[str, int]], file: str, position: int) -> int | None:
    names = [name for name, _ in sizes]
    if file not in names:
        return None
    return max(0, sum(size for _, size in sizes[names.index(file) :]) - position)
