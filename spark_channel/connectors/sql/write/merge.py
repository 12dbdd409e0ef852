"""Merges staged rows into a table by `writeMode`, inside the caller's transaction."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from spark_channel.connectors.base.feed import (
    BEGIN,
    CLOSE_ALL,
    CLOSES,
    DELETES,
    ENDS,
    OPENS,
    OPERATION,
    WRITES,
)
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.session import BoundSession, WriteSession
from spark_channel.connectors.sql.write.checks import check_gone, check_stored
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["PLACE", "Merge", "StandardMerge"]

PLACE = "spark_channel_place"
"""The column that numbers staged rows in the order in which they came."""


class Merge:
    """For databases with ON CONFLICT. Another one overrides `_keep_last`, `_delete` and `_write`.

    `rows` is a table, as SQL, that has the columns of `target`, and for a change feed `OPERATION` and `PLACE` besides;
    there are `count` of them, which `mode` insert asks for.
    """

    insert = "INSERT"
    order: ClassVar[str] = f" ORDER BY {PLACE}"
    """Behind a SELECT of the rows: the order in which they came."""
    may_skip: ClassVar[bool] = True
    """Whether the database has triggers or rules that skip rows, and reports success."""

    def __init__(
        self,
        session: BoundSession,
        dialect: Dialect,
        target: TargetTable,
        rows: str,
        mode: str,
        count: int = 0,
    ) -> None:
        self._session, self._dialect, self._target, self._rows = session, dialect, target.sql, rows
        self._own_rows = target.own_rows
        self._run: Callable[[str], Sequence[tuple[Any, ...]]] = session.rows
        self._names, self._key, self._mode, self._count = target.names, target.key, mode, count
        self._label = target.label
        self._operation = self.quoted(OPERATION)

    def bring(self) -> None:
        """Bring the rows into the target. Only the last writes of a change feed are left in `rows`.

        Raises:
            TargetError: a key holds NULL, two rows have one key, `OPERATION` says nothing known, or the database
                refused a row, or skipped one.
        """
        if self._mode == "insert":
            self._append()
            return
        end = self.end if self._mode == "apply" else None
        if end is not None:
            self._leave_open(end)
            self._close(end)  # before all others end
            self._close_all(end)
        self.refuse_bad_keys()
        if self._mode == "apply":
            self._refuse_unknown_operations()
            # First: only the last change of a key counts, and a statement can write a key once.
            self._keep_last()
            self._delete()
            if self.may_skip:
                self._check_deleted()
            self._drop_deletes()
        stored = self._write(update=self._mode != "skipExisting")
        if self.may_skip:
            self._check_written(stored)

    def _append(self) -> None:
        """Insert the rows in the order in which they came."""
        names = self.listed(self._names)
        stored = self._affected(
            f"{self.insert} INTO {self._target} ({names}) SELECT {names} FROM {self._rows}{self.order}"  # noqa: S608 - names are quoted
        )
        if stored is not None:
            check_stored(self._label, self._count, stored)

    def refuse_bad_keys(self) -> None:
        """Check that the keys are there, and, but for a change feed, are there once."""
        self._refuse_null_keys()
        if self._mode != "apply":
            self._refuse_twins()

    def quoted(self, name: str) -> str:
        """The name as an identifier in SQL."""
        return self._dialect.quoted(name)

    def listed(self, names: Sequence[str], prefix: str = "") -> str:
        """The names, quoted and joined by commas; `prefix` precedes each, such as "t."."""
        return ", ".join(prefix + self.quoted(name) for name in names)

    def limited(self, query: str) -> str:
        """`query` for its first row."""
        return self._dialect.limited(query, 1)

    @property
    def others(self) -> list[str]:
        """The columns that are not of the key."""
        return [name for name in self._names if name not in self._key]

    @property
    def _same(self) -> str:
        """The condition that the rows t and s have one key."""
        return self._same_by(self._key)

    def _same_by(self, key: Sequence[str]) -> str:
        return " AND ".join(f"t.{self.quoted(name)} = s.{self.quoted(name)}" for name in key)

    def _keep_last(self) -> None:
        """Leave the last row of each key."""
        last = f"SELECT MAX({PLACE}) FROM {self._rows} GROUP BY {self.listed(self._key)}"  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._rows} WHERE {PLACE} NOT IN ({last})")  # noqa: S608 - names are quoted

    def gone(self, prefix: str = "") -> str:
        """The condition that a row is a delete."""
        return self.does(DELETES, prefix)

    @property
    def end(self) -> str | None:
        """The column that a close sets; None = the rows have none, so no row is a close."""
        return next((name for name in self._names if name.lower() in ENDS), None)

    def does(self, words: Sequence[str], prefix: str = "") -> str:
        """The condition that a row's operation is one of `words`."""
        return f"LOWER({prefix}{self._operation}) IN ({_texts(words)})"

    def ended(self, prefix: str = "") -> str:
        """The condition that a row is not written itself: a delete or a close."""
        return self.does((*DELETES, *CLOSES), prefix)

    @property
    def _same_one(self) -> str:
        """As `_same`, for all versions of a row."""
        return self._same_by([name for name in self._key if name.lower() != BEGIN])

    @property
    def _begin(self) -> str | None:
        """The key column that distinguishes the versions of a row."""
        return next((name for name in self._key if name.lower() == BEGIN), None)

    def _close_all(self, end: str) -> None:
        """Set the end of all rows of the target that have none, if a row says so."""
        condition = self.does(CLOSE_ALL)
        if not self._run(self.limited(f"SELECT 1 FROM {self._rows} WHERE {condition}")):  # noqa: S608 - quoted names
            return
        value = f"SELECT MAX({self._staged(end)}) FROM {self._rows} s WHERE {condition}"  # noqa: S608 - quoted names
        self._run(
            f"UPDATE {self._own_rows} SET {self.quoted(end)} = ({value}) WHERE {self.quoted(end)} IS NULL"  # noqa: S608 - names are quoted
        )
        if self._begin is not None:
            # As in `_closed_at`, apart: MySQL reads a temporary table once in a statement.
            ended, begin = self.quoted(end), self.quoted(self._begin)
            self._run(f"UPDATE {self._own_rows} SET {ended} = {begin} WHERE {ended} < {begin}")  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._rows} WHERE {condition}")  # noqa: S608 - quoted names

    def _leave_open(self, end: str) -> None:
        """Let an open of a key that has a row without an end write that row, or remove the open if it has an end."""
        is_open = f"FROM {self._own_rows} t WHERE {self._same_one} AND t.{self.quoted(end)} IS NULL"
        clause = f"WHERE {self.does(OPENS, 's.')} AND EXISTS (SELECT 1 {is_open}) AND s.{self.quoted(end)} IS"
        if self._begin is not None:
            begin = self.quoted(self._begin)
            self._run(
                f"UPDATE {self._rows} AS s SET {begin} = (SELECT MAX(t.{begin}) {is_open}) {clause} NULL"  # noqa: S608
            )
        self._run(f"DELETE FROM {self._rows} AS s {clause} NOT NULL")  # noqa: S608 - quoted names

    def _close(self, end: str) -> None:
        """Set the end of the target's rows that have none and that a close names."""
        clause = f"FROM {self._rows} s WHERE {self._same_one} AND {self.does(CLOSES, 's.')}"
        self._run(
            f"UPDATE {self._target} AS t SET {self.quoted(end)} = (SELECT {self._closed_at(end)} {clause}) "  # noqa: S608 - names are quoted
            f"WHERE t.{self.quoted(end)} IS NULL AND EXISTS (SELECT 1 {clause})"
        )

    def _staged(self, name: str) -> str:
        """A column of the row s, as the target takes it."""
        return f"s.{self.quoted(name)}"

    def _closed_at(self, end: str) -> str:
        """The end of the row s, which is not before the row t began: a source's clock may be set back."""
        at = self._staged(end)
        if self._begin is None:
            return at
        begin = f"t.{self.quoted(self._begin)}"
        return f"CASE WHEN {at} < {begin} THEN {begin} ELSE {at} END"

    def _delete(self) -> None:
        """Remove the keys of deletes from the target."""
        keys = self.listed(self._key)
        gone = f"SELECT {keys} FROM {self._rows} WHERE {self.gone()}"  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._own_rows} WHERE ({keys}) IN ({gone})")  # noqa: S608 - names are quoted

    def _drop_deletes(self) -> None:
        """Leave the writes."""
        self._run(f"DELETE FROM {self._rows} WHERE {self.ended()}")  # noqa: S608 - names are quoted

    def _affected(self, statement: str) -> int | None:
        """Run a statement: the rows that it stored; None = the database does not report them."""
        assert isinstance(self._session, WriteSession)
        return self._session.stored(statement)

    def _write(self, *, update: bool) -> int | None:
        """Insert the rows; those whose keys are there are updated, or skipped.

        Returns how many were stored; None = not known.
        """
        action = "DO NOTHING"
        if update and self.others:
            sets = ", ".join(
                f"{self.quoted(name)} = excluded.{self.quoted(name)}" for name in self.others
            )
            action = f"DO UPDATE SET {sets}"
        # WHERE: without it SQLite takes ON for the beginning of a join
        return self._affected(
            f"{self.insert} INTO {self._target} ({self.listed(self._names)}) "  # noqa: S608 - names are quoted
            f"SELECT {self.listed(self._names, 's.')} FROM {self._rows} AS s WHERE TRUE "
            f"ON CONFLICT ({self.listed(self._key)}) {action}"
        )

    @property
    def _there(self) -> str:
        """The condition that the target has the key of the row s."""
        return f"EXISTS (SELECT 1 FROM {self._own_rows} t WHERE {self._same})"  # noqa: S608 - names are quoted

    def _check_deleted(self) -> None:
        query = f"SELECT COUNT(*) FROM {self._rows} s WHERE {self.gone('s.')} AND {self._there}"  # noqa: S608 - names are quoted
        ((kept_rows,),) = self._run(query)
        check_gone(self._label, int(kept_rows))

    def _check_written(self, stored: int | None) -> None:
        if stored is None:
            self._check_keys()
            return
        ((staged,),) = self._run(f"SELECT COUNT(*) FROM {self._rows}")  # noqa: S608 - a quoted name
        if stored != staged and (self._mode == "skipExisting" or not self.others):
            self._check_keys()
        else:
            check_stored(self._label, int(staged), stored)

    def _check_keys(self) -> None:
        """Check that the table has the key of each row: of those that were there, a database reports nothing."""
        condition = f" WHERE NOT {self.ended('s.')}" if self._mode == "apply" else ""
        query = f"SELECT COUNT(*), SUM(CASE WHEN {self._there} THEN 1 ELSE 0 END) FROM {self._rows} s{condition}"  # noqa: S608 - names are quoted
        ((sent, stored),) = self._run(query)
        check_stored(self._label, int(sent), int(stored or 0))

    def _refuse_unknown_operations(self) -> None:
        operations = (*WRITES, *OPENS, *DELETES, *CLOSES)
        unknown = self.limited(
            f"SELECT {self._operation} FROM {self._rows} WHERE {self._operation} IS NULL "  # noqa: S608 - names are quoted
            f"OR LOWER({self._operation}) NOT IN ({_texts(operations)})"
        )
        for (operation,) in self._run(unknown):
            raise BatchRefusedError(
                f"a row has {operation!r} in {OPERATION}; it takes one of {', '.join(operations)}"
            )

    def _refuse_null_keys(self) -> None:
        empty = " OR ".join(f"{self.quoted(name)} IS NULL" for name in self._key)
        if self._run(self.limited(f"SELECT 1 FROM {self._rows} WHERE {empty}")):  # noqa: S608 - names are quoted
            raise BatchRefusedError(
                f"a row has NULL in its key ({', '.join(self._key)}), which is equal to no other "
                "value: fill it, or leave such rows out"
            )

    def _refuse_twins(self) -> None:
        keys = self.listed(self._key)
        twice = self.limited(
            f"SELECT {keys}, COUNT(*) FROM {self._rows} GROUP BY {keys} HAVING COUNT(*) > 1"  # noqa: S608 - names are quoted
        )
        for *key, count in self._run(twice):
            key_text = ", ".join(repr(part) if isinstance(part, str) else str(part) for part in key)
            raise TargetError(
                f"{count} rows have the key ({', '.join(self._key)}) = ({key_text}), and one of them can be written. "
                "Keep one row per key, or add columns to 'keyColumns'"
            )


class StandardMerge(Merge):
    """For databases with standard SQL's MERGE, also those that compare no rows of several values."""

    def _delete(self) -> None:
        gone = f"SELECT 1 FROM {self._rows} s WHERE {self._same} AND {self.gone('s.')}"  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._own_rows} t WHERE EXISTS ({gone})")  # noqa: S608 - names are quoted

    def _write(self, *, update: bool) -> int | None:
        sets = ", ".join(f"{self.quoted(name)} = s.{self.quoted(name)}" for name in self.others)
        self._run(
            f"MERGE INTO {self._target} t USING {self._rows} s ON {self._same} "  # noqa: S608 - names are quoted
            f"{f'WHEN MATCHED THEN UPDATE SET {sets} ' if update and sets else ''}"
            f"WHEN NOT MATCHED THEN INSERT ({self.listed(self._names)}) VALUES ({self.listed(self._names, 's.')})"
        )
        return None


def _texts(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
