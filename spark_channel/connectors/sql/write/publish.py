"""Prepares a table, merges staged rows into it as `writeMode` says, and holds it to have stored all of them."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from spark_channel.connectors.base.contract import Receipt
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
from spark_channel.connectors.sql.catalog import Table, TargetTable, declared_columns, listed
from spark_channel.connectors.sql.dialect import Dialect, WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import BoundSession, WriteSession
from spark_channel.connectors.sql.statements import quoted_text
from spark_channel.errors import BatchRefusedError, CommitError, TargetError

__all__ = [
    "PLACE",
    "Merge",
    "StandardMerge",
    "check_gone",
    "check_planned",
    "check_receipt",
    "check_stored",
    "dropped",
    "has_triggers",
    "holds_unique",
    "insert_words",
    "is_ready",
    "make_ready",
    "reached_by_delete",
    "refuse_two_receipts",
]


# Prepares a table, and publishes its rows in one transaction.


def refuse_two_receipts(receipts: Sequence[Receipt]) -> None:
    """Check that each task has one receipt.

    Raises:
        CommitError: one has two, so that nothing says which rows are meant.
    """
    counts = Counter(receipt.task for receipt in receipts)
    twice = [task for task, count in counts.items() if count > 1]
    if twice:
        raise CommitError(
            f"two receipts of task {min(twice)}: nothing was published; run the job again"
        )


def reached_by_delete(label: str, key: str, other: str, rule: str) -> TargetError:
    """The error that to delete all rows of a table would change another one, by its foreign key."""
    does = "delete" if rule == "CASCADE" else "change"
    return TargetError(
        f"all rows of {label} are to be replaced, and foreign key {key!r} of {other}, which has rows, is ON DELETE "
        f"{rule}: the server would {does} rows of {other}, too. Drop the foreign key and add it after the run, or "
        "update the rows by their key: writeMode=upsert, or mode incremental with primary_key"
    )


def check_receipt(receipt: Receipt, staged: int) -> None:
    """Check that a task staged as many rows as its receipt says.

    Raises:
        CommitError: it has not.
    """
    if staged != receipt.rows:
        raise CommitError(
            f"{staged} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}: "
            "nothing was published; run the job again"
        )


def make_ready(
    session: BoundSession,
    dialect: WriteDialect,
    target: TargetTable,
    options: SqlWriteOptions,
    *,
    overwrite: bool,
) -> bool:
    """Create the table, or empty it, or hold it to be as the plan found it. Whether it was created.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    if is_ready(session, dialect, target, options, overwrite=overwrite):
        return False
    assert target.create is not None
    session.execute(target.create)
    return True


def is_ready(
    session: BoundSession,
    dialect: WriteDialect,
    target: TargetTable,
    options: SqlWriteOptions,
    *,
    overwrite: bool,
) -> bool:
    """As `make_ready`, but leaves a table to the caller that is to be made: False."""
    table, stays = dialect.find_table(session, target.sql), dialect.ddl_commits
    if table is not None and overwrite and not options.truncate and not stays:
        session.execute(f"DROP TABLE {target.sql}")
        table = None
    if table is None and target.create is not None and not stays:
        return False
    check_planned(dialect, target, table)
    if overwrite:
        dialect.check_alone(session, target.schema, target.name)
        session.execute(dialect.emptied(target.own_rows, options))
    return True


def check_planned(dialect: WriteDialect, target: TargetTable, table: Table | None) -> None:
    """Check that the table is as the plan found it, or would have made it.

    Raises:
        TargetError: another job has dropped, altered or made it since the plan was made.
    """
    if table is None:
        raise dropped(target)
    again = "Nothing was written to it; run the job again"
    columns = (
        declared_columns(table) if target.create is None else dialect.columns_as_created(table)
    )
    found, planned = dict(columns), dict(target.declared)
    changed = found.keys() != planned.keys() or any(
        not dialect.is_same_type(found[name], declared) for name, declared in planned.items()
    )
    if changed and target.create is None:
        raise TargetError(
            f"table {target.label!r} was altered while its rows were written: "
            f"it had {listed(target.declared)} when the job began, and has {listed(columns)} now. {again}"
        )
    again += ", and its rows are held against the table that is there now"
    if changed:
        raise TargetError(
            f"another job created table {target.label!r} while this one wrote its rows, with other columns: "
            f"it has {listed(columns)}, and this job would have created {listed(target.declared)}. {again}"
        )
    if target.key and not holds_unique(dialect, table, target.key):
        raise TargetError(
            f"another job created or altered table {target.label!r} while this one wrote its rows, "
            f"and it does not hold ({', '.join(target.key)}) unique, as this job needs. {again}"
        )


