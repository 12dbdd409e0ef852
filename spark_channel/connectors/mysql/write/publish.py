"""Staging tables, claims and merge in one transaction."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_channel.clock import SYSTEM_CLOCK, utc_now
from spark_channel.connectors.base.feed import CLOSES, OPENS
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import (
    IGNORED_ROWS,
    MysqlWriteSession,
    code_of,
    quoted,
)
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect, staged_columns
from spark_channel.connectors.sql.catalog import TargetTable, WriteColumn
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.connectors.sql.write.claim_tables import (
    CLAIMS,
    PLANS,
    PUBLISHED,
    TASKS,
    ClaimDialect,
    Ledger,
)
from spark_channel.connectors.sql.write.publish import PLACE, Merge, check_stored
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "IGNORING",
    "PIECE_SECONDS",
    "check_affected",
    "claims_of",
    "create_stage",
    "drop_if_empty",
    "drop_tables",
    "duplicate_words",
    "end_sessions",
    "hold",
    "in_turn",
    "insert_staged",
    "stage_names",
    "table_in",
    "table_lock",
    "take_over",
    "turns_end",
]


# Staging tables without keys, beside the target.


_DROP_SECONDS = 2
"""How long a drop waits for those who use the table."""
_LOCK_TIMEOUT = 1205


def create_stage(
    session: MysqlWriteSession,
    name: str,
    columns: tuple[WriteColumn, ...],
    *,
    temporary: bool,
    key: tuple[str, ...] = (),
) -> None:
    """A table of `columns`, each of which may be NULL, and `PLACE`; indexed by `key`. `name` is SQL."""
    define = MysqlWriteDialect().definition
    lines = [
        f"{PLACE} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        *(define(replace(column.column, not_null=False)) for column in columns),
    ]
    if key:
        lines.append(f"KEY ({', '.join(map(quoted, key))})")
    word = "TEMPORARY " if temporary else ""
    comment = "" if temporary else f" COMMENT='spark-channel, {utc_now():%Y-%m-%dT%H:%M:%SZ}'"
    session.execute(f"CREATE {word}TABLE {name} ({', '.join(lines)}) ENGINE=InnoDB{comment}")


def table_in(database: str, table: str) -> str:
    return f"{quoted(database)}.{quoted(table)}"


def stage_names(session: MysqlWriteSession, database: str, beginning: str) -> list[str]:
    like = beginning.replace("_", "\\_") + "%"
    rows = session.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
        (database, like),
    )
    return [str(name) for (name,) in rows]


def drop_tables(session: MysqlWriteSession, tables: Sequence[str]) -> list[str]:
    """Drop `tables` (SQL). Returns those that a transaction uses, so that they stay for now."""
    left = []
    session.execute(f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}")
    try:
        for table in tables:
            try:
                session.execute(f"DROP TABLE IF EXISTS {table}")
            except TargetError as error:
                if code_of(error) != _LOCK_TIMEOUT:
                    raise
                left.append(table)
    finally:
        session.execute("SET SESSION lock_wait_timeout = DEFAULT")
    return left


# Inserts staged rows into the table, inside the caller's transaction.


IGNORING = "INSERT IGNORE"
_log = log_of(__name__)
_MERGED = "spark_channel_merged"
_LAST = "spark_channel_last"
_FIRST_ROWS = 64
PIECE_SECONDS = 0.001
"""A statement costs a server about 0.2 ms."""
_TURN = threading.Lock()
_MOST_TURNS = 3
_LOCK_SECONDS = 600
_EMPTY_SECONDS = 2
_OLDER_SECONDS = 60
"""How long an older attempt of a task may hold its lock once a newer one wants it."""


def turns_end(spread: float) -> float:
    """Return until when pieces that are spread over `spread` seconds take turns, on the system's clock.

    Later, the tasks' rows are more than one session can add, or another task's piece waits for a lock of this one.
    """
    return SYSTEM_CLOCK.now() + _MOST_TURNS * spread


def in_turn(piece: Callable[[], object], until: float | None) -> float:
    """Run `piece` while no other task of this process runs one, or from `until` on; None = now. Return its seconds.

    Sessions that add rows to one index at the same time cost MariaDB more: 100 rows kept a core busy for 100 ms.
    """
    has_turn = until is not None and _TURN.acquire(timeout=max(0.0, until - SYSTEM_CLOCK.now()))
    try:
        begun = SYSTEM_CLOCK.now()
        piece()
        return SYSTEM_CLOCK.now() - begun
    finally:
        if has_turn:
            _TURN.release()


def table_lock(label: str) -> str:
    """Publishes to one table take turns; the server's names of locks have at most 64 letters."""
    return "spark_channel:" + hashlib.sha256(label.encode()).hexdigest()[:32]


