"""Every interleaving of two drivers that write into one directory, each step a call of the real writer on a disk.

Steps of a driver: prepare, open and write, close, commit. One that crashes stops after any of them; its processes are
known to be gone afterwards. A model says which rows may be there.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import Receipt, TaskWriter
from spark_channel.connectors.files import job_folders
from spark_channel.connectors.files.plan import FilesPlan
from spark_channel.errors import ChannelError, SourceError, SupersededError
from tests.connectors.files.helpers import leftovers, numbers, prepare, visible, write, writer_of


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, and thousands of runs would wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


STEPS = ("prepare", "open", "close", "commit")


def merges(first: int, second: int) -> Iterator[str]:
    """Every order of `first` steps of A and `second` steps of B."""
    if first == 0 or second == 0:
        yield "a" * first + "b" * second
        return
    for rest in merges(first - 1, second):
        yield "a" + rest
    for rest in merges(first, second - 1):
        yield "b" + rest


@dataclass
class Driver:
    """One run of a job with one task and one row."""

    name: str
    row: int
    target: Path
    context: dict[str, Any]
    done: int = 0
    plan: FilesPlan | None = None
    task: TaskWriter | None = None
    receipt: Receipt | None = None
    error: ChannelError | None = None
    log: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return self.done == len(STEPS) and self.error is None

    def step(self) -> None:
        if self.error is None:
            try:
                getattr(self, STEPS[self.done])()
            except ChannelError as error:
                self.error = error
                self.clean_up()
        self.done += 1

    def vanish(self) -> None:
        """The process is gone: nothing is cleaned up, and its files are closed."""
        stream = getattr(self.task, "_stream", None)
        if self.done < len(STEPS) and stream is not None:
            stream.close()

    def prepare(self) -> None:
        self.plan = prepare(
            writer_of("csv", self.target), numbers().schema, self.name, **self.context
        )

    def open(self) -> None:
        assert self.plan is not None
        self.task = writer_of("csv", self.target).open(self.plan, 0, 0)
        self.task.write(numbers(self.row).to_batches()[0])

    def close(self) -> None:
        assert self.task is not None
        self.receipt = self.task.close()

    def commit(self) -> None:
        assert self.plan is not None
        assert self.receipt is not None
        writer_of("csv", self.target).commit(self.plan, [self.receipt])

    def clean_up(self) -> None:
        """What Spark does with a job that failed."""
        if self.task is not None:
            self.task.rollback()
        if self.plan is not None and self.plan.published_at is None:
            writer_of("csv", self.target).abort(self.plan, None)


def rows(target: Path) -> list[int]:
    try:
        return visible("csv", target)
    except SourceError:
        return []


def run(
    target: Path, order: str, contexts: Sequence[dict[str, Any]], same_row: bool
) -> tuple[Driver, Driver]:
    write("csv", target, numbers(0), job="before")
    first = Driver("a", 1, target, dict(contexts[0]))
    second = Driver("b", 1 if same_row else 2, target, dict(contexts[1]))
    for which in order:
        (first if which == "a" else second).step()
    first.vanish()
    return first, second


def check_nothing_is_left(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job removes what crashed drivers left, and the log lists exactly what is there."""
    before = rows(target)
    with monkeypatch.context() as patch:
        patch.setattr(job_folders, "is_alive", lambda *_: "dead")
        write("csv", target, numbers(9), job="next", retention="0")
    assert visible("csv", target) == sorted([*before, 9])
    assert leftovers(target) == []
    assert len(list(target.glob("part-*"))) == len(before) + 1


ORDERS = [order for crash in range(5) for order in merges(crash, 4)]
"""A takes 0 to 4 of its steps; B all four."""

EACH = pytest.mark.parametrize(
    "each", [pytest.param(1, marks=pytest.mark.soak), 7], ids=["all", "some"]
)
"""`make soak` runs every order, `make test` every seventh."""


@EACH
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_two_runs_of_one_transaction_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str, overwrite: bool, each: int
) -> None:
    context = {"txn": ("n", 1), "commit": commit, "overwrite": overwrite}
    for number, order in enumerate(ORDERS[::each]):
        target = tmp_path / str(number)
        first, second = run(target, order, (context, context), same_row=True)
        kept = [] if overwrite else [0]
        refused = [
            driver for driver in (first, second) if "partially committed" in str(driver.error)
        ]
        for driver in (first, second):
            assert (
                driver.error is None
                or isinstance(driver.error, SupersededError)
                or driver in refused
            ), order
        seen = rows(target)
        if first.succeeded or second.succeeded:
            assert seen == [*kept, 1], order
        else:  # the later run crashed, or a task had committed whose rows a new run could not recognise
            assert seen in ([0], [*kept, 1], kept), order
        # The scheduler runs it once more: then the row is there once, whoever wrote it.
        third = Driver("c", 1, target, dict(context))
        for _ in STEPS:
            third.step()
        assert third.succeeded or "partially committed" in str(third.error), order
        assert rows(target) == [*kept, 1], order
        check_nothing_is_left(target, monkeypatch)


@EACH
@pytest.mark.parametrize("modes", ["jj", "jt", "tj", "tt"])
@pytest.mark.parametrize("kinds", ["aa", "ao", "oa", "oo"])
def test_two_jobs_are_serialised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str, modes: str, each: int
) -> None:
    contexts = [
        {"commit": "job" if mode == "j" else "task", "overwrite": kind == "o"}
        for kind, mode in zip(kinds, modes, strict=True)
    ]
    for number, order in enumerate([*merges(4, 4)][::each]):
        target = tmp_path / str(number)
        first, second = run(target, order, contexts, same_row=False)
        ended = [driver for driver in (first, second) if driver.succeeded]
        assert all(
            isinstance(each.error, SupersededError) for each in (first, second) if each.error
        ), order
        serial = []
        for drivers in permutations(ended):
            state = [0]
            for driver in drivers:
                state = [driver.row] if driver.context["overwrite"] else [*state, driver.row]
            serial.append(sorted(state))
        assert rows(target) in serial, (order, serial)
        check_nothing_is_left(target, monkeypatch)