def dropped(target: TargetTable) -> TargetError:
    return TargetError(
        f"table {target.label!r} was dropped while its rows were written. Nothing was written; run the job again"
    )


def holds_unique(dialect: WriteDialect, table: Table, key: Sequence[str]) -> bool:
    """Whether the table holds `key` unique, whose columns are spelled as the table's."""
    names = [column.name for column in table.columns]
    return any(
        {dialect.same_name(part, names) or part for part in held} == set(key) for held in table.held
    )


# Merges staged rows into a table by `writeMode`, inside the caller's transaction.


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
        return " AND ".join(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in key)

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
        return next((each for each in self._names if each.lower() in ENDS), None)

    def does(self, words: Sequence[str], prefix: str = "") -> str:
        """The condition that a row's operation is one of `words`."""
        return f"LOWER({prefix}{self._operation}) IN ({_texts(words)})"

    def ended(self, prefix: str = "") -> str:
        """The condition that a row is not written itself: a delete or a close."""
        return self.does((*DELETES, *CLOSES), prefix)

    @property
    def _same_one(self) -> str:
        """As `_same`, for all versions of a row."""
        return self._same_by([each for each in self._key if each.lower() != BEGIN])

    @property
    def _begin(self) -> str | None:
        """The key column that distinguishes the versions of a row."""
        return next((each for each in self._key if each.lower() == BEGIN), None)

    def _close_all(self, end: str) -> None:
        """Set the end of all rows of the target that have none, if a row says so."""
        said = self.does(CLOSE_ALL)
        if not self._run(self.limited(f"SELECT 1 FROM {self._rows} WHERE {said}")):  # noqa: S608 - quoted names
            return
        value = f"SELECT MAX({self._staged(end)}) FROM {self._rows} s WHERE {said}"  # noqa: S608 - quoted names
        self._run(
            f"UPDATE {self._own_rows} SET {self.quoted(end)} = ({value}) WHERE {self.quoted(end)} IS NULL"  # noqa: S608 - names are quoted
        )
        if self._begin is not None:
            # As in `_closed_at`, apart: MySQL reads a temporary table once in a statement.
            ended, begin = self.quoted(end), self.quoted(self._begin)
            self._run(f"UPDATE {self._own_rows} SET {ended} = {begin} WHERE {ended} < {begin}")  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._rows} WHERE {said}")  # noqa: S608 - quoted names

    def _leave_open(self, end: str) -> None:
        """Let an open of a key that has a row without an end write that row, or remove the open if it has an end."""
        is_open = f"FROM {self._own_rows} t WHERE {self._same_one} AND t.{self.quoted(end)} IS NULL"
        said = f"WHERE {self.does(OPENS, 's.')} AND EXISTS (SELECT 1 {is_open}) AND s.{self.quoted(end)} IS"
        if self._begin is not None:
            begin = self.quoted(self._begin)
            self._run(
                f"UPDATE {self._rows} AS s SET {begin} = (SELECT MAX(t.{begin}) {is_open}) {said} NULL"  # noqa: S608
            )
        self._run(f"DELETE FROM {self._rows} AS s {said} NOT NULL")  # noqa: S608 - quoted names

    def _close(self, end: str) -> None:
        """Set the end of the target's rows that have none and that a close names."""
        said = f"FROM {self._rows} s WHERE {self._same_one} AND {self.does(CLOSES, 's.')}"
        self._run(
            f"UPDATE {self._target} AS t SET {self.quoted(end)} = (SELECT {self._closed_at(end)} {said}) "  # noqa: S608 - names are quoted
            f"WHERE t.{self.quoted(end)} IS NULL AND EXISTS (SELECT 1 {said})"
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
        ((kept,),) = self._run(query)
        check_gone(self._label, int(kept))

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
        kept = f" WHERE NOT {self.ended('s.')}" if self._mode == "apply" else ""
        query = f"SELECT COUNT(*), SUM(CASE WHEN {self._there} THEN 1 ELSE 0 END) FROM {self._rows} s{kept}"  # noqa: S608 - names are quoted
        ((sent, stored),) = self._run(query)
        check_stored(self._label, int(sent), int(stored or 0))

    def _refuse_unknown_operations(self) -> None:
        known = (*WRITES, *OPENS, *DELETES, *CLOSES)
        unknown = self.limited(
            f"SELECT {self._operation} FROM {self._rows} WHERE {self._operation} IS NULL "  # noqa: S608 - names are quoted
            f"OR LOWER({self._operation}) NOT IN ({_texts(known)})"
        )
        for (found,) in self._run(unknown):
            raise BatchRefusedError(
                f"a row has {found!r} in {OPERATION}; it takes one of {', '.join(known)}"
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
            shown = ", ".join(repr(part) if isinstance(part, str) else str(part) for part in key)
            raise TargetError(
                f"{count} rows have the key ({', '.join(self._key)}) = ({shown}), and one of them can be written. "
                "Keep one row per key, or add columns to 'keyColumns'"
            )


class StandardMerge(Merge):
    """For databases with standard SQL's MERGE, also those that compare no rows of several values."""

    def _delete(self) -> None:
        gone = f"SELECT 1 FROM {self._rows} s WHERE {self._same} AND {self.gone('s.')}"  # noqa: S608 - names are quoted
        self._run(f"DELETE FROM {self._own_rows} t WHERE EXISTS ({gone})")  # noqa: S608 - names are quoted

    def _write(self, *, update: bool) -> int | None:
        sets = ", ".join(f"{self.quoted(each)} = s.{self.quoted(each)}" for each in self.others)
        self._run(
            f"MERGE INTO {self._target} t USING {self._rows} s ON {self._same} "  # noqa: S608 - names are quoted
            f"{f'WHEN MATCHED THEN UPDATE SET {sets} ' if update and sets else ''}"
            f"WHEN NOT MATCHED THEN INSERT ({self.listed(self._names)}) VALUES ({self.listed(self._names, 's.')})"
        )
        return None


def _texts(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


# Some tables skip rows, and report success: rows are counted.


def check_stored(table: str, sent: int, stored: int) -> None:
    """Raise unless `table` has stored all rows of a statement, whose transaction the caller then rolls back.

    Raises:
        BatchRefusedError: it has stored fewer, or more.
    """
    if stored == sent:
        return
    raise BatchRefusedError(
        f"table {table!r} stored {stored} of {sent} rows and reported success: a trigger, a rule or a conflict clause "
        "of the table skips rows, or puts them elsewhere. The transaction is rolled back. Leave these rows out of the "
        "source, change the trigger or rule, or name the table that stores them in 'dbtable'; with commit=task, "
        "'maxDirtyRows' counts such rows as refused"
    )


def check_gone(table: str, kept: int) -> None:
    """Raise unless `table` has removed all rows that a change feed deletes.

    Raises:
        BatchRefusedError: it has kept some.
    """
    if kept:
        raise BatchRefusedError(
            f"table {table!r} kept {kept} rows that a change feed deletes, and reported success: a trigger or a rule "
            "of the table keeps them. The transaction is rolled back. Change the trigger or rule"
        )


# What makes a table of SQLite skip or replace rows of an INSERT, and report success.


Run = Callable[[str], Sequence[tuple[Any, ...]]]

_CLAUSE = re.compile(r"\bON\s+CONFLICT\s+(IGNORE|REPLACE)\b", re.IGNORECASE)


def has_triggers(run: Run, table: str) -> bool:
    """Whether a trigger, which may skip rows by RAISE(IGNORE), belongs to the table."""
    return bool(_statements(run, table, "trigger"))


def insert_words(run: Run, table: str) -> str:
    """How an INSERT begins: a conflict clause of the table, which skips or replaces rows, does not hold for it.

    Only where there is one: the words hold for the statements of triggers, too.
    """
    clause = any(_CLAUSE.search(str(create)) for (create,) in _statements(run, table, "table"))
    return "INSERT OR ABORT" if clause else "INSERT"


def _statements(run: Run, table: str, kind: str) -> Sequence[tuple[Any, ...]]:
    """The statements that made the table, or its triggers."""
    name = quoted_text(table)  # sqlglot's generator takes a tenth of a second to load
    return run(
        f"SELECT sql FROM main.sqlite_master WHERE type = '{kind}' AND lower(tbl_name) = lower({name})"  # noqa: S608 - texts are quoted
    )