def hold(session: MysqlWriteSession, name: str) -> None:
    """Take the lock `name` until the session ends: also a session whose client is gone holds it to its end.

    Raises:
        TargetError: another session holds it for very long.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _LOCK_SECONDS)) != 1:
        raise TargetError(
            f"another write holds the lock {name!r} for longer than {_LOCK_SECONDS} s: "
            "run the job again when that write has ended"
        )


def take_over(session: MysqlWriteSession, name: str) -> None:
    """`hold` that ends a session which keeps the lock for long: that of a host that hangs would keep it for hours.

    Raises:
        TargetError: the server could not end it.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _OLDER_SECONDS)) == 1:
        return
    end_sessions(session, [name])
    hold(session, name)


def end_sessions(session: MysqlWriteSession, names: Sequence[str]) -> None:
    """End the sessions that hold the locks `names`."""
    asked = ", ".join("IS_USED_LOCK(%s)" for _ in names)
    for row in session.rows(f"SELECT {asked}", names):
        for holder in row:
            if holder is not None:
                try:
                    session.execute(f"KILL {int(holder)}")
                except ChannelError:
                    pass  # it has ended meanwhile


def drop_if_empty(session: MysqlWriteSession, target: TargetTable) -> None:
    """Drop a table that was made for a publish which failed, unless another job has put rows into it. Commits.

    It is locked meanwhile. A table that cannot be locked soon, or by this role, stays, empty.
    """
    try:
        session.execute(f"SET SESSION lock_wait_timeout = {_EMPTY_SECONDS}")
        session.execute(f"LOCK TABLES {target.sql} WRITE")
        try:
            if not session.rows(f"SELECT 1 FROM {target.sql} LIMIT 1"):  # noqa: S608 - a quoted name
                drop_tables(session, [target.sql])
        finally:
            session.execute("UNLOCK TABLES")
    except ChannelError as error:
        _log.warning(
            "table %s, which was made for rows that were not published, stays: %s",
            target.label,
            error,
        )


def check_affected(table: str, sent: int, affected: int, words: tuple[str, str]) -> None:
    """Check that a statement stored all rows; `words`: how it begins and ends.

    REPLACE and ON DUPLICATE KEY UPDATE count a row whose key was there twice; INSERT IGNORE leaves it out.
    """
    verb, more = words
    if verb != IGNORING:
        counts_more = verb == "REPLACE" or bool(more)
        check_stored(table, sent, min(sent, affected) if counts_more else affected)


def duplicate_words(target: TargetTable, options: MysqlWriteOptions) -> tuple[str, str]:
    """How an insert begins and ends, by option `duplicates`."""
    verb = {"replace": "REPLACE", "ignore": IGNORING}.get(options.duplicates, "INSERT")
    if options.duplicates != "update":
        return verb, ""
    sets = (f"{quoted(name)} = VALUES({quoted(name)})" for name in target.names)
    return verb, f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"


