"""Inserts staged rows into the table, inside the caller's transaction."""

import logging
from collections.abc import Sequence

from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.mysql.dialect import table_named
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.session import code_of, quoted
from spark_channel.connectors.sql.mysql.staging import create_stage, drop_tables
from spark_channel.connectors.sql.mysql.target import MysqlWriteDialect, staged_columns
from spark_channel.connectors.sql.mysql.write_session import TABLE_EXISTS, MysqlWriteSession
from spark_channel.connectors.sql.paced import in_pieces
from spark_channel.connectors.sql.publish import dropped, hold_planned
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.script import TRANSACTION_WORDS
from spark_channel.connectors.sql.target import TargetTable
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError

__all__ = [
    "COMMITTING_WORDS",
    "IGNORING",
    "check_table",
    "create_table",
    "drop_if_empty",
    "duplicate_words",
    "end_sessions",
    "hold",
    "hold_affected",
    "insert_staged",
    "take_over",
]

COMMITTING_WORDS = TRANSACTION_WORDS | {
    "ALTER", "ANALYZE", "CHANGE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE", "RENAME",
    "REPAIR", "RESET", "REVOKE", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK",
}  # fmt: skip
"""First words of statements that commit the transaction in which they run."""
IGNORING = "INSERT IGNORE"
_log = logging.getLogger(__name__)
_MERGED = "spark_channel_merged"
_LAST = "spark_channel_last"
_FIRST_ROWS, _MOST_ROWS = 256, 65_536
_PIECE_SECONDS = 0.002
"""A statement costs a server about 0.2 ms."""
_LOCK_SECONDS = 600
_EMPTY_SECONDS = 2
_OLDER_SECONDS = 60
"""How long an older attempt of a task may hold its lock once a newer one wants it."""


