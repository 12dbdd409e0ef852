"""A table whose columns change while a tunnel copies it by its database's log: source and target are equal in the end.

Each change of a row has its own number, `n`, so that an event that is lost or doubled is seen.
"""

import json
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.errors import SchemaError
from spark_channel.tunnel import Delivery, Tunnel
from tests.tunnel.children import Child

__all__ = ["Source", "copy_much_while_columns_change", "copy_while_columns_change"]

BIG = 1 << 40


class CrashError(Exception):
    """The copier dies here."""


@dataclass
class Source:
    """`run` takes statements in the source's database, where the target is, too; `log` are the options of its log."""

    run: Callable[[str], Any]
    login: Mapping[str, str]
    log: Mapping[str, str]
    retype: str = ""
    """The statement that gives column {column} of the source the type {type}."""
    numbers: str = ""
    """A table expression with the numbers from 1 to {count}, as column i."""
    publish: str = "SELECT 1"
    """What makes the table one that can be followed."""


@dataclass
class Evolving:
    """Writes rows of a source whose columns it changes, from a seed."""

    source: Source
    chance: random.Random
    columns: dict[str, str] = field(
        default_factory=lambda: {"item": "VARCHAR(20)", "n": "INT", "old": "INT"}
    )
    number: int = 0
    key: int = 0
    added: int = 0
    begun: int = 0
    """Numbers up to this one are of existing rows, which may arrive without an event."""

    def create(self, rows: int) -> None:
        declared = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        for table in ("source", "target"):
            self.source.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, {declared})")
        numbers = self.source.numbers.format(count=rows)
        self.source.run(f"INSERT INTO source SELECT i, 'base', i, i FROM {numbers}")
        self.source.run(self.source.publish)
        self.number = self.begun = self.key = rows

    def change(self, count: int) -> None:
        """`count` changes, in transactions of a few."""
        while count > 0:
            size = min(count, self.chance.randrange(1, 6))
            undone = self.chance.random() < 0.1
            before = self.number
            statements = [self._one() for _ in range(size)]
            self.source.run("; ".join(["BEGIN", *statements, "ROLLBACK" if undone else "COMMIT"]))
            if undone:
                self.number = before
            count -= size

    def _one(self) -> str:
        what, key = self.chance.random(), self.chance.randrange(1, self.key + 1)
        if what < 0.15:
            return f"DELETE FROM source WHERE id = {key}"
        self.number += 1
        value = self.number + (BIG if self.columns["n"] == "BIGINT" else 0)
        if what < 0.5:
            self.key += 1
            names = [name for name in self.columns if name != "n"]
            texts = [
                f"'{name} {self.number}'" if "CHAR" in self.columns[name] else str(self.number)
                for name in names
            ]
            return f"INSERT INTO source (id, n, {', '.join(names)}) VALUES ({self.key}, {value}, {', '.join(texts)})"
        if what < 0.6:
            self.key += 1
            return f"UPDATE source SET id = {self.key}, n = {value} WHERE id = {key}"
        name = self.chance.choice([name for name in self.columns if name != "n"])
        text = f"'{self.number}'" if "CHAR" in self.columns[name] else str(self.number)
        return f"UPDATE source SET n = {value}, {name} = {text} WHERE id = {key}"

    def add(self) -> None:
        self.added += 1
        name, kind = f"new_{self.added}", self.chance.choice(["INT", "VARCHAR(40)", "BIGINT"])
        self.source.run(f"ALTER TABLE source ADD COLUMN {name} {kind}")
        self.columns[name] = kind

    def widen(self, name: str, kind: str = "BIGINT") -> None:
        self.source.run(self.source.retype.format(column=name, type=kind))
        self.columns[name] = kind

    def drop(self, name: str) -> None:
        self.source.run(f"ALTER TABLE source DROP COLUMN {name}")
        del self.columns[name]