def insert_staged(
    session: MysqlWriteSession,
    target: TargetTable,
    options: MysqlWriteOptions,
    stages: Sequence[tuple[str, int]],
    *,
    indexed: bool = False,
    paced: bool = False,
    spread: float | None = None,
) -> None:
    """Insert the rows of `stages` (tables, as SQL, and their rows) as `writeMode` says; `indexed`: the one stage has
    the key.

    `paced`: rows of `insert` are added in pieces, over `spread` seconds, None = four times what they take; keys are
    compared with all rows at once.

    Raises:
        TargetError: the server refused a row or did not store it, or two rows have one key.
    """
    names = ", ".join(map(quoted, target.names))
    if options.write_mode == "insert":
        verb, more = duplicate_words(target, options)
        if verb == IGNORING:
            session.list_warnings()

        def insert(stage: str, some: str = "") -> int:
            affected, warnings = session.affected(
                f"{verb} INTO {target.sql} ({names}) SELECT {names} FROM {stage}{some} ORDER BY {PLACE}{more}"  # noqa: S608 - names are quoted
            )
            leaves_out = verb == IGNORING and not session.lenient
            if warnings and leaves_out and (others := session.warnings_but_keys()):
                raise BatchRefusedError(
                    f"INSERT IGNORE left out rows of {target.label!r}: {'; '.join(others)}"
                )
            return affected

        for stage, rows in stages:
            if not paced and not (verb == IGNORING and rows > IGNORED_ROWS):
                check_affected(target.label, rows, insert(stage), (verb, more))
                continue
            affected: list[int] = []
            until = turns_end(spread or 0.0)

            def insert_range(
                begin: int,
                end: int,
                stage: str = stage,
                counts: list[int] = affected,
                until: float = until,
            ) -> float:
                where = f" WHERE {PLACE} >= {begin} AND {PLACE} < {end}"
                return in_turn(lambda: counts.append(insert(stage, where)), until)

            first, last = session.rows(f"SELECT MIN({PLACE}), MAX({PLACE}) FROM {stage}")[0]  # noqa: S608 - names are quoted
            if first is not None and verb == IGNORING and not paced:
                for begin in range(int(first), int(last) + 1, IGNORED_ROWS):
                    insert_range(begin, begin + IGNORED_ROWS)
            elif first is not None:
                pacer = WritePacer.moving(_FIRST_ROWS, burst_seconds=PIECE_SECONDS)
                pacer.run(insert_range, int(first), int(last) + 1, spread=spread)
            check_affected(target.label, rows, sum(affected), (verb, more))
        return
    if indexed and len(stages) == 1:
        merged = stages[0][0]
    else:
        merged = quoted(_MERGED)
        staged = ", ".join(map(quoted, target.staged_names))
        session.execute(f"DROP TEMPORARY TABLE IF EXISTS {merged}")
        create_stage(session, merged, staged_columns(target), temporary=True, key=target.key)
        for stage, _ in stages:
            session.execute(
                f"INSERT INTO {merged} ({staged}) SELECT {staged} FROM {stage} ORDER BY {PLACE}"  # noqa: S608 - names are quoted
            )
    _MysqlMerge(session, MysqlWriteDialect(), target, merged, options.write_mode).bring()


class _MysqlMerge(Merge):
    """MySQL knows no ON CONFLICT, and reads a temporary table once in a statement."""

    _session: MysqlWriteSession
    may_skip = False  # its triggers cannot

    def _affected(self, statement: str) -> int:
        return self._session.affected(statement)[0]

    def _keep_last(self) -> None:
        last = self.quoted(_LAST)
        self._run(f"DROP TEMPORARY TABLE IF EXISTS {last}")
        self._run(
            f"CREATE TEMPORARY TABLE {last} (place BIGINT PRIMARY KEY) ENGINE=InnoDB AS "  # noqa: S608 - quoted names
            f"SELECT MAX({PLACE}) AS place FROM {self._rows} GROUP BY {self.listed(self._key)}"
        )
        self._run(
            f"DELETE s FROM {self._rows} AS s LEFT JOIN {last} AS l ON s.{PLACE} = l.place WHERE l.place IS NULL"
        )

    def _leave_open(self, end: str) -> None:
        joined = f"{self._rows} AS s JOIN {self._target} AS t ON {self._same_one}"
        ended = self.quoted(end)
        said = f"WHERE {self.does(OPENS, 's.')} AND t.{ended} IS NULL AND s.{ended} IS"
        if self._begin is not None:
            begin = self.quoted(self._begin)
            self._run(f"UPDATE {joined} SET s.{begin} = t.{begin} {said} NULL")  # noqa: S608 - quoted names
        self._run(f"DELETE s FROM {joined} {said} NOT NULL")

    def _close(self, end: str) -> None:
        self._run(
            f"UPDATE {self._target} AS t JOIN {self._rows} AS s ON {self._same_one} "  # noqa: S608 - quoted names
            f"SET t.{self.quoted(end)} = {self._closed_at(end)} "
            f"WHERE {self.does(CLOSES, 's.')} AND t.{self.quoted(end)} IS NULL"
        )

    def _delete(self) -> None:
        joined = f"{self._target} AS t JOIN {self._rows} AS s ON {self._same}"
        self._run(f"DELETE t FROM {joined} WHERE {self.gone('s.')}")

    def _write(self, *, update: bool) -> int | None:
        stored = 0
        if update and self.others:
            # A key that is assigned to itself stays also where it is a TIMESTAMP with ON UPDATE CURRENT_TIMESTAMP.
            sets = ", ".join(
                [
                    *(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in self.others),
                    *(f"t.{self.quoted(each)} = t.{self.quoted(each)}" for each in self._key),
                ]
            )
            stored = self._affected(
                f"UPDATE {self._target} AS t JOIN {self._rows} AS s ON {self._same} SET {sets}"  # noqa: S608 - names are quoted
            )
        inserted = self._affected(
            f"INSERT INTO {self._target} ({self.listed(self._names)}) "  # noqa: S608 - names are quoted
            f"SELECT {self.listed(self._names, 's.')} FROM {self._rows} AS s LEFT JOIN {self._target} AS t "
            f"ON {self._same} WHERE t.{self.quoted(self._key[0])} IS NULL"
        )
        if update and self.others:
            ((sent,),) = self._run(f"SELECT COUNT(*) FROM {self._rows}")  # noqa: S608 - names are quoted
            check_stored(self._label, int(sent), stored + inserted)
        return None


