"""Inserts staged rows into the table, inside the caller's transaction."""

from collections.abc import Sequence

from spark_channel.connectors.base.feed import CLOSES, OPENS
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import (
    IGNORED_ROWS,
    MysqlWriteSession,
    quoted,
)
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect, staged_columns
from spark_channel.connectors.mysql.write.staging import create_stage
from spark_channel.connectors.mysql.write.table_locks import in_turn, turns_end
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.errors import BatchRefusedError

__all__ = [
    "IGNORING",
    "PIECE_SECONDS",
    "check_affected",
    "duplicate_words",
    "insert_staged",
]

IGNORING = "INSERT IGNORE"
_MERGED = "spark_channel_merged"
_LAST = "spark_channel_last"
_FIRST_ROWS = 64
PIECE_SECONDS = 0.001
"""A statement costs a server about 0.2 ms."""


def check_affected(table: str, sent: int, affected: int, words: tuple[str, str]) -> None:
    """Check that a statement stored all rows; `words`: how it begins and ends.

    REPLACE and ON DUPLICATE KEY UPDATE count a row whose key was there twice; INSERT IGNORE leaves it out.
    """
    verb, ending = words
    if verb != IGNORING:
        counts_more = verb == "REPLACE" or bool(ending)
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
        verb, ending = duplicate_words(target, options)
        if verb == IGNORING:
            session.list_warnings()

        def insert(stage: str, some: str = "") -> int:
            affected, warnings = session.affected(
                f"{verb} INTO {target.sql} ({names}) SELECT {names} FROM {stage}{some} ORDER BY {PLACE}{ending}"  # noqa: S608 - names are quoted
            )
            leaves_out = verb == IGNORING and not session.lenient
            if warnings and leaves_out and (others := session.warnings_but_keys()):
                raise BatchRefusedError(
                    f"INSERT IGNORE left out rows of {target.label!r}: {'; '.join(others)}"
                )
            return affected

        for stage, rows in stages:
            if not paced and not (verb == IGNORING and rows > IGNORED_ROWS):
                check_affected(target.label, rows, insert(stage), (verb, ending))
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
            check_affected(target.label, rows, sum(affected), (verb, ending))
        return
    if indexed and len(stages) == 1:
        merged = stages[0][0]
    else:
        merged = quoted(_MERGED)
        staged = ", ".join(map(quoted, target.staged_names))
        # A publish that failed in this session may have left it: no rollback drops a temporary table.
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
        clause = f"WHERE {self.does(OPENS, 's.')} AND t.{ended} IS NULL AND s.{ended} IS"
        if self._begin is not None:
            begin = self.quoted(self._begin)
            self._run(f"UPDATE {joined} SET s.{begin} = t.{begin} {clause} NULL")  # noqa: S608 - quoted names
        self._run(f"DELETE s FROM {joined} {clause} NOT NULL")

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
        # The update first, which finds the rows that were there before: each row is counted by one statement.
        stored = 0
        if update and self.others:
            # A key that is assigned to itself stays also where it is a TIMESTAMP with ON UPDATE CURRENT_TIMESTAMP.
            sets = ", ".join(
                [
                    *(f"t.{self.quoted(name)} = s.{self.quoted(name)}" for name in self.others),
                    *(f"t.{self.quoted(name)} = t.{self.quoted(name)}" for name in self._key),
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
