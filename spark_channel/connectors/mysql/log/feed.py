"""The binary log of MySQL and MariaDB as changes of tables: insert, update, delete and truncate as rows, in its order.

A position is a set of GTIDs: the transactions that are done. So it holds on every server of the topology, and a range
between two positions has the same transactions forever, for as long as a server keeps its logs.

A range ends before a statement after which a table cannot be followed, so each row of a range that was handed out can
be read.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import (
    ChangeFeed,
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
)
from spark_channel.connectors.mysql.log.decoder import ChangeDecoder
from spark_channel.connectors.mysql.log.dump import KeptLogs, dumped, rights
from spark_channel.connectors.mysql.log.events import Event, Kind
from spark_channel.connectors.mysql.log.position import GtidSet, Remaining, TaggedGtidError
from spark_channel.connectors.mysql.log.snapshot import (
    BinlogWatermarks,
    RestOfTables,
    snapshot_place,
    start_of,
)
from spark_channel.connectors.mysql.log.table import (
    RESET,
    FollowedTable,
    TableDecoder,
    WindowReporter,
)
from spark_channel.connectors.mysql.log.token import (
    BinlogPlace,
    LogServer,
    TablesToken,
)
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession, is_away, is_short
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.feed.incremental_snapshot import read_window
from spark_channel.connectors.sql.feed.log_tables import (
    CHANGE_BYTES,
    MOST_WAITS,
    RANGE_ROWS,
    warn_of_gone_rows,
)
from spark_channel.connectors.sql.feed.named_rows import NamedLog
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.feed.tables_lag import TableWaiting, lag_of_tables
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.final_errors import final
from spark_channel.planning import Split

__all__ = ["BinlogFeed", "no_answers"]

_MOST_COUNTED = 100_000
"""Changes that one question for the lag counts."""
_MOST_LOOKED = 256 << 20
"""Bytes of the log that one look for the end of a range goes through."""
_FRESH_BYTES, _FRESH_SECONDS = 16 << 20, 60
"""A position without changes behind it stays behind the log by this much, at most: else its logs would be purged."""
_ASKED = 500


@dataclass(frozen=True)
class _EmptyRead:
    """A look at the log behind `token` that found no change: how far it came, over how many bytes, and when the first
    transaction there was committed; 0.0 = there was none.
    """

    token: TablesToken
    position: GtidSet
    nbytes: int
    first: float


class BinlogFeed(ChangeFeed):
    """Changes of a list of tables, and chunks of their existing rows. One partition: the log has one order.

    It takes nothing from the server that would have to be given back. Subclasses say which tables there are, and how a
    position of theirs is written.
    """

    can_evolve = True
    _cuts_at_alter = True
    """Whether a range ends with a statement that changes a table's columns: its end is found by a look at all of it."""

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        self._reader = reader
        self._options = cast(MysqlReadOptions, reader.options)
        _check_options(self._options)
        self._rule = SchemaRule(evolves=options.evolves, ignores=options.ignores)
        self._range_rule = self._rule
        """That of ranges that were handed out."""
        self._idle_look: _EmptyRead | None = None
        self._logs = KeptLogs(self._options)
        with self._session() as session:
            self._server = LogServer.look_up(session)
            self._gtids = self._server.gtids
            self._follow(session)
            now = self._ended(session)
        with dumped(self._options, now) as log:
            next(log, None)  # fails here if the user lacks the rights

    # --- what a list of tables, and one table, have each their own of ---

    @abstractmethod
    def _follow(self, session: MysqlSession) -> None:
        """Find the tables, and set `_schema`."""

    @abstractmethod
    def _begun(self, session: MysqlSession, position: GtidSet) -> Token:
        """The token of a stream that begins at `position`."""

    @abstractmethod
    def _read(self, token: Token) -> TablesToken: ...

    @abstractmethod
    def _written(self, token: TablesToken) -> Token:
        """What `_read` reads."""

    @abstractmethod
    def _recalled(self, name: str, progress: BinlogPlace) -> FollowedTable:
        """The table as a token has it."""

    @abstractmethod
    def _reader_of(self, table: FollowedTable) -> SqlReader:
        """The reader of its existing rows."""

    @abstractmethod
    def _source_of(
        self, session: MysqlSession, progress: BinlogPlace, position: GtidSet
    ) -> ReadSource | None:
        """The table as the catalog has it; None: it is gone at `position`."""

    @abstractmethod
    def _has_rows(self, progress: BinlogPlace, start: GtidSet) -> bool:
        """Whether existing rows that were handed out at `start` are there; else they are gone with their table."""

    @abstractmethod
    def _has(self, *, in_range: bool) -> Callable[[str], bool] | None:
        """See `ChangeDecoder`; `in_range`: of a range that was handed out."""

    @abstractmethod
    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        """The error for a value that its column's type cannot hold."""

    def _altered(
        self, session: MysqlSession, token: TablesToken, decoder: ChangeDecoder
    ) -> TablesToken:
        """With the tables as the last transaction has left them."""
        return token

    # --- positions ---

    def earliest(self) -> list[Token]:
        """As far back as the server has its logs."""
        with self._session() as session:
            return [self._begun(session, self._first(session))]

    def _first(self, session: MysqlSession) -> GtidSet:
        if not session.is_mariadb:
            return self._set(session.value("SELECT @@global.gtid_purged"))
        try:
            logs = session.rows("SHOW BINARY LOGS")
        except ChannelError as error:
            raise SourceError(f"{error}. {rights()}") from error
        return self._at(session, str(logs[0][0]), 4)

    def now(self) -> list[Token]:
        """A point that every transaction up to it is visible at.

        MariaDB has a transaction in its log before its rows are visible, so there the point is that of a snapshot.
        """
        with self._session() as session:
            return [self._begun(session, self._visible(session))]

    def _visible(self, session: MysqlSession) -> GtidSet:
        """A point that every transaction up to it is visible at; see `now`."""
        if not session.is_mariadb:
            return self._ended(session)
        session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            return self._seen(session)
        finally:
            session.execute("ROLLBACK")

    def reaches(self, token: Token, end: Token) -> bool:
        return self._position(token).covers(self._position(end))

    def _position(self, token: Token) -> GtidSet:
        return self._read(token).position

    @contextmanager
    def _session(self) -> Iterator[MysqlSession]:
        with self._reader.connect("changes") as session:
            yield cast(MysqlSession, session)

    def _ended(self, session: Session) -> GtidSet:
        """All that the server's log has now."""
        name = "gtid_binlog_pos" if cast(MysqlSession, session).is_mariadb else "gtid_executed"
        return self._set(session.value(f"SELECT @@global.{name}"))

    def _seen(self, session: Session) -> GtidSet:
        """All that the snapshot of the open transaction sees; of MySQL, some that every later one sees."""
        if not cast(MysqlSession, session).is_mariadb:
            return self._ended(session)
        return self._at(session, *snapshot_place(session))

    def _at(self, session: Session, file: str, at: int) -> GtidSet:
        connection = cast(MysqlSession, session)
        text = connection.value(f"SELECT BINLOG_GTID_POS({connection.literal(file)}, {at})")
        if text is None:  # which is not the empty text, a log's beginning
            raise SourceError(
                f"{connection.place} does not find position {at} in its binary log {file}: "
                "the file was removed meanwhile, or a large transaction made it longer than 4 GiB, "
                "where BINLOG_GTID_POS does not look. Run FLUSH BINARY LOGS, and start the stream again"
            )
        return self._set(text)

    def _set(self, text: object) -> GtidSet:
        """What the server calls a set of transactions."""
        try:
            return self._gtids.parse(str(text or ""))
        except TaggedGtidError as error:
            raise SourceError(
                f"{self._reader.dialect.product} has transactions whose GTID has the tag {str(error)!r}, and positions "
                "with tags are not supported: the server's log cannot be followed. Follow the table by 'cursorColumn'; "
                "or begin a new history without tags (gtid_next = AUTOMATIC) with RESET BINARY LOGS AND GTIDS, which "
                "removes the server's log"
            ) from None

    def _check_place(self, session: Session, start: GtidSet) -> None:
        ended = self._ended(session)
        if not ended.covers(start):
            raise SourceError(
                f"the checkpoint is at {start}, and the binary log of {session.place} ends "
                f"at {str(ended) or 'its start'}: the offset is from the future, of another server, "
                f"or of one that lost its last transactions in a crash (sync_binlog = 1 keeps them). {RESET}"
            )
        if not cast(MysqlSession, session).is_mariadb:
            purged = self._set(session.value("SELECT @@global.gtid_purged"))
            if not start.covers(purged):
                raise SourceError(
                    f"{session.place} no longer has the changes after {start}, "
                    f"since its binary logs were purged up to {purged}. {RESET}, and have the server keep "
                    "its logs for longer than a stream may be stopped (binlog_expire_logs_seconds)"
                )

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and (is_away(error) or is_short(error))

    # --- ranges ---

    def _range(
        self, session: MysqlSession, after: Token, limit: FeedLimit, upto: Token | None
    ) -> Token:
        """Where the range behind `after` ends; `after` where nothing is new."""
        token = self._read(after)
        self._check_place(session, token.position)
        until = None if upto is None else token.position.union(self._position(upto))
        end = self._planned(session, token, limit.most_rows(CHANGE_BYTES), until)
        return after if end == token else self._written(end)

    def _planned(
        self, session: MysqlSession, token: TablesToken, most: int | None, upto: GtidSet | None
    ) -> TablesToken:
        """The end of the next range: what is in the log, and, while existing rows are read, a chunk of one table.

        Where the limit cuts the log, the log alone: it may be purged. After three such ranges the chunk has its turn.
        """
        reads = self.reads_base and not token.is_read
        if reads and most is None and not self._cuts_at_alter:
            end, count, is_cut = self._all(session, token, upto), 0, False
        else:
            end, count, is_cut = self._passed_by(session, token, most, upto)
        if not reads:
            return end if count or is_cut else self._fresh(token, end)
        if is_cut and token.waited < MOST_WAITS:
            return replace(end, waited=token.waited + 1)
        sizes = RestOfTables(session)
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        for name in token.sharing(token.due(), rows):
            progress = end.tables.get(name)
            if progress is None:
                continue
            source = (
                None if progress.is_dropped else self._source_of(session, progress, end.position)
            )
            if source is None:
                warn_of_gone_rows(name)
                return end.started(name, None)
            # Another position: it is to be read again from there on.
            if progress.since is not None and progress.since == token.tables[name].since:
                sizes.sources[name] = source
        begun = [name for name in sizes.sources if end.tables[name].base is not None]
        if not begun:
            if not sizes.sources:
                return end
            visible, bases = self._visible(session), {}
            for name, source in sizes.sources.items():
                since = end.tables[name].since
                assert since is not None
                if visible.covers(since):  # else a statement may not see its last key yet
                    bases[name] = start_of(session, source, since)
            return end.all_started(bases)
        return end.with_chunks(begun, rows, sizes)

    def _all(self, session: MysqlSession, token: TablesToken, upto: GtidSet | None) -> TablesToken:
        """The token behind all that is in the log."""
        end = self._ended(session)
        return replace(token, position=end if upto is None else end.meet(upto))

    def _passed_by(
        self, session: MysqlSession, token: TablesToken, most: int | None, upto: GtidSet | None
    ) -> tuple[TablesToken, int, bool]:
        """The token behind about `most` changes, how many they are, and whether more may follow.

        It ends before a transaction by which a table cannot be followed.

        Raises:
            SourceError, SchemaError: that transaction is the next one.
        """
        # What an earlier look found to have no change is not read again.
        look = self._idle_look
        is_known = look is not None and look.token == token and upto is None
        start = look.position if look is not None and is_known else token.position
        position, count, looked = start.copy(), 0, 0
        decoder = self._counting(token, start, upto)
        if upto is not None and start.covers(upto):
            return token, 0, False
        end, first = token, 0.0
        try:
            with self._logs.after(start) as log:
                for event in _named_by(log, decoder):
                    looked += len(event.data)
                    if not decoder.take(event):
                        continue
                    assert decoder.gtid is not None
                    first = first or float(event.seconds)
                    if decoder.is_wanted:
                        changed = self._altered(session, end, decoder)
                        position.add(decoder.gtid)
                        count += decoder.found
                        decoder.found = 0
                        if changed != end:
                            log.keep()
                            return replace(changed, position=position), max(1, count), True
                        if count and most is None and not self._cuts_at_alter:
                            return self._all(session, token, upto), count, False
                    if (
                        decoder.done
                        or (most is not None and count >= most)
                        or looked >= _MOST_LOOKED
                    ):
                        log.keep()
                        return replace(end, position=position), count, not decoder.done
        except ChannelError as error:
            if is_away(error):
                raise
            # What lies before it is delivered first; the next range begins with the error.
            if position != start or start != token.position:
                return replace(end, position=position), max(1, count), True
            # Where the table is to be read again from a later place, its changes before that are not needed.
            table = decoder.at
            forgiven = None if table is None else token.forgiven(table.table.listed)
            if forgiven is None:
                _name_table(error, table)
                raise
            return self._passed_by(session, forgiven, most, upto)
        self._note_idle(token, position, looked, first)
        return replace(end, position=position), count, False

    def _note_idle(self, token: TablesToken, position: GtidSet, looked: int, first: float) -> None:
        look = self._idle_look
        if look is not None and look.token == token:
            looked, first = looked + look.nbytes, look.first or first
        self._idle_look = _EmptyRead(token, position.copy(), looked, first)

    def _fresh(self, token: TablesToken, end: TablesToken) -> TablesToken:
        """`end`, whose range has no changes, where `token` is so old that its logs would be purged."""
        if replace(end, position=token.position) != token:
            return end
        look = self._idle_look
        if look is None or look.token != token:
            return token
        is_old = bool(look.first) and utc_now().timestamp() - look.first >= _FRESH_SECONDS
        return end if is_old or look.nbytes >= _FRESH_BYTES else token

    def _counting(
        self, token: TablesToken, start: GtidSet, upto: GtidSet | None = None
    ) -> ChangeDecoder:
        skips = {
            name: start.remaining(start.union(progress.since))
            for name, progress in token.tables.items()
            if progress.since is not None and not start.covers(progress.since)
        }
        return ChangeDecoder(
            [self._recalled(name, progress) for name, progress in token.tables.items()],
            None if upto is None else start.remaining(upto),
            no_answers,
            counts=True,
            has=self._has(in_range=False),
            skips=skips,
        )

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = self._read(after), self._read(upto)
        places = old.token()["tables"]
        tables = {name: {"table": places[name]["table"]} for name in old.tables}
        for name, progress in old.tables.items():
            since = new.tables[name].since or progress.since
            if since is not None and not old.position.covers(since):
                tables[name]["since"] = str(since)
            if progress.is_dropped:
                tables[name]["dropped"] = True
        log = {"after": str(old.position), "upto": str(new.position), "tables": tables}
        chunks = [
            {
                "table": name,
                "lower": progress.base.after,
                "upper": upper,
                "order": progress.base.order,
                "since": progress.base.since,
            }
            for name, progress, upper in old.chunks_to(new)
        ]
        if chunks:
            return [Split({"kind": "window", **log, "chunks": chunks})]
        return [] if old.position == new.position else [Split({"kind": "changes", **log})]

    # --- rows ---

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        params = split.params
        start, end = (self._gtids.parse(str(params[name])) for name in ("after", "upto"))
        places = {
            name: BinlogPlace(noted["table"], is_dropped=noted.get("dropped", False))
            for name, noted in params["tables"].items()
        }
        tables = [self._recalled(name, progress) for name, progress in places.items()]
        skips = {
            name: self._gtids.parse(noted["since"])
            for name, noted in params["tables"].items()
            if "since" in noted
        }
        named = {table.listed: table for table in tables}
        evolves = self._cuts_at_alter and self._rule.evolves
        with (
            _Answers(self._options) as answers,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):
            upto = end  # the changes are delivered once, with the first chunk
            for chunk in params.get("chunks", ()):
                table = named[chunk["table"]]
                if not self._has_rows(places[table.listed], start):
                    continue
                log = BinlogWatermarks(
                    self._reader_of(table),
                    rows,
                    self._seen,
                    partial(self._events, answers, tables, table, skips),
                    None if evolves else table.schema,
                    change_schema(table.schema),
                    start,
                    end,
                    rule=self._range_rule,
                    order=chunk["order"],
                    since=chunk["since"],
                )
                lower, upper = chunk["lower"], tuple(chunk["upper"])
                yield from read_window(
                    NamedLog(log, table.listed) if table.listed else log,
                    start,
                    upto,
                    None if lower is None else tuple(lower),
                    upper,
                    log.chunk_rows(),
                )
                upto = start
            if upto is end:
                yield from self._events(answers, tables, None, skips, start, start, end, None)

    def _events(
        self,
        answers: "_Answers",
        tables: Sequence[FollowedTable],
        table: FollowedTable | None,
        skips: Mapping[str, GtidSet],
        begin: GtidSet,
        after: GtidSet,
        upto: GtidSet,
        telling: WindowReporter | None,
    ) -> Iterator[pa.RecordBatch]:
        """The changes of all tables, once. Those of `table` are also reported to a window."""
        remaining: dict[str, Remaining] = {
            name: after.remaining(after.union(since)) for name, since in skips.items()
        }
        decoder = ChangeDecoder(
            [table] if table is not None and upto == after else tables,
            after.remaining(upto),
            answers.ask,
            telling=None
            if telling is None or table is None
            else replace(telling, table=table.listed),
            has=self._has(in_range=True),
            skips=remaining,
        )
        return self._decoded(decoder, begin, upto)

    def _decoded(
        self, decoder: ChangeDecoder, begin: GtidSet, end: GtidSet
    ) -> Iterator[pa.RecordBatch]:
        if decoder.done:
            return
        with self._logs.after(begin) as log:
            try:
                yield from decoder.batches(_named_by(log, decoder))
                # For the next range, which begins exactly there.
                if not decoder.lacks and log.position == end:
                    log.keep()
            except MisfitError as error:
                refused = final(self._refused(decoder, error))
                _name_table(refused, decoder.at)
                raise refused from None
            except ChannelError as error:
                if not is_away(error):  # the log stays as it is
                    _name_table(final(error), decoder.at)
                raise
        if decoder.lacks:
            raise SourceError(
                f"the binary log ends before {end}, up to which a range reaches that begins after {begin}: "
                "this is another server, which does not have them yet. "
                "Wait until it has, or name the first one"
            )

    # --- lag ---

    def _lag(self, position: TablesToken) -> FeedLag:
        with self._session() as session:
            self._check_place(session, position.position)
            sizes = _sizes_of(session)
        decoder, now = self._counting(position, position.position), utc_now().timestamp()
        nbytes: int | None = None
        is_known = False
        try:
            count, nbytes, _ = self._waiting(decoder, position.position, sizes)
            is_known = count is not None
        except ChannelError as error:
            # A statement after which a table cannot be followed: the next range fails.
            if is_away(error):
                raise
        waiting = {}
        for table in decoder.tables:
            seconds = max(0.0, now - table.first / 1e6) if table.first else 0.0
            waiting[table.table.listed] = (
                TableWaiting(table.found, table.nbytes, seconds)
                if is_known
                else TableWaiting(seconds=seconds or None)
            )
        present = [table.table.listed for table in decoder.tables if not table.is_dropped]
        return replace(lag_of_tables(position, waiting, present), nbytes=nbytes)

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
                if count >= _MOST_COUNTED or looked > _MOST_LOOKED:
                    return None, _behind(sizes, file, position), begun or first
        return count, _behind(sizes, file, position) if first else 0, begun


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
        answers: list[Any] = []
        for begin in range(0, len(values), _ASKED):
            selected = (
                expression.format(f"X'{value.hex()}'") for value in values[begin : begin + _ASKED]
            )
            answers += self._session.rows(f"SELECT {', '.join(selected)}")[0]
        return [str(answer) for answer in answers]


def _named_by(log: Iterator[Event], decoder: ChangeDecoder) -> Iterator[Event]:
    """The events; an error of the log itself is about no table, whichever one the decoder has looked at."""
    while True:
        at, decoder.at = decoder.at, None
        event = next(log, None)
        if event is None:
            return
        decoder.at = at
        yield event


def _name_table(error: ChannelError, table: TableDecoder | None) -> None:
    """Note the one of several tables that an error is about."""
    if table is not None and table.table.listed:
        error.tables = (table.table.listed,)


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
    if options.floats_as == "text":
        raise OptionError(
            "option 'floatsAs' got 'text', and the binary log has floats as numbers: omit it",
            option="floatsAs",
            got="text",
        )


def _sizes_of(session: MysqlSession) -> list[tuple[str, int]]:
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
