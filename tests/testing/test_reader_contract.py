"""The kit itself: a connector that breaks a promise fails it, with a message that names the promise."""

import importlib
import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import spark_channel.testing
from spark_channel.connectors import (
    FetchSize,
    Reader,
    Receipt,
    RowTally,
    SplitReader,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.base import contract
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.errors import OptionError, TargetError, UnsupportedError
from spark_channel.options import ReadOptions, WriteOptions
from spark_channel.planning import Split
from spark_channel.testing import reader_conformance, writer_conformance

SCHEMA = pa.schema([("id", pa.int64())])
TABLE = pa.table({"id": range(12)}, schema=SCHEMA)


class Numbers(Reader):
    """Keeps the contract; its subclasses break one promise each."""

    rows: ClassVar[int] = 12

    def __init__(self) -> None:
        super().__init__(ReadOptions.parse({})[0])

    def schema(self) -> pa.Schema:
        return SCHEMA

    def split(self, advice: int) -> list[Split]:
        edges = [self.rows * part // advice for part in range(advice + 1)]
        return [Split({"from": a, "to": b}, b - a) for a, b in pairwise(edges) if b > a]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for number in range(split.params["from"], split.params["to"]):
            yield pa.record_batch({"id": [number]}, schema=SCHEMA)


class LosesARow(Numbers):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from list(super().read(split))[: -1 if split.params["from"] else None]


class GivesARowTwice(Numbers):
    def split(self, advice: int) -> list[Split]:
        splits = super().split(advice)
        return [*splits, splits[0]] if advice > 1 else splits


class ForgetsItsRows(Numbers):
    done: ClassVar[set[int]] = set()

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["from"] not in self.done:
            yield from super().read(split)
        self.done.add(split.params["from"])


class ChangesItsSchema(Numbers):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for batch in super().read(split):
            yield batch.cast(pa.schema([("id", pa.int32())]))


class CannotTravel(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.held = lambda: None


class LeaksAFile(Numbers):
    held: ClassVar[list[Any]] = []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        self.held.append(Path(__file__).open())  # noqa: SIM115 - the leak that the kit must see
        yield from super().read(split)


class ReturnsAList(Numbers):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return iter(list(super().read(split)))


class HasEmptySplits(Numbers):
    rows = 0

    def split(self, advice: int) -> list[Split]:
        return [Split({"from": 0, "to": 0})]


class MindsFetchSize(Numbers):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if self.fetch_size == FetchSize():
            yield from super().read(split)


def test_a_reader_that_keeps_its_promises_passes() -> None:
    reader_conformance(Numbers, expected=TABLE)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (LosesARow, r"rows missing \(such as \['\("),
        (GivesARowTwice, "rows too many"),
        (ForgetsItsRows, "split.*rows missing|read again"),
        (ChangesItsSchema, "a batch does not have schema"),
        (LeaksAFile, "still open: .*test_reader_contract.py"),
        (ReturnsAList, "is not a generator"),
        (HasEmptySplits, "an empty source has 1 splits"),
        (MindsFetchSize, r"with FetchSize\(rows=3"),
    ],
)
def test_a_reader_that_breaks_a_promise_is_told_which(broken: type[Reader], message: str) -> None:
    expected = SCHEMA.empty_table() if broken is HasEmptySplits else TABLE
    try:
        with pytest.raises(AssertionError, match=message):
            reader_conformance(broken, expected=expected)
    finally:
        for file in LeaksAFile.held:
            file.close()
        LeaksAFile.held.clear()
        ForgetsItsRows.done.clear()


def test_a_reader_that_cannot_travel_is_found() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        reader_conformance(CannotTravel, expected=TABLE)


def test_the_incremental_half_is_optional() -> None:
    with pytest.raises(UnsupportedError, match="Numbers has no change feed"):
        Numbers().feed(FeedOptions())
    assert Numbers().resource_mark(Split()) is None


class Folder(Writer):
    """One file per task, published by renaming: the shortest writer that keeps the contract."""

    def __init__(self, home: Path) -> None:
        super().__init__(WriteOptions.parse({})[0])
        self.home = home

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(context.job, schema, "job", context.overwrite, context.txn)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return FolderTask(self.home / f"{plan.job}.{task}.{attempt}.staged", task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            staged = self.home / f"{plan.job}.{receipt.task}.{receipt.attempt}.staged"
            if staged.exists():
                staged.rename(staged.with_suffix(".arrow"))
        self._clear(plan)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        self._clear(plan)

    def _clear(self, plan: WritePlan) -> None:
        for path in self.home.glob(f"{plan.job}.*.staged"):
            path.unlink(missing_ok=True)


class FolderTask(TaskWriter):
    def __init__(self, path: Path, task: int, attempt: int) -> None:
        self.path, self.task, self.attempt = path, task, attempt
        self.batches: list[pa.RecordBatch] = []
        self.ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        if self.ended:
            raise TargetError("ended")
        self.batches.append(batch)

    def close(self) -> Receipt:
        if self.ended:
            raise TargetError("ended")
        self.ended = True
        if self.batches:
            with (
                pa.OSFile(str(self.path), "wb") as file,
                pa.ipc.new_file(file, self.batches[0].schema) as ipc,
            ):
                for batch in self.batches:
                    ipc.write_batch(batch)
        rows = sum(batch.num_rows for batch in self.batches)
        return Receipt(self.task, self.attempt, rows, sum(batch.nbytes for batch in self.batches))

    def rollback(self) -> None:
        self.ended = True
        self.path.unlink(missing_ok=True)


class HasItsHomeInTheEnvironment(Folder):
    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        assert os.environ["HOME_OF_THE_FOLDER"] == str(self.home)
        return super().open(plan, task, attempt)


class PublishesAllAttempts(Folder):
    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        for path in self.home.glob(f"{plan.job}.*.staged"):
            path.rename(path.with_suffix(".arrow"))


class PublishesTooEarly(Folder):
    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return FolderTask(self.home / f"{plan.job}.{task}.{attempt}.arrow", task, attempt)


class LeavesStaging(Folder):
    def _clear(self, plan: WritePlan) -> None:
        pass


class AbortTakesBack(Folder):
    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        for path in self.home.glob(f"{plan.job}.*"):
            path.unlink()


class ClaimsALedger(Folder):
    pass


def run(folder: type[Folder], home: Path, *, ledger: bool = False) -> None:
    def read_back() -> pa.Table | None:
        found = [
            pa.ipc.open_file(path.read_bytes()).read_all() for path in sorted(home.glob("*.arrow"))
        ]
        return pa.concat_tables(found) if found else None

    writer_conformance(
        lambda: folder(home),
        read_back=read_back,
        commits=["job"],
        ledger=ledger,
        overwrite=False,
        leftovers=lambda: list(home.glob("*.staged")),
    )


def test_a_writer_that_keeps_its_promises_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that reads the environment, such as a password, in the process that the kit kills."""
    forkserver.ensure_running()
    monkeypatch.setenv("HOME_OF_THE_FOLDER", str(tmp_path))
    run(HasItsHomeInTheEnvironment, tmp_path)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (PublishesAllAttempts, "after two attempts of one task.*too many"),
        (PublishesTooEarly, "before the commit.*too many"),
        (LeavesStaging, "staging still holds"),
        (AbortTakesBack, "after abort\\(\\) of what was published.*missing"),
    ],
)
def test_a_writer_that_breaks_a_promise_is_told_which(
    broken: type[Folder], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=message):
        run(broken, tmp_path)


def test_a_writer_without_a_ledger_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a published job is not known again"):
        run(ClaimsALedger, tmp_path, ledger=True)


def test_plain_data_travels() -> None:
    for thing in (
        WriteContext("j", "task", True, ("a", 2), stream=("q", 1), resume=3),
        WritePlan("j", SCHEMA, "job", published_at="now"),
        Receipt(1, 2, 3, 4, {"file": "x"}, 1, (contract.DirtyRow("{}", "why"),)),
    ):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_what_is_exported_is_there() -> None:
    for module in (contract, spark_channel.testing):
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_connector_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text("utf-8")
    blocks = dict(re.findall(r'```python title="(\w+)\.py"\n(.*?)```', text, re.DOTALL))
    assert list(blocks) == ["lines_connector", "test_lines_connector"]
    assert sum(bool(line.strip()) for line in blocks["lines_connector"].splitlines()) <= 50, (
        "as the page says"
    )
    for name, code in blocks.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    tests = importlib.import_module("test_lines_connector")
    try:
        for name in ("test_the_reader", "test_the_writer"):
            place = tmp_path / name
            place.mkdir()
            getattr(tests, name)(place)
        connector = importlib.import_module("lines_connector").CONNECTOR
        assert connector.reader_class().__name__ == "LinesReader"
        with pytest.raises(OptionError, match="'path'"):
            connector.reader_with({"path": str(tmp_path / "nowhere")})
    finally:
        for name in blocks:
            sys.modules.pop(name, None)


def test_an_attempt_counts_its_rows_and_ends_once() -> None:
    tally = RowTally(3, 1)
    batch = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})
    tally.add(batch)
    tally.add(batch)
    receipt = tally.receipt(file="part-3")
    assert (receipt.task, receipt.attempt, receipt.rows) == (3, 1, 6)
    assert receipt.nbytes == 2 * batch.nbytes
    assert receipt.details == {"file": "part-3"}
    for again in (tally.receipt, tally.check_open, lambda: tally.add(batch)):
        with pytest.raises(TargetError, match="task 3, attempt 1 has ended"):
            again()


class _Numbers(SplitReader):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array([split.params["n"]], pa.int64())})


def test_a_reader_of_splits_that_share_nothing_reads_each_by_itself() -> None:
    with _Numbers().reading() as read:
        batches = [batch for n in (1, 2) for batch in read(Split({"n": n}))]
    assert [batch["n"].to_pylist() for batch in batches] == [[1], [2]]