# Claims in MySQL: InnoDB tables without triggers, by default in the target's database.


_TABLES = (CLAIMS, TASKS, PLANS)
# By equality: MariaDB opens only the tables that are named so.
# CONCAT: Dolt's engine has no union of an ENUM with NULL.
_TABLE = (
    "SELECT table_name, CONCAT(table_type), engine, NULL FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s"
)
_TRIGGERS = (
    "SELECT event_object_table, NULL, NULL, trigger_name FROM information_schema.triggers "
    "WHERE event_object_schema = %s AND event_object_table = %s"
)
_INDEX = (
    "SELECT index_name, 'INDEX', NULL, NULL FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s AND index_name = %s AND seq_in_index = 1"
)


class _Known:
    """The claim tables in the catalog, queried once; a missing table is queried again."""

    def __init__(self, session: MysqlWriteSession, ledger: Ledger) -> None:
        self._session, self._ledger = session, ledger
        self._found: dict[str, list[str]] = {}

    def exists(self, table: str) -> bool:
        table = self._ledger.name(table)
        if table not in self._found:
            self._look()
        return table in self._found

    def distrust(self, table: str) -> str | None:
        """MySQL's tables have no owner: a role can only add a trigger, or replace them by another kind of table."""
        faults = self._found.get(self._ledger.name(table), [])
        return faults[0] if faults else None

    def _look(self) -> None:
        asked = f"{_TABLE} UNION ALL {_TRIGGERS}"
        query = " UNION ALL ".join([*[asked] * len(_TABLES), _INDEX])
        schema, index = self._ledger.schema, self._ledger.name(PUBLISHED)
        names = [self._ledger.name(name) for name in _TABLES for _ in (_TABLE, _TRIGGERS)]
        asked_for = [each for name in names for each in (schema, name)]
        rows = self._session.rows(query, [*asked_for, schema, self._ledger.name(CLAIMS), index])
        found: dict[str, list[str]] = {
            str(name): [] for name, kind, _, _ in rows if kind is not None
        }
        for name, kind, engine, trigger in rows:
            faults = found.get(str(name), [])
            if trigger is not None:
                faults.append(f"it has the trigger {str(trigger)!r}")
            elif str(kind) == "INDEX":
                continue
            elif str(kind) != "BASE TABLE":
                faults.append(f"it is a {str(kind).lower()}")
            elif str(engine).lower() != "innodb":
                faults.append(f"its engine is {engine}, not InnoDB")
        self._found = found


def claims_of(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    """One for each session, which looks for the tables once."""
    found: ClaimDialect = session.kept(ledger, lambda: _claims_of(session, ledger))
    return found


def _claims_of(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    known = _Known(session, ledger)
    index = f"INDEX {quoted(ledger.name(PUBLISHED))} (kind, published_at)"
    table = f"{quoted(ledger.schema)}.{quoted(ledger.name(CLAIMS))}"
    return ClaimDialect(
        table=lambda name: f"{quoted(ledger.schema)}.{quoted(ledger.name(name))}",
        exists=known.exists,
        mark=lambda _number: "%s",
        after=" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        share="LOCK IN SHARE MODE",
        update="FOR UPDATE",
        distrust=known.distrust,
        stage=ledger.stage,
        index=f"ALTER TABLE {table} ADD {index}",
        index_in_table=f", {index}",
        hurry=f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}",
        hurry_end="SET SESSION lock_wait_timeout = DEFAULT",
    )
