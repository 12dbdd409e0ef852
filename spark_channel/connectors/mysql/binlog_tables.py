"""Changes of several tables by one connection to the binary log, and their existing rows in chunks beside them.

The log has the statements that change tables. A range ends before a statement after which a table cannot be followed,
and with an ALTER that changes a table's columns. So each row of a range that was handed out can be read.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import FeedLag, FeedLimit, FeedOptions, Token, change_schema
from spark_channel.connectors.mysql.binlog_decoder import ChangeDecoder
from spark_channel.connectors.mysql.binlog_dump import dumped
from spark_channel.connectors.mysql.binlog_feed import (
    FRESH_BYTES,
    FRESH_SECONDS,
    MOST_LOOKED,
    Answers,
    BinlogFeed,
    no_answers,
    sizes_of,
)
from spark_channel.connectors.mysql.binlog_position import GtidSet, Remaining
from spark_channel.connectors.mysql.binlog_schema import (
    check_server,
    check_table,
    find_listed,
    find_one,
    name_of,
    named,
)
from spark_channel.connectors.mysql.binlog_snapshot import (
    BinlogWatermarks,
    bound_of,
    obstacle,
    start_of,
)
from spark_channel.connectors.mysql.binlog_table import FollowedTable, WindowReporter, becomes
from spark_channel.connectors.mysql.binlog_token import (
    BinlogPlace,
    TablesToken,
    followed,
    noted_table,
    recalled,
)
from spark_channel.connectors.mysql.session import MysqlSession, is_away, quoted
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.incremental_snapshot import read_window
from spark_channel.connectors.sql.keyset import SessionHolder
from spark_channel.connectors.sql.log_tables import (
    CHANGE_BYTES,
    MOST_WAITS,
    RANGE_ROWS,
    RANGE_SECONDS,
    READ_AGAIN,
    REMOVE,
    NamedLog,
    TableWaiting,
    base_refused,
    check_base,
    check_names,
    check_options,
    columns_advice,
    is_pattern,
    lag_of_tables,
    listed,
    no_column,
    not_followed,
    rows_schema,
    rules_of,
    warn_of_dropped,
    warn_of_gone_rows,
)
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import ChannelError, SchemaError, SourceError
from spark_channel.planning import Split

__all__ = ["BinlogTablesFeed"]

_log = logging.getLogger(__name__)

_INSTEAD = "'dbtable'"
_ADVICE = f"Run {READ_AGAIN}; or {REMOVE}"


@dataclass(frozen=True)
class _IdleLook:
    """A look at the log behind `token` that found no change: how far it came, over how many bytes, and when the first
    transaction there was committed; 0.0 = there was none.
    """

    token: TablesToken
    position: GtidSet
    nbytes: int
    first: float


class BinlogTablesFeed(BinlogFeed):
    """One partition, as of one table. `schema` has only the columns that all batches have.

    The options name the tables that a new tunnel begins with; later, its tokens have them.
    """

    has_tables = True
    range_seconds = RANGE_SECONDS

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.tables is not None
        check_options(reader.options, _INSTEAD)
        self._items = listed(options.tables, "`")
        self._has_base = options.has_base
        self._unchecked = [item for item in self._items if not is_pattern(item)]
        self._readers: dict[tuple[str, str], SqlReader] = {}
        self._checked: set[str] = set()
        self._as_noted: dict[str, tuple[Mapping[str, Any], FollowedTable]] = {}
        self._idle_look: _IdleLook | None = None
        super().__init__(reader, options)
        self._rule, self._range_rule = rules_of(options)

    def _follow(self, session: MysqlSession) -> None:
        self._schema = rows_schema()

    def schema(self) -> pa.Schema:
        return self._schema

    # --- the tables ---

    def _begin(self, session: MysqlSession) -> dict[str, FollowedTable]:
        """The tables that a new tunnel begins with.

        Raises:
            OptionError: a name of no table, or a pattern of none.
        """
        made = {}
        for database, name in find_listed(session, self._reader.dialect, self._items):
            table = self._looked_at(session, database, name)
            if self._has_base:
                self._check_base(session, table)
            made[table.listed] = table
        return made

    def _looked_at(self, session: MysqlSession, database: str, name: str) -> FollowedTable:
        """A table as the catalog has it.

        Raises:
            SourceError, SchemaError, OptionError: it cannot be followed.
        """
        source = self._reader_of(database, name).resolve(session)
        check_table(session, source)
        if database not in self._checked:
            check_server(session, database)
            self._checked.add(database)
        check_names(source)
        return self._advised(followed(self._server, source, self._options))

    def _advised(self, table: FollowedTable) -> FollowedTable:
        name = name_of(table.database, table.name)
        advice = columns_advice(self._rule)
        return replace(
            table, listed=name, label=f"table {name!r}", advice=_ADVICE, columns_advice=advice
        )

    def _check_base(self, session: MysqlSession, table: FollowedTable, joins: str = "") -> None:
        source = self._reader_of(table.database, table.name).resolve(session)
        check_base(table.listed, obstacle(source), _INSTEAD, joins)

    def _reader_of(self, database: str, name: str) -> SqlReader:
        """Of its existing rows."""
        known = self._readers.get((database, name))
        if known is None:
            options = self._options.model_copy(
                update={"dbtable": f"{quoted(database)}.{quoted(name)}"}
            )
            known = cast(Any, type(self._reader))(options)
            known.fetch_size = self._reader.fetch_size
            self._readers[database, name] = known
        return known

    def _recalled(self, name: str, place: BinlogPlace) -> FollowedTable:
        """As a token has it."""
        known = self._as_noted.get(name)
        if known is None or known[0] != place.table:
            made = self._advised(recalled(self._server, self._reader, place.table))
            known = self._as_noted[name] = (place.table, made)
        return replace(known[1], is_dropped=True) if place.is_dropped else known[1]

    def _source_of(
        self, session: MysqlSession, place: BinlogPlace, position: GtidSet
    ) -> ReadSource | None:
        """The table as the catalog has it. None: the log behind `position` says that it was dropped, or renamed.

        Raises:
            SourceError: it does not; the login may not see the table.
        """
        reader = self._reader_of(place.table["database"], place.table["name"])
        try:
            return reader.resolve(session)
        except SourceError as error:
            if is_away(error) or not self._is_gone(place, position):
                raise
            return None

    def _is_gone(self, place: BinlogPlace, position: GtidSet) -> bool:
        name = name_of(place.table["database"], place.table["name"])
        table = self._recalled(name, place)
        decoder = ChangeDecoder([table], None, no_answers, counts=True, has=no_column)
        with dumped(self._options, position) as log:
            for event in log:
                try:
                    if decoder.take(event) and decoder.tables[0].is_dropped:
                        return True
                except SchemaError:
                    continue  # it has other columns there, and may be dropped later
                except SourceError as error:
                    if is_away(error):
                        raise
                    return True
        return False

    # --- positions ---

    def earliest(self) -> list[Token]:
        with self._session() as session:
            return [self._begun(session, self._first(session))]

    def now(self) -> list[Token]:
        with self._session() as session:
            return [self._begun(session, self._visible(session))]

    def _begun(self, session: MysqlSession, position: GtidSet) -> Token:
        """The tables are looked at behind the position, so the log has all of their later changes."""
        tables = {
            name: BinlogPlace(noted_table(table)) for name, table in self._begin(session).items()
        }
        return TablesToken(position, tables).token()

    def end_of(self, token: Token) -> Token:
        with self._session() as session:
            return replace(self._read(token), position=self._ended(session)).token()

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = map(self._read, tokens)
        made = token
        with self._session() as session:
            for name, place in token.tables.items():
                reader = self._reader_of(place.table["database"], place.table["name"])
                base = start_of(session, reader.resolve(session), token.position)
                since = None if base is None else token.position
                made = made.placed(name, replace(place, base=base, since=since))
        return [made.token()]

    def _read(self, token: Token) -> TablesToken:
        return TablesToken.read(token, self._gtids)

    def _position(self, token: Token) -> GtidSet:
        return self._read(token).position

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        with self._session() as session:
            at = self._visible(session)
            found = self._looked_at(session, *find_one(session, self._reader.dialect, table))
            self._check_base(
                session, found, "whose existing rows are read whatever 'tunnelType' is"
            )

        def changed(token: Token) -> Token:
            old = self._read(token)
            join = old.restarted if again else old.joined
            return join(found.listed, noted_table(found), at).token()

        return changed

    def leaving(self, table: str) -> Callable[[Token], Token]:
        def changed(token: Token) -> Token:
            old = self._read(token)
            meant = named(table, old.tables, folds=self._server.folds)
            return old.left(meant[0] if len(meant) == 1 else table).token()

        return changed

    def tables(self, token: Token) -> Collection[str]:
        found = token.get("tables")
        return tuple(found) if isinstance(found, dict) else ()

    def _check_listed(self, session: MysqlSession, token: TablesToken) -> None:
        """
        Raises:
            OptionError: the options name a table that the tunnel does not follow.
        """
        known = (*token.tables, *token.removed)
        for item in self._unchecked:
            if named(item, known, folds=self._server.folds):
                continue
            if name_of(*find_one(session, self._reader.dialect, item)) not in known:
                raise not_followed(item)
        self._unchecked = []

    # --- ranges ---

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        token = self._read(after)
        with self._session() as session:
            self._check_listed(session, token)
            self._check_place(session, token.position)
            until = None if upto is None else token.position.union(self._position(upto))
            made = self._planned(session, token, limit.most_rows(CHANGE_BYTES), until)
        return after if made == token else made.token()

    def _planned(
        self, session: MysqlSession, token: TablesToken, most: int | None, upto: GtidSet | None
    ) -> TablesToken:
        """The end of the next range: what is in the log, and a chunk of one table. See `_next` of one table."""
        reads = self.reads_base and not token.is_read
        made, count, is_cut = self._passed_by(session, token, most, upto)
        if not reads:
            return made if count or is_cut else self._fresh(token, made)
        if is_cut and token.waited < MOST_WAITS:
            return replace(made, waited=token.waited + 1)
        name = token.due()
        if name is None or name not in made.tables:
            return made
        place = made.tables[name]
        source = None if place.is_dropped else self._source_of(session, place, made.position)
        if source is None:
            warn_of_gone_rows(name)
            return made.started(name, None)
        if place.since is None or place.since != token.tables[name].since:
            return made  # it is to be read again from a later position on
        if place.base is None:
            if not self._visible(session).covers(place.since):
                return made  # a statement may not see its last key yet
            return made.started(name, start_of(session, source, place.since))
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return made.advanced(name, bound_of(session, source, place.base, rows), rows)

    def _passed_by(
        self, session: MysqlSession, token: TablesToken, most: int | None, upto: GtidSet | None
    ) -> tuple[TablesToken, int, bool]:
        """The token behind about `most` changes, how many they are, and whether more may follow.

        It ends before a transaction by which a table cannot be followed.

        Raises:
            SourceError, SchemaError: that transaction is the next one.
        """
        look = self._idle_look
        is_known = look is not None and look.token == token and upto is None
        start = look.position if look is not None and is_known else token.position
        position, count, looked = start.copy(), 0, 0
        decoder = self._counting(token, start, upto)
        if upto is not None and start.covers(upto):
            return token, 0, False
        made, first = token, 0.0
        try:
            with dumped(self._options, start) as log:
                for event in log:
                    looked += len(event.data)
                    if not decoder.take(event):
                        continue
                    assert decoder.gtid is not None
                    first = first or float(event.seconds)
                    if decoder.is_wanted:
                        changed = self._altered(session, made, decoder)
                        position.add(decoder.gtid)
                        count += decoder.found
                        decoder.found = 0
                        if changed != made:
                            return replace(changed, position=position), max(1, count), True
                    if (
                        decoder.done
                        or (most is not None and count >= most)
                        or looked >= MOST_LOOKED
                    ):
                        return replace(made, position=position), count, not decoder.done
        except ChannelError as error:
            if is_away(error):
                raise
            if position != start or start != token.position:
                return replace(made, position=position), max(1, count), True
            table = decoder.at
            forgiven = None if table is None else token.forgiven(table.table.listed)
            if forgiven is None:
                raise
            return self._passed_by(session, forgiven, most, upto)
        self._note_idle(token, position, looked, first)
        return replace(made, position=position), count, False

    def _note_idle(self, token: TablesToken, position: GtidSet, looked: int, first: float) -> None:
        look = self._idle_look
        if look is not None and look.token == token:
            looked, first = looked + look.nbytes, look.first or first
        self._idle_look = _IdleLook(token, position.copy(), looked, first)

    def _fresh(self, token: TablesToken, made: TablesToken) -> TablesToken:
        """`made`, whose range has no changes, where `token` is so old that its logs would be purged."""
        if replace(made, position=token.position) != token:
            return made
        look = self._idle_look
        if look is None or look.token != token:
            return token
        is_old = bool(look.first) and utc_now().timestamp() - look.first >= FRESH_SECONDS
        return made if is_old or look.nbytes >= FRESH_BYTES else token

    def _counting(
        self, token: TablesToken, start: GtidSet, upto: GtidSet | None = None
    ) -> ChangeDecoder:
        skips = {
            name: start.remaining(start.union(each.since))
            for name, each in token.tables.items()
            if each.since is not None and not start.covers(each.since)
        }
        return ChangeDecoder(
            [self._recalled(name, each) for name, each in token.tables.items()],
            None if upto is None else start.remaining(upto),
            no_answers,
            counts=True,
            has=self._rule.has(no_column),
            skips=skips,
        )

    def _altered(
        self, session: MysqlSession, token: TablesToken, decoder: ChangeDecoder
    ) -> TablesToken:
        """With the tables as the last transaction has left them.

        Raises:
            SchemaError: one has columns that it cannot continue with.
        """
        for each in decoder.altered:
            decoder.at = each
            name, place = each.table.listed, token.tables[each.table.listed]
            if each.is_dropped:
                place = replace(place, is_dropped=True)
                warn_of_dropped(name)
            elif (source := self._source_of(session, place, token.position)) is not None:
                table = self._continued(session, each.table, source)
                place = replace(place, table=noted_table(table))
            token = token.changed(tables={**token.tables, name: place})
        return token

    def _continued(
        self, session: MysqlSession, was: FollowedTable, source: ReadSource
    ) -> FollowedTable:
        """The table with the columns that it continues with, of which the catalog may have more by now."""
        rule = self._rule
        check_table(session, source)
        if not rule.evolves:
            rule.check(was.schema, source.schema, was.label, was.key)
            return was
        check_names(source)
        table = self._advised(followed(self._server, source, self._options))
        what = becomes(was, table)
        if what:
            raise SchemaError(f"{was.label} {what} since its stream began. {rule.advice}")
        names = ", ".join(each.name for each in table.columns)
        _log.info("%s continues with columns %s (onSchemaChange=evolve)", was.label, names)
        return table

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = self._read(after), self._read(upto)
        places = old.token()["tables"]
        tables = {name: {"table": places[name]["table"]} for name in old.tables}
        for name, each in old.tables.items():
            since = new.tables[name].since or each.since
            if since is not None and not old.position.covers(since):
                tables[name]["since"] = str(since)
            if each.is_dropped:
                tables[name]["dropped"] = True
        log = {"after": str(old.position), "upto": str(new.position), "tables": tables}
        chunk = old.chunk_to(new)
        if chunk is not None:
            name, place, upper = chunk
            base = place.base
            keys = {"lower": base.after, "upper": upper, "order": base.order, "since": base.since}
            return [Split({"kind": "window", **log, "table": name, **keys})]
        return [] if old.position == new.position else [Split({"kind": "changes", **log})]

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        raise base_refused(_INSTEAD)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        params = split.params
        start, end = (self._gtids.parse(str(params[name])) for name in ("after", "upto"))
        places = {
            name: BinlogPlace(each["table"], is_dropped=each.get("dropped", False))
            for name, each in params["tables"].items()
        }
        tables = [self._recalled(name, each) for name, each in places.items()]
        skips = {
            name: self._gtids.parse(each["since"])
            for name, each in params["tables"].items()
            if "since" in each
        }
        table = next((each for each in tables if each.listed == params.get("table")), None)
        with (
            Answers(self._options) as answers,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):
            events = partial(self._events, answers, tables, table, skips)
            if table is None or not self._has_rows(places[table.listed], start):
                yield from events(start, start, end, None)
                return
            log = BinlogWatermarks(
                self._reader_of(table.database, table.name),
                rows,
                self._seen,
                events,
                None if self._rule.evolves else table.schema,
                change_schema(table.schema),
                start,
                end,
                rule=self._range_rule,
                order=params["order"],
                since=params["since"],
            )
            lower, upper = params["lower"], params["upper"]
            yield from read_window(
                NamedLog(log, table.listed),
                start,
                end,
                None if lower is None else tuple(lower),
                tuple(upper),
                log.chunk_rows(),
            )

    def _has_rows(self, place: BinlogPlace, start: GtidSet) -> bool:
        """Whether existing rows that were handed out at `start` are there; else they are gone with their table."""
        with self._session() as session:
            if not place.is_dropped and self._source_of(session, place, start) is not None:
                return True
        warn_of_gone_rows(name_of(place.table["database"], place.table["name"]))
        return False

    def _events(
        self,
        answers: Answers,
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
            has=no_column,
            skips=remaining,
        )
        return self._decoded(decoder, begin, upto)

    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        label = "a table" if decoder.at is None else decoder.at.table.label
        return SourceError(
            f"column {error.column.name!r} of {label} has {error.what} in the binary log. "
            f"{self._reader.dialect.misfit_advice(error.column)}"
        )

    # --- lag ---

    def lag(self, token: Token) -> FeedLag:
        found = self._read(token)
        with self._session() as session:
            self._check_place(session, found.position)
            sizes = sizes_of(session)
        decoder, now = self._counting(found, found.position), utc_now().timestamp()
        nbytes: int | None = None
        is_known = False
        try:
            count, nbytes, _ = self._waiting(decoder, found.position, sizes)
            is_known = count is not None
        except (
            ChannelError
        ) as error:  # a statement after which a table cannot be followed: the next range fails
            if is_away(error):
                raise
        waiting = {}
        for each in decoder.tables:
            seconds = max(0.0, now - each.first / 1e6) if each.first else 0.0
            waiting[each.table.listed] = (
                TableWaiting(each.found, each.nbytes, seconds)
                if is_known
                else TableWaiting(seconds=seconds or None)
            )
        present = [each.table.listed for each in decoder.tables if not each.is_dropped]
        return replace(lag_of_tables(found, waiting, present), nbytes=nbytes)
