"""Processes that append to, overwrite and read one target while they are killed and stopped; and what they did, judged.

A program notes each of its operations before and after it. Afterwards the history is checked: there is one order of all
operations, that of the target's own log, in which each one takes effect once, between its beginning and its end, and in
which each read gives what it gave. So no row is lost, doubled or half seen.
"""

import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.connectors.files.busy import ROWS, Busy

__all__ = ["WORKERS", "Rows", "check", "work"]

WORKERS = 8
Rows = list[tuple[str, int]]
"""(operation, number of the row in it)."""


@dataclass
class Operation:
    kind: str = ""
    begun: float = float("inf")
    ended: float = float("inf")
    number: int = 0


@dataclass
class Crowd:
    """Processes that are `kind` at work on `target`. `killed` and `stopped` count what was done to them."""

    kind: type[Busy]
    target: str
    folder: Path
    environment: Mapping[str, str]
    until: float
    processes: dict[str, Any] = field(default_factory=dict)
    asleep: list[Any] = field(default_factory=list)
    killed: int = 0
    stopped: int = 0

    def start(self, worker: str) -> None:
        left = max(0.1, self.until - time.monotonic())
        # They are forked from one that has imported everything: importing would be most of what they do.
        process = multiprocessing.get_context("forkserver").Process(
            target=_work,
            args=(
                self.kind,
                self.target,
                worker,
                left,
                self.folder / f"{worker}.jsonl",
                self.environment,
            ),
        )
        process.start()
        self.processes[worker] = process

    def disturb(self, every: float, source: random.Random) -> None:
        """Kill one, or stop it and let another run its work; the stopped one wakes up later."""
        while time.monotonic() < self.until:
            time.sleep(min(every, max(0.0, self.until - time.monotonic())))
            worker = source.choice(sorted(self.processes))
            process = self.processes[worker]
            if process.exitcode is not None:
                continue
            if source.random() < 0.5:
                process.kill()
                process.join()
                self.killed += 1
            else:
                _send(process, signal.SIGSTOP)
                self.asleep.append(process)
                self.stopped += 1
            self.start(worker)
            if len(self.asleep) > 2:
                _send(self.asleep[-3], signal.SIGCONT)

    def end(self) -> list[str]:
        """What the processes complained of."""
        for process in self.asleep:
            _send(process, signal.SIGCONT)
        for process in [*self.processes.values(), *self.asleep]:
            process.join(180)
            assert process.exitcode is not None, "a process does not end"
        found = [
            process for process in [*self.processes.values(), *self.asleep] if process.exitcode != 0
        ]
        errors = [file.read_text() for file in self.folder.glob("*.error")]
        return errors or [f"exit code {process.exitcode}" for process in found]

    def close(self) -> None:
        for process in [*self.processes.values(), *self.asleep]:
            process.kill()
            process.join()


def _send(process: Any, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(process.pid, number)


def _work(
    kind: type[Busy],
    target: str,
    worker: str,
    seconds: float,
    history: Path,
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)
    try:
        kind(target, worker, seconds, history).run()
    except BaseException:
        history.with_name(f"{worker}-{os.getpid()}.error").write_text(traceback.format_exc())
        raise


@contextmanager
def crowd(
    kind: type[Busy], target: str, folder: Path, environment: Mapping[str, str], seconds: float
) -> Iterator[Crowd]:
    made = Crowd(kind, target, folder, environment, time.monotonic() + seconds)
    try:
        for number in range(WORKERS):
            made.start(f"w{number}")
            made.until = time.monotonic() + seconds  # on a busy machine, starting takes as long
        yield made
    finally:
        made.close()


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in folder.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]


def check(folder: Path, published: Mapping[str, list[int]], last: Rows) -> tuple[int, int]:
    """Check that the history is serialisable; returns how many operations and reads it has.

    `published`: the places in the target's log at which each operation was published. `last`: the rows in the end.
    """
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
    for op, numbers in published.items():
        assert len(numbers) == 1, f"{op} was published {len(numbers)} times, in entries {numbers}"
        operations[op].number = numbers[0]
    lost = [
        op for op, found in operations.items() if found.ended < float("inf") and op not in published
    ]
    assert not lost, f"reported as done, and not in the log: {lost}"
    order = sorted(published, key=lambda op: operations[op].number)
    latest = 0.0
    for op in order:  # whoever ended before another began is before it
        assert operations[op].ended >= latest, f"{op} ended before one began that is ahead of it"
        latest = max(latest, operations[op].begun)
    states: list[frozenset[str]] = [frozenset()]
    for op in order:
        states.append(frozenset({op}) if operations[op].kind == "overwrite" else states[-1] | {op})
    for event in [*reads, {"begun": time.monotonic(), "at": float("inf"), "seen": last}]:
        rows = [tuple(row) for row in event["seen"]]
        assert len(rows) == len(set(rows)), "a row was seen twice"
        seen = frozenset(op for op, _ in rows)
        assert len(rows) == ROWS * len(seen), "an operation was seen in half"
        first = max(
            (at for at, op in enumerate(order, 1) if operations[op].ended < event["begun"]),
            default=0,
        )
        until = max(
            (at for at, op in enumerate(order, 1) if operations[op].begun < event["at"]), default=0
        )
        assert seen in states[first : until + 1], (
            "a read saw what was there at no time while it ran"
        )
    return len(order), len(reads)


def work(
    kind: type[Busy],
    target: str,
    folder: Path,
    seconds: float,
    every: float,
    *,
    published: Callable[[], Mapping[str, list[int]]],
    rows: Callable[[], Rows],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Let eight processes that are `kind` work on `target`, and judge what they did."""
    with crowd(kind, target, folder, environment or {}, seconds) as made:
        made.disturb(every, random.Random(7))
        complaints = made.end()
    assert not complaints, complaints[0][-2000:]
    operations, reads = check(folder, published(), rows())
    print(
        f"{operations} operations, {reads} reads, {made.killed} killed, {made.stopped} stopped and woken"
    )
    assert operations >= WORKERS / 2
    assert made.killed + made.stopped > 0
