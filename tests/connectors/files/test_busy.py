"""Eight processes append to, overwrite and read one directory, and are killed or stopped meanwhile.

Afterwards the history is checked: there is one order of all operations, that of the log, in which each one takes effect
once, between its beginning and its end, and in which each read gives what it gave. So no row is lost, doubled or
half seen.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from spark_channel.connectors.files.paths import LOG, locate
from tests.connectors.files.busy import ROWS, rows_of
from tests.connectors.files.helpers import leftovers, read, write
from tests.servers.stores import KINDS, object_server

ROOT = Path(__file__).resolve().parents[3]
WORKERS = 8


@dataclass
class Operation:
    kind: str = ""
    begun: float = float("inf")
    ended: float = float("inf")
    number: int | None = None


@dataclass
class Crowd:
    """The processes. `killed` and `stopped` count what was done to them."""

    path: str
    folder: Path
    environment: dict[str, str]
    until: float
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    asleep: list[subprocess.Popen[str]] = field(default_factory=list)
    killed: int = 0
    stopped: int = 0

    def start(self, worker: str) -> None:
        left = max(0.1, self.until - time.monotonic())
        history = self.folder / f"{worker}.jsonl"
        self.processes[worker] = subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.files.busy", self.path, worker, str(left), str(history)],
            env={**os.environ, **self.environment, "PYTHONPATH": str(ROOT)},
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def disturb(self, every: float, source: random.Random) -> None:
        """Kill one, or stop it and let another run its work; the stopped one wakes up later."""
        while time.monotonic() < self.until:
            time.sleep(min(every, max(0.0, self.until - time.monotonic())))
            worker = source.choice(sorted(self.processes))
            process = self.processes[worker]
            if process.poll() is not None:
                continue
            if source.random() < 0.5:
                process.kill()
                process.communicate()
                self.killed += 1
            else:
                process.send_signal(signal.SIGSTOP)
                self.asleep.append(process)
                self.stopped += 1
            self.start(worker)
            if len(self.asleep) > 2:
                self.asleep[-3].send_signal(signal.SIGCONT)

    def end(self) -> list[str]:
        """What the processes complained of."""
        found = []
        for process in self.asleep:
            process.send_signal(signal.SIGCONT)
        for process in [*self.processes.values(), *self.asleep]:
            _, errors = process.communicate(timeout=120)
            if process.returncode != 0:
                found.append(errors)
        return found

    def close(self) -> None:
        for process in [*self.processes.values(), *self.asleep]:
            process.kill()
            process.communicate()


@contextmanager
def crowd(path: str, folder: Path, environment: dict[str, str], seconds: float) -> Iterator[Crowd]:
    made = Crowd(path, folder, environment, time.monotonic() + seconds)
    try:
        for number in range(WORKERS):
            made.start(f"w{number}")
        yield made
    finally:
        made.close()


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def published(path: str) -> dict[str, list[int]]:
    """The numbers of the log entries that published each operation."""
    place = locate(path)
    found: dict[str, list[int]] = {}
    for info in place.fs.get_file_info(pafs.FileSelector(f"{place.path}/{LOG}")):
        if info.base_name.endswith(".json"):
            with place.fs.open_input_file(info.path) as file:
                entry = json.loads(file.read())
            if entry["what"].startswith("publish w"):
                op = entry["what"].removeprefix("publish ").rsplit("-", 1)[0]
                found.setdefault(op, []).append(entry["number"])
    return found


def check(path: str, folder: Path) -> tuple[int, int]:
    """Hold the history to be serialisable; returns how many operations and reads it has."""
    operations: dict[str, Operation] = {}
    reads = []
    for event in events(folder):
        if event["event"] == "read":
            reads.append(event)
            continue
        found = operations.setdefault(event["op"], Operation())
        if event["event"] == "begin":
            found.kind, found.begun = event["kind"], min(found.begun, event["at"])
        else:
            found.ended = min(found.ended, event["at"])
    for op, numbers in published(path).items():
        assert len(numbers) == 1, f"{op} was published {len(numbers)} times, in entries {numbers}"
        operations[op].number = numbers[0]
    lost = [op for op, found in operations.items() if found.ended < float("inf") and found.number is None]
    assert not lost, f"reported as done, and not in the log: {lost}"
    order = sorted(
        (op for op in operations if operations[op].number is not None), key=lambda op: _number(operations[op])
    )
    latest = 0.0
    for op in order:  # whoever ended before another began is before it
        assert operations[op].ended >= latest, f"{op} ended before one began that is ahead of it"
        latest = max(latest, operations[op].begun)
    states: list[frozenset[str]] = [frozenset()]
    for op in order:
        states.append(frozenset({op}) if operations[op].kind == "overwrite" else states[-1] | {op})
    for event in [*reads, {"begun": time.monotonic(), "at": float("inf"), "seen": _seen(path)}]:
        rows = [tuple(row) for row in event["seen"]]
        assert len(rows) == len(set(rows)), "a row was seen twice"
        seen = frozenset(op for op, _ in rows)
        assert len(rows) == ROWS * len(seen), "an operation was seen in half"
        first = max(
            (at for at, op in enumerate(order, 1) if operations[op].ended < event["begun"]), default=0
        )
        last = max((at for at, op in enumerate(order, 1) if operations[op].begun < event["at"]), default=0)
        assert seen in states[first : last + 1], "a read saw what was there at no time while it ran"
    return len(order), len(reads)


def _number(operation: Operation) -> int:
    assert operation.number is not None
    return operation.number


def _seen(path: str) -> list[tuple[str, int]]:
    table = read("parquet", path)
    return sorted(zip(table.column("op").to_pylist(), table.column("n").to_pylist(), strict=True))


def work(
    path: str, folder: Path, seconds: float, every: float, environment: dict[str, str] | None = None
) -> None:
    write("parquet", path, rows_of("none.0").slice(0, 0))
    with crowd(path, folder, environment or {}, seconds) as made:
        made.disturb(every, random.Random(7))
        complaints = made.end()
    assert not complaints, complaints[0][-2000:]
    operations, reads = check(path, folder)
    print(
        f"{path}: {operations} operations, {reads} reads, {made.killed} killed, {made.stopped} stopped and woken"
    )
    assert operations >= WORKERS / 2
    assert made.killed + made.stopped > 0


def test_processes_on_a_disk(tmp_path: Path) -> None:
    target = tmp_path / "out"
    work(str(target), tmp_path, seconds=8, every=1.5)
    before = _seen(str(target))
    write(
        "parquet", target, rows_of("last.0"), job="last", retention="0"
    )  # the next job removes what killed ones left
    assert leftovers(target) == []
    assert len(_seen(str(target))) == len(before) + ROWS


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_processes_on_a_disk_for_a_minute(tmp_path: Path) -> None:
    work(str(tmp_path / "out"), tmp_path, seconds=60, every=5)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_processes_on_an_object_store_for_a_minute(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_server(kind) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        work(server.uri("busy/out"), tmp_path, seconds=60, every=5, environment=dict(server.environment))