def hold(session: MysqlWriteSession, name: str) -> None:
    """Take the lock `name` until the session ends: also a session whose client is gone holds it to its end.

    Raises:
        TargetError: another session holds it for very long.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _LOCK_SECONDS)) != 1:
        raise TargetError(f"another write holds the lock {name!r} for longer than {_LOCK_SECONDS} s")


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
                    session.rows(f"KILL {int(holder)}")
                except ChannelError:
                    pass  # it has ended meanwhile


def create_table(session: MysqlWriteSession, target: TargetTable) -> bool:
    """Make the table when it is not there; whether this session made it. Commits."""
    if table_named(session, target.schema, target.name) is not None:
        return False
    if target.create is None:
        raise dropped(target)
    try:
        session.rows(target.create)
    except TargetError as error:
        if code_of(error) != TABLE_EXISTS:
            raise
        return False
    return True


def drop_if_empty(session: MysqlWriteSession, target: TargetTable) -> None:
    """Drop a table that was made for a publish which failed, unless another job has put rows into it. Commits.

    It is locked meanwhile. A table that cannot be locked soon, or by this role, stays, empty.
    """
    try:
        session.rows(f"SET SESSION lock_wait_timeout = {_EMPTY_SECONDS}")
        session.rows(f"LOCK TABLES {target.sql} WRITE")
        try:
            if not session.rows(f"SELECT 1 FROM {target.sql} LIMIT 1"):  # noqa: S608 - a quoted name
                drop_tables(session, [target.sql])
        finally:
            session.rows("UNLOCK TABLES")
    except ChannelError as error:
        _log.warning(
            "table %s, which was made for rows that were not published, stays: %s", target.label, error
        )


def check_table(session: MysqlWriteSession, target: TargetTable) -> None:
    """`hold_planned`."""
    hold_planned(MysqlWriteDialect(), target, table_named(session, target.schema, target.name))


def hold_affected(table: str, sent: int, affected: int, words: tuple[str, str]) -> None:
    """Hold a statement to have stored all rows; `words`: how it begins and ends.

    REPLACE and ON DUPLICATE KEY UPDATE count a row whose key was there twice; INSERT IGNORE leaves it out.
    """
    verb, more = words
    if verb != IGNORING:
        counts_more = verb == "REPLACE" or bool(more)
        hold_stored(table, sent, min(sent, affected) if counts_more else affected)


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
) -> None:
    """Insert the rows of `stages` (tables, as SQL, and their rows) as `writeMode` says; `indexed`: the one stage has
    the key.

    `paced`: rows of `insert` are added in pieces, with rests; keys are compared with all rows at once.

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
                f"{verb} INTO {target.sql} ({names}) SELECT {names} FROM {stage}{some} ORDER BY {PLACE}{more}"  # noqa: S608
            )
            leaves_out = verb == IGNORING and not session.lenient
            if warnings and leaves_out and (others := session.warnings_but_keys()):
                raise BatchRefusedError(
                    f"INSERT IGNORE left out rows of {target.label!r}: {'; '.join(others)}"
                )
            return affected

        for stage, rows in stages:
            if not paced:
                hold_affected(target.label, rows, insert(stage), (verb, more))
                continue
            affected: list[int] = []

            def insert_range(begin: int, end: int, stage: str = stage, counts: list[int] = affected) -> None:
                counts.append(insert(stage, f" WHERE {PLACE} >= {begin} AND {PLACE} < {end}"))

            first, last = session.rows(f"SELECT MIN({PLACE}), MAX({PLACE}) FROM {stage}")[0]  # noqa: S608
            if first is not None:
                in_pieces(
                    insert_range, int(first), int(last) + 1, first=_FIRST_ROWS, most=_MOST_ROWS,
                    seconds=_PIECE_SECONDS,
                )  # fmt: skip
            hold_affected(target.label, rows, sum(affected), (verb, more))
        return
    if indexed and len(stages) == 1:
        merged = stages[0][0]
    else:
        merged = quoted(_MERGED)
        staged = ", ".join(map(quoted, target.staged_names))
        session.rows(f"DROP TEMPORARY TABLE IF EXISTS {merged}")
        create_stage(session, merged, staged_columns(target), temporary=True, key=target.key)
        for stage, _ in stages:
            session.rows(f"INSERT INTO {merged} ({staged}) SELECT {staged} FROM {stage} ORDER BY {PLACE}")  # noqa: S608
    _MysqlMerge(session, MysqlWriteDialect(), target, merged, options.write_mode).bring()


class _MysqlMerge(Merge):
    """MySQL knows no ON CONFLICT, and reads a temporary table once in a statement."""

    may_skip = False  # its triggers cannot

    def __init__(
        self,
        session: MysqlWriteSession,
        dialect: MysqlWriteDialect,
        target: TargetTable,
        rows: str,
        mode: str,
    ) -> None:
        super().__init__(session.rows, dialect, target, rows, mode)
        self._session = session

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

    def _delete(self) -> None:
        joined = f"{self._target} AS t JOIN {self._rows} AS s ON {self._same}"
        self._run(f"DELETE t FROM {joined} WHERE {self.gone('s.')}")

    def _write(self, *, update: bool) -> int | None:
        stored = 0
        if update and self.others:
            sets = ", ".join(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in self.others)
            stored = self._affected(
                f"UPDATE {self._target} AS t JOIN {self._rows} AS s ON {self._same} SET {sets}"  # noqa: S608
            )
        inserted = self._affected(
            f"INSERT INTO {self._target} ({self.listed(self._names)}) "  # noqa: S608
            f"SELECT {self.listed(self._names, 's.')} FROM {self._rows} AS s LEFT JOIN {self._target} AS t "
            f"ON {self._same} WHERE t.{self.quoted(self._key[0])} IS NULL"
        )
        if update and self.others:
            ((sent,),) = self._run(f"SELECT COUNT(*) FROM {self._rows}")  # noqa: S608
            hold_stored(self._label, int(sent), stored + inserted)
        return None
