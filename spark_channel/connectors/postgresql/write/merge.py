"""Merges rows of a staging or temporary table into the target by `writeMode`, with the necessary casts."""

from collections.abc import Sequence
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.feed import CLOSES, OPERATION, TRUNCATES
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.connectors.postgresql.types import PgWriteColumn, value_sql
from spark_channel.connectors.postgresql.write.dialect import DIALECT, written_columns
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.connectors.sql.write.checks import check_gone
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.errors import BatchRefusedError

__all__ = [
    "PostgresMerge",
    "keys_sql",
    "of_pages",
]

_SERVER_SECONDS = "; SELECT extract(epoch FROM clock_timestamp() - statement_timestamp())::float8"
"""Behind a statement, sent with it: what both took, without the way there and back."""


def of_pages(ctid: str, begin: int, end: int) -> str:
    """The condition that a row lies on these pages."""
    return f"{ctid} >= '({begin},0)'::tid AND {ctid} < '({end},0)'::tid"


def keys_sql(target: TargetTable) -> str:
    return ", ".join(map(DIALECT.quoted, target.key))


class PostgresMerge(Merge):
    """Also inserts. Rows keep their `xmin`, by which a publish counts them before it merges."""

    def __init__(
        self, session: PgWriteSession, target: TargetTable, rows: str, mode: str, *, count: int = 0
    ) -> None:
        """`count`: how many `rows` there are."""
        super().__init__(session, DIALECT, target, rows, mode, count)
        self._session: PgWriteSession = session
        self._columns, self._place = written_columns(target), target
        self.writers: int | None = None
        """How many tasks wrote the rows; None = others may write to the same target."""

    def bring_in_pieces(self, pages: int, clock: Clock = SYSTEM_CLOCK) -> None:
        """`bring` for `insert`, some of the rows' `pages` at a time: the server rests, and uses a quarter of a core.

        A piece takes the server about 1 ms, however far away it is; all pieces are one transaction, which lasts four
        times as long as one statement would.
        """
        assert self._mode == "insert"

        with self._session.all_stored(self._target, self._label, self._count) as stored:

            def insert(begin: int, end: int) -> float:
                affected, returned = self._insert(
                    f" WHERE {of_pages('s.ctid', begin, end)}{_SERVER_SECONDS}"
                )
                stored(affected)
                return float(returned[-1][0])

            WritePacer.moving(1, clock=clock).run(insert, 0, pages)

    def bring(self) -> None:
        if self._mode == "insert":
            self._insert_all("", self._count)
            return
        if self._mode == "apply":
            self._truncate()
        super().bring()

    def _truncate(self) -> None:
        """Empty the target where a row says so; what came before that row goes with it.

        By DELETE, for which a role that writes rows has the right, and which blocks no reader.
        """
        words = ", ".join(f"'{word}'" for word in TRUNCATES)
        truncates = f"LOWER({self._operation}) IN ({words})"
        ((last,),) = self._run(f"SELECT max({PLACE})::bigint FROM {self._rows} WHERE {truncates}")  # noqa: S608 - names are quoted
        if last is None:
            return
        if self.writers != 1:
            many = (
                "tasks that commit by themselves"
                if self.writers is None
                else f"{self.writers} tasks"
            )
            raise BatchRefusedError(
                f"a row has 'truncate' in {OPERATION}, and {many} write to {self._label}: whether the rows of another "
                "task are older or newer is not known. Write with commit=job, and without a shuffle behind the stream "
                "(repartition, join), so that one task has all changes in their order"
            )
        DIALECT.check_deletes(self._session, self._place.schema, self._place.name)
        self._run(f"DELETE FROM {self._own_rows}")  # noqa: S608 - names are quoted
        check_gone(self._label, int(self._run(f"SELECT count(*) FROM {self._own_rows}")[0][0]))  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._rows} WHERE {PLACE} <= {last}")  # noqa: S608 - names are quoted

    def _keep_last(self) -> None:
        key = self.listed(self._key)
        self._rows = (
            f"(SELECT DISTINCT ON ({key}) * FROM {self._rows} ORDER BY {key}, {PLACE} DESC)"  # noqa: S608 - names are quoted
        )

    def _delete(self) -> None:
        where = f"{self.gone('s.')} AND {self._same}"
        self._run(f"DELETE FROM {self._own_rows} t USING {self._rows} s WHERE {where}")  # noqa: S608 - names are quoted

    def _close(self, end: str) -> None:
        where = f"{self.does(CLOSES, 's.')} AND {self._same_one} AND t.{self.quoted(end)} IS NULL"
        self._run(
            f"UPDATE {self._own_rows} t SET {self.quoted(end)} = {self._closed_at(end)} FROM {self._rows} s "  # noqa: S608 - names are quoted
            f"WHERE {where}"
        )

    def _staged(self, name: str) -> str:
        return next(self._value(column) for column in self._columns if column.target == name)

    def _same_by(self, key: Sequence[str]) -> str:
        return " AND ".join(
            f"t.{self.quoted(column.target)} = {self._value(column)}"
            for column in self._columns
            if column.target in key
        )

    def _drop_deletes(self) -> None:
        pass

    def _write(self, *, update: bool) -> int | None:
        action = "DO NOTHING"
        if update and self.others:
            sets = ", ".join(
                f"{self.quoted(name)} = EXCLUDED.{self.quoted(name)}" for name in self.others
            )
            action = f"DO UPDATE SET {sets}"
        condition, count = "", self._count
        if self._mode == "apply":
            condition = f" WHERE NOT {self.ended('s.')}"
            ((count,),) = self._run(f"SELECT count(*) FROM {self._rows} s{condition}")  # noqa: S608 - names are quoted
        conflict = f"{condition} ON CONFLICT ({self.listed(self._key)}) {action}"
        if action == "DO NOTHING":
            stored, _ = self._insert(conflict)
            if stored != count:
                self._check_keys()
        else:
            self._insert_all(conflict, count)
        return None

    def _check_written(self, stored: int | None) -> None:
        pass  # `_write` has

    def _insert_all(self, clauses: str, count: int) -> None:
        with self._session.all_stored(self._target, self._label, count) as stored:
            stored(self._insert(clauses)[0])

    def _insert(self, clauses: str) -> tuple[int, Sequence[tuple[Any, ...]]]:
        numbered = any(column.column.identity == "a" for column in self._columns)
        override = " OVERRIDING SYSTEM VALUE" if numbered else ""
        values = ", ".join(map(self._value, self._columns))
        return self._session.affected(
            f"INSERT INTO {self._target} ({self.listed(self._names)}){override} "  # noqa: S608 - names are quoted
            f"SELECT {values} FROM {self._rows} s{clauses}"
        )

    def _value(self, column: PgWriteColumn) -> str:
        name = f"s.{self.quoted(column.target)}"
        return value_sql(name, column.column) if column.cast else name
