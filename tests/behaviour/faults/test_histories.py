"""Random histories of five tables: whatever changes or is killed, the target holds what the contract says."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from spark_channel.replication.config import load_replication
from spark_channel.replication.status import reset_tables
from tests.replication.histories import KEY, Held, Snapshot, Stream, World, after

TABLES = [f"t{number}" for number in range(5)]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
POLICIES = ["evolve", "evolve", "freeze", "discard_value", "discard_row"]
MODES = st.sampled_from(
    [
        Stream(),
        Stream(),
        Stream(where=2),
        Stream("incremental", "id"),
        Stream("incremental", "id", where=2),
        Stream("incremental", "k", key=True),
        Stream("incremental", "k"),
    ]
)
MASKS = st.sampled_from(["sha256", "null", "drop", "partial(2)", "hmac(${env:PII_KEY})"])
POLICY = st.sampled_from(POLICIES)
STREAMS = st.builds(
    lambda mode, tables, columns, data_type, mask, load: replace(
        mode,
        tables=tables,
        columns=columns,
        data_type=data_type,
        masks=(("email", mask),) if mask else (),
        load_columns=load,
    ),
    MODES,
    st.sampled_from(["evolve"] * 6 + POLICIES),
    POLICY,
    POLICY,
    st.none() | st.none() | MASKS,
    st.sampled_from([False, False, True]),
)
TABLE = st.sampled_from(["t0", "t0", "t0", "t1", "t1", *TABLES])  # a history of some tables is deep
SELECTED = st.lists(TABLE, min_size=1, max_size=2, unique=True)
NAMES = st.sampled_from(["a", "A", "email", "b c"])
TYPES = st.sampled_from(["INTEGER", "TEXT", "REAL"])
VALUE = st.sampled_from([None, 0, 7, 12])


CHANGE = st.one_of(
    st.tuples(st.just("_insert"), st.integers(1, 3), VALUE),
    st.tuples(st.just("_update"), st.integers(0, 9), st.booleans(), VALUE),
    st.tuples(st.just("_delete"), st.integers(0, 9), st.booleans()),
    st.tuples(
        st.just("_change_columns"),
        st.sampled_from(["add", "add", "drop", "rename"]),
        NAMES,
        NAMES,
        TYPES,
        VALUE,
    ),
    st.tuples(
        st.just("_disturb"),
        st.sampled_from(["drop", "again", "file", "file", "target", "reset", "swap", "key"]),
        STREAMS,
    ),
)


class Histories(RuleBasedStateMachine):
    """One source, one target. `held` has for each table what it may be now: more than one thing after a kill."""

    world: World

    @initialize(streams=st.lists(STREAMS, min_size=5, max_size=5))
    def begin(self, streams: list[Stream]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="histories-", dir=MEMORY))
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("PII_KEY", KEY)
        self.world = self._made(dict(zip(TABLES, streams, strict=True)))
        self.numbers = itertools.count(1)
        self.held = {name: [Held()] for name in TABLES}
        for name in TABLES:
            self._create(name)
            self._insert(name, 2, 7)
        self._run(TABLES, False)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    def _made(self, streams: dict[str, Stream]) -> World:
        return World(self.folder, streams)

    # --- the source

    def _create(self, name: str) -> None:
        self.world.sql(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY, k INTEGER, a TEXT)')

    def _insert(self, name: str, count: int, value: int | None) -> None:
        found = self.world.snapshot(name)
        if found is None:
            return
        for _ in range(count):
            number = next(self.numbers)
            k = None if value == 12 else number // 2
            given: dict[str, object] = {_key(found): number, "k": k}
            for column, kind in found.columns.items():
                if column not in given:
                    given[column] = _value(kind, value, number)
            names = ", ".join(f'"{each}"' for each in given)
            marks = ", ".join("?" for _ in given)
            self.world.sql(f'INSERT INTO "{name}" ({names}) VALUES ({marks})', *given.values())

    def _update(self, name: str, which: int, bumps: bool, value: int | None) -> None:
        found = self.world.snapshot(name)
        if found is None or not found.rows:
            return
        row = found.rows[which % len(found.rows)]
        for column, kind in found.columns.items():
            if column not in ("id", "nr", "k"):
                new = _value(kind, value, which)
                self._set(name, column, new, found, row)
        if bumps:
            self._set(name, "k", next(self.numbers), found, row)

    def _delete(self, name: str, which: int, all_rows: bool) -> None:
        found = self.world.snapshot(name)
        if found is not None and found.rows:
            row = found.rows[which % len(found.rows)]
            key = _key(found)
            self.world.sql(
                f'DELETE FROM "{name}" WHERE {key} >= ? AND {key} <= ?',
                row[key],
                10**9 if all_rows else row[key],
            )

    def _change_columns(
        self, name: str, what: str, column: str, new: str, kind: str, value: int | None
    ) -> None:
        if what == "add":
            self._add_or_change_column(name, column, kind, value)
        elif what == "drop":
            self._drop_column(name, column)
        else:
            self._rename_column(name, column, new)

    def _add_or_change_column(self, name: str, column: str, kind: str, value: int | None) -> None:
        found = self.world.snapshot(name)
        if found is None:
            return
        self._drop(name, found, column)
        self.world.sql(f'ALTER TABLE "{name}" ADD COLUMN "{column}" {kind}')
        for number, row in enumerate(found.rows):
            new = _value(kind, value, number)
            self._set(name, column, new, found, row)

    def _set(
        self, name: str, column: str, value: object, found: Snapshot, row: Mapping[str, Any]
    ) -> None:
        key = _key(found)
        self.world.sql(f'UPDATE "{name}" SET "{column}" = ? WHERE {key} = ?', value, row[key])

    def _drop_column(self, name: str, column: str) -> None:
        found = self.world.snapshot(name)
        if found is not None:
            self._drop(name, found, column)

    def _drop(self, name: str, found: Snapshot, column: str) -> None:
        for each in found.columns:
            if each.lower() == column.lower():
                self.world.sql(f'ALTER TABLE "{name}" DROP COLUMN "{each}"')

    def _rename_column(self, name: str, column: str, new: str) -> None:
        found = self.world.snapshot(name)
        if found is not None and column in found.columns and column != new:
            if column.lower() != new.lower():
                self._drop(name, found, new)
            self.world.sql(f'ALTER TABLE "{name}" RENAME COLUMN "{column}" TO "{new}"')

    def _disturb(self, name: str, what: str, stream: Stream) -> None:
        if what in ("drop", "again"):
            self._drop_table(name, what == "again")
        elif what == "file":
            self._change_the_file(name, stream)
        elif what == "target":
            self._drop_in_the_target(name)
        elif what == "swap":
            self._swap(name, "t0" if name != "t0" else "t1")
        elif what == "key":
            self._rename_key(name)
        else:
            self._reset(name)

    def _drop_table(self, name: str, again: bool) -> None:
        self.world.sql(f'DROP TABLE IF EXISTS "{name}"')
        if again:
            self._create(name)

    def _swap(self, name: str, other: str) -> None:
        """Exchange the names of two tables, of which one or both may not be there."""
        for old, new in ((name, "spare"), (other, name), ("spare", other)):
            if self.world.snapshot(old) is not None:
                self.world.sql(f'ALTER TABLE "{old}" RENAME TO "{new}"')

    def _rename_key(self, name: str) -> None:
        """Rename the key, or rename it back."""
        found = self.world.snapshot(name)
        if found is not None:
            old, new = ("id", "nr") if "id" in found.columns else ("nr", "id")
            self.world.sql(f'ALTER TABLE "{name}" RENAME COLUMN {old} TO {new}')

    # --- the file and the target

    def _change_the_file(self, name: str, stream: Stream) -> None:
        # Columns of a run's own do not come and go: the model does not follow them.
        self.world.streams[name] = replace(
            stream, load_columns=self.world.streams[name].load_columns
        )

    def _drop_in_the_target(self, name: str) -> None:
        self.world.target(f'DROP TABLE IF EXISTS "{name}"')
        self.held[name] = [
            replace(each, columns=None, rows=(), keyed=False) for each in self.held[name]
        ]

    def _reset(self, name: str) -> None:
        if self.world.snapshot(name) is None or self.world.streams[name].mode == "full":
            return
        reset_tables(load_replication(self.world.file()), [self.world.stream(name)])
        key = self.world.streams[name].definition
        self.held[name] = [
            replace(each, at={**each.at, key: None} if key in each.at else each.at)
            for each in self.held[name]
        ]

    # --- runs

    @rule(
        select=SELECTED,
        changes=st.lists(CHANGE, min_size=1, max_size=4),
        how=st.sampled_from(
            ["whole", "whole", "whole", "refresh", "killed", "killed", "overtaken"]
        ),
        at=st.integers(1, 150),
        later=st.tuples(st.integers(0, 2), VALUE),
    )
    def changes_and_a_run(
        self,
        select: list[str],
        changes: list[tuple[Any, ...]],
        how: str,
        at: int,
        later: tuple[int, int | None],
    ) -> None:
        self._change_and_run(select, changes, how, at, later)

    def _change_and_run(
        self,
        select: list[str],
        changes: list[tuple[Any, ...]],
        how: str,
        at: int,
        later: tuple[int, int | None],
    ) -> None:
        for number, (change, *given) in enumerate(changes):
            getattr(self, change)(select[number % len(select)], *given)
        if how == "killed":
            self._run_that_is_killed(select, at)
        elif how == "overtaken":
            self._run_that_is_overtaken(select, at, select[0], later[1], later[0])
        else:
            self._run(select, how == "refresh")

    def _run(self, select: list[str], refresh: bool) -> None:
        seen = {name: self.world.snapshot(name) for name in select}
        said = self.world.run(select, refresh=refresh)
        for name in select:
            self._judge(name, self._next(name, seen[name], refresh), said[name])

    def _run_that_is_killed(self, select: list[str], at: int) -> None:
        seen = {name: self.world.snapshot(name) for name in select}
        self.world.run_killed(select, at)
        for name in select:
            may = [("killed", each) for each in self.held[name]]
            for state, each in self._next(name, seen[name], refresh=False):
                may.append(("killed", each))
                may += [
                    ("killed", half)
                    for old in self.held[name]
                    for half in self.world.half_evolved(old, each)
                ]
                if state == "done":  # a record may be forgotten, and the rows not written yet
                    may += [
                        ("killed", replace(old, at=dict.fromkeys(old.at)))
                        for old in self.held[name]
                    ]
            self._judge(name, may, ("killed", ""))

    def _run_that_is_overtaken(
        self, select: list[str], at: int, changed: str, value: int | None, count: int
    ) -> None:
        """Another run comes between two of its statements, and sees rows that this one may not have seen."""
        before = {name: self.world.snapshot(name) for name in select}
        runs = self.world.run_overtaken(select, at, lambda: self._insert(changed, count, value))
        inner = len(runs) > 1
        if not inner:
            self._insert(changed, count, value)
        now = {name: self.world.snapshot(name) for name in select}
        for name in select:
            if not inner:
                now[name] = before[name]
            may = []
            for seen in itertools.product((before[name], now[name], None), repeat=2):
                may += self._after_two(name, seen)
            if inner:
                last = [("two", each) for _, each in self._next(name, now[name], refresh=False)]
                last += self._after_two(name, (before[name], now[name]))
                last += self._after_two(name, (now[name], now[name]))
                last += (
                    self._after_two(name, (now[name], before[name]))
                    if self.world.streams[name].mode != "full"
                    else []
                )
                if runs[0][name][0] in ("done", "unchanged"):
                    may = last
            said = "; ".join(each[name][1] for each in runs)
            self._judge(name, [("two", each) for _, each in may], ("two", said))

    def _after_two(self, name: str, seen: Sequence[Snapshot | None]) -> list[tuple[str, Held]]:
        found = [("two", each) for each in self.held[name]]
        for each in seen:
            found = [
                made
                for _, held in found
                for made in (
                    [("two", held)]
                    if each is None
                    else after(
                        held, self.world.streams[name], each, self.world.wider, refresh=False
                    )
                )
            ]
        return found

    def _next(self, name: str, seen: Snapshot | None, refresh: bool) -> list[tuple[str, Held]]:
        if seen is None:
            return [("parked", each) for each in self.held[name]]
        stream = self.world.streams[name]
        return [
            made
            for each in self.held[name]
            for made in after(each, stream, seen, self.world.wider, refresh=refresh)
        ]

    def _judge(self, name: str, may: Sequence[tuple[str, Held]], said: tuple[str, str]) -> None:
        """Check that the target is in one of the states that it `may` have, and drop the other states."""
        columns, rows = self.world.arrived(name)
        fits = []
        for state, held in may:
            same = columns == (None if held.columns is None else set(held.columns))
            if state == said[0] and same and list(held.rows) == rows and held not in fits:
                fits.append(held)
        assert fits, (
            f"{name}: {self.world.streams[name]}\nsaid {said}\nhas {columns}\n{rows}\nmay be\n"
            + "\n".join(f"{state}: {held}" for state, held in may)
            + f"\nsource: {self.world.snapshot(name)}"
        )
        self.held[name] = fits


def _key(found: Snapshot) -> str:
    return "id" if "id" in found.columns else "nr"


def _value(kind: str, value: int | None, number: int) -> object:
    if value is None:
        return None
    if kind == "TEXT":
        return str(value) if value == 12 else f"v{number}@x"
    return value + 0.5 if kind == "REAL" and value != 12 else value


_SETTINGS = settings(
    deadline=None, suppress_health_check=list(HealthCheck), stateful_step_count=6, print_blob=True
)


class _Quick(Histories):
    pass


class _Long(Histories):
    pass


TestHistories = _Quick.TestCase
TestHistories.settings = settings(_SETTINGS, max_examples=15)
TestLongHistories = pytest.mark.soak(_Long.TestCase)
TestLongHistories.settings = settings(_SETTINGS, max_examples=10_000)