class Copy:
    """A tunnel of `source` into the tables `target`, by key, and `events`, which gets each event once."""

    def __init__(self, source: Source, home: Path, rows: int = 40) -> None:
        self.source = source
        self._options = {
            **source.login,
            **source.log,
            "dbtable": "source",
            "onSchemaChange": "evolve",
            "onError": "stop",
            "maxRowsPerTrigger": str(rows),
        }
        self._store = str(home / "tunnels.db")
        tunnel = Tunnel("copy", self._options, store=self._store)
        if not tunnel.exists():
            tunnel.create()
        self.deliveries = self.restarts = self.crashes = 0

    def run(self, steps: Iterator[Callable[[], object]], crashes: Sequence[int] = ()) -> None:
        """Copy until all steps are taken, one after each delivery, and their changes have arrived.

        The copier dies in each delivery of `crashes`, when a part of what it writes is written.
        """
        while True:
            try:
                Tunnel("copy", self._options, store=self._store).consume(
                    lambda delivery: self._take(delivery, steps, crashes), threads=1, drained=True
                )
            except SchemaError as error:
                if "Start it again" not in str(error):
                    raise
                self.restarts += 1
                continue
            except CrashError:
                self.crashes += 1
                continue
            step = next(steps, None)
            if step is None:
                return
            step()

    def _take(
        self, delivery: Delivery, steps: Iterator[Callable[[], object]], crashes: Sequence[int]
    ) -> None:
        self.deliveries += 1
        batches = [
            batch.drop_columns(["_commit_ts"]) for batch in delivery.batches if batch.num_rows
        ]
        step = next(steps, None)
        if step is not None:
            step()
        if batches:
            sys.stdout.write(f"{sum(batch.num_rows for batch in batches)}\n")
            sys.stdout.flush()
            rows = pa.Table.from_batches(batches)
            self._write(delivery, "events", rows, writemode="insert")
            if self.deliveries in crashes:
                raise CrashError
            self._write(
                delivery, "target", rows.drop_columns(["_lsn"]), writemode="apply", keycolumns="id"
            )
            if self.deliveries + 1 in crashes:
                raise CrashError

    def _write(self, delivery: Delivery, table: str, rows: pa.Table, **options: str) -> None:
        writer, _ = load_writer(
            {**self.source.login, "dbtable": table, "onschemachange": "evolve", **options}
        )
        stream = (f"copy/{delivery.channel}/{table}", delivery.sequence)
        plan = writer.prepare(WriteContext(uuid.uuid4().hex, stream=stream), rows.schema)
        task = writer.open(plan, 0, random.randrange(1, 1 << 30))
        for batch in rows.to_batches():
            task.write(batch)
        writer.commit(plan, [task.close()])

    def check(self, made: Evolving) -> None:
        """Source and target are equal by key and value, in the source's columns; no event is lost, none is twice."""
        names = ["id", *made.columns]
        source, target = (
            self._rows(table).select(names).sort_by("id") for table in ("source", "target")
        )
        assert source.num_rows > 100
        assert target.to_pylist() == source.to_pylist()
        assert target.schema.field("n").type == pa.int64()
        events = Counter(
            row["n"] & (BIG - 1)
            for row in self._rows("events").to_pylist()
            if row["_op"] in ("insert", "update")
        )
        doubled = {
            number: count for number, count in events.items() if count > 1 and number > made.begun
        }
        assert doubled == {}
        kept = {number & (BIG - 1) for number in source["n"].to_pylist()}
        assert {number for number in kept if number > made.begun} <= set(events)

    def _rows(self, table: str) -> pa.Table:
        reader, _ = load_reader({**self.source.login, "dbtable": table})
        schema = reader.schema()
        return pa.Table.from_batches(
            [batch for split in reader.split(1) for batch in reader.read(split)], schema
        )


def in_order(made: Evolving) -> Iterator[Callable[[], object]]:
    """Each kind of change, some of them while existing rows are read."""
    yield lambda: made.change(20)
    yield made.add
    yield lambda: made.change(20)
    yield lambda: made.widen("n")
    yield lambda: made.change(30)
    yield lambda: made.drop("old")
    yield lambda: made.change(20)
    yield lambda: source_key(made)
    yield lambda: made.change(20)


def source_key(made: Evolving) -> None:
    """The key widens, too: the order of existing rows stays."""
    made.source.run(made.source.retype.format(column="id", type="BIGINT"))


def at_random(made: Evolving) -> None:
    """Another change of the columns."""
    drops = [
        name for name in made.columns if name.startswith(("new_", "old")) and len(made.columns) > 4
    ]
    narrow = [name for name, kind in made.columns.items() if kind == "INT"]
    if drops and made.chance.random() < 0.3:
        made.drop(made.chance.choice(drops))
    elif narrow and made.chance.random() < 0.5:
        made.widen(made.chance.choice(narrow))
    else:
        made.add()


def copy_while_columns_change(source: Source, home: Path) -> None:
    made = Evolving(source, random.Random(5))
    made.create(200)
    copy = Copy(source, home)
    copy.run(in_order(made), crashes=(3, 6, 8))
    copy.check(made)
    assert copy.crashes >= 2
    assert copy.restarts + copy.crashes >= 5


PROGRAM = """
import json, sys
from pathlib import Path
from tests.connectors.sql.evolving import Copy, Source

login, log, home, drained = json.loads(sys.argv[1])
sys.stdin.readline()
copy = Copy(Source(print, login, log), Path(home), rows=300)
while True:
    copy.run(iter(()))
    if drained:
        break
"""


def copy_much_while_columns_change(source: Source, home: Path, seed: int) -> None:
    """With copiers that are killed at any moment."""
    chance = random.Random(seed)
    made = Evolving(source, chance)
    made.create(5_000)
    copy = Copy(source, home)

    def child(drained: bool) -> Child:
        given = json.dumps([dict(source.login), dict(source.log), str(home), drained])
        return Child(PROGRAM, [given], home / "copy.log")

    children = [child(False)]
    try:
        children[-1].go()
        for number in range(200):
            made.change(100)
            if number % 6 == 3:
                at_random(made)
            if number % 10 == 9:
                children.append(child(number == 199))
                children[-2].next()
                time.sleep(chance.random())
                children[-2].kill()
                if number != 199:
                    children[-1].go()
        if made.columns["n"] == "INT":
            made.widen("n")
        made.change(20)
        children[-1].go()
        children[-1].finish()
        copy.check(made)
    finally:
        for each in children:
            each.kill()
