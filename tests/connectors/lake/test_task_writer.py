"""What every lakehouse table promises to runs that overlap, hang, wake and die."""

import itertools
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan
from spark_channel.connectors.base.claims import HeldClaim
from spark_channel.connectors.lake import publish
from spark_channel.connectors.lake.runs import Run, all_runs
from spark_channel.connectors.lake.table import TableState
from spark_channel.connectors.lake.writer import LakeWriter
from spark_channel.errors import CommitError, SupersededError, TargetError
from spark_channel.processes import describe_owner
from tests.behaviour.exactly_once.targets import LAKES, Target, open_target

_attempts = itertools.count(1)


@pytest.fixture(params=LAKES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _stage(
    target: Target, context: WriteContext, *ids: int, **options: Any
) -> tuple[LakeWriter, WritePlan, list[Receipt]]:
    writer = target.writer(**options)
    assert isinstance(writer, LakeWriter)
    plan = writer.prepare(context, _rows().schema)
    attempt = writer.open(plan, 0, next(_attempts))
    attempt.write(_rows(*ids))
    return writer, plan, [attempt.close()]


def _write(target: Target, job: str, *ids: int, overwrite: bool = False, **options: Any) -> None:
    writer, plan, receipts = _stage(target, WriteContext(job, overwrite=overwrite), *ids, **options)
    writer.commit(plan, receipts)


def _batch(number: int, job: str = "") -> WriteContext:
    return WriteContext(job or f"stream-q-{number}", commit="job", stream=("q", number))


def _state(target: Target) -> TableState:
    writer = target.writer()
    assert isinstance(writer, LakeWriter)
    state = writer.lake().open()
    assert state is not None
    return state


def test_a_stream_has_one_claim_that_never_goes_back(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    late, held_back, receipts_held = _stage(target, _batch(0), 0)
    for number in (0, 1, 2):
        writer, plan, receipts = _stage(target, _batch(number), number)
        writer.commit(plan, receipts)
    assert "takes the claim" not in caplog.text
    late.commit(held_back, receipts_held)  # a driver that hung since the first batch
    again, plan, receipts = _stage(target, _batch(1), 1)
    assert plan.published_at is not None
    again.commit(plan, receipts)
    assert target.seen() == Counter([0, 1, 2])
    assert target.staged() == []
    _stage(target, _batch(3), 3)
    _stage(target, _batch(3, "another-run"), 3)
    assert "another-run takes the claim" in caplog.text


def test_who_took_over_is_named(target: Target) -> None:
    writer, plan, receipts = _stage(target, WriteContext("monday", txn=("nightly", 7)), 1)
    writer.prepare(WriteContext("monday-again", txn=("nightly", 7)), _rows().schema)
    with pytest.raises(
        SupersededError, match=r"transaction id 'nightly:7'.*'monday-again' took over"
    ) as caught:
        writer.commit(plan, receipts)
    assert (caught.value.owner, caught.value.successor) == ("monday", "monday-again")
    assert not target.seen()


@pytest.mark.parametrize("mode", ["append", "overwrite", "replaceWhere", "upsert"])
def test_an_overtaken_driver_changes_nothing_whatever_it_would_do(
    target: Target, mode: str
) -> None:
    _write(target, "before", 1, 2)
    options = {
        "append": {},
        "overwrite": {},
        "replaceWhere": {"replaceWhere": "id > 0"},
        "upsert": {"writeMode": "upsert", "keyColumns": "id"},
    }[mode]
    context = WriteContext("older", txn=("n", 1), overwrite=mode in ("overwrite", "replaceWhere"))
    writer, plan, receipts = _stage(target, context, 2, 3, **options)
    later, later_plan, later_receipts = _stage(
        target, replace(context, job="later"), 2, 3, **options
    )
    with pytest.raises(SupersededError):
        writer.commit(plan, receipts)
    assert target.seen() == Counter([1, 2])
    later.commit(later_plan, later_receipts)
    found = target.seen()
    writer.commit(plan, receipts)  # published by now
    assert target.seen() == found
    assert target.staged() == []


def test_a_look_before_is_not_what_protects(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is overtaken after it has read the table, and before its commit: the commit itself is rejected."""
    context = WriteContext("older", txn=("n", 1))
    writer, plan, receipts = _stage(target, context, 1)
    state_class = type(_state(target))
    original = state_class.commit
    taken: list[bool] = []

    def overtaken(self: Any, change: Any) -> bool:
        if change.job == "older" and change.added and not taken:
            taken.append(True)
            target.writer().prepare(replace(context, job="later"), _rows().schema)
        return bool(original(self, change))

    monkeypatch.setattr(state_class, "commit", overtaken)
    with pytest.raises(SupersededError):
        writer.commit(plan, receipts)
    assert taken
    assert not target.seen()


def test_a_commit_whose_answer_is_lost(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    state_class = type(_state(target))
    original = state_class.commit

    def lost(self: Any, change: Any) -> bool:
        done = original(self, change)
        if change.added:
            raise TargetError("the connection was lost")
        return bool(done)

    writer, plan, receipts = _stage(target, WriteContext("job", txn=("n", 1)), 1)
    monkeypatch.setattr(state_class, "commit", lost)
    writer.commit(plan, receipts)
    assert target.seen() == Counter([1])
    assert target.staged() == []


@pytest.mark.parametrize("txn", [None, ("n", 1)])
def test_a_commit_that_failed_cannot_arrive_later(
    target: Target, monkeypatch: pytest.MonkeyPatch, txn: tuple[str, int] | None
) -> None:
    state_class = type(_state(target))
    original = state_class.commit
    late: list[Any] = []

    def delayed(self: Any, change: Any) -> bool:
        if change.added:
            late.append((self, change))
            raise TargetError("the store did not answer")
        return bool(original(self, change))

    writer, plan, receipts = _stage(target, WriteContext("job", txn=txn), 1)
    monkeypatch.setattr(state_class, "commit", delayed)
    with pytest.raises(CommitError, match="has the rows that it had before"):
        writer.commit(plan, receipts)
    ((state, change),) = late
    assert original(state, change) is False, (
        "the request that was on its way is accepted after the job has failed"
    )
    writer.abort(plan, list(receipts))
    assert not target.seen()
    assert target.staged() == []


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("txn", [None, ("n", 1)])
def test_a_commit_that_was_interrupted_cannot_arrive_after_the_abort(
    target: Target, monkeypatch: pytest.MonkeyPatch, txn: tuple[str, int] | None, overwrite: bool
) -> None:
    _write(target, "before", 1)
    state_class = type(_state(target))
    original = state_class.commit
    late: list[Any] = []

    def interrupted(self: Any, change: Any) -> bool:
        late.append((self, change))
        raise KeyboardInterrupt  # while its answer is awaited

    context = WriteContext("job", txn=txn, overwrite=overwrite)
    ids = [] if overwrite else [2]
    writer, plan, receipts = _stage(target, context, *ids)
    with monkeypatch.context() as patch:
        patch.setattr(state_class, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(plan, receipts)
    files = {Path(path): Path(path).read_bytes() for path in target.staged() if "parquet" in path}
    writer.abort(plan, list(receipts))
    assert target.staged() == []
    for path, data in files.items():  # the request has looked at them before
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    ((state, change),) = late
    assert original(state, change) is False
    for path in files:
        path.unlink()
    assert target.seen() == Counter([1])
    _write(target, "next", 3)
    assert target.seen() == Counter([1, 3])


def _die(target: Target, plan: WritePlan) -> None:
    """The run's process is gone: its note names one that is not there."""
    (note,) = [
        Path(path)
        for path in target.staged()
        if getattr(plan, "run", "?") in path and path.endswith(".json")
    ]
    found = json.loads(note.read_text())
    note.write_text(
        json.dumps({**found, "process": json.dumps({**describe_owner(), "started": "1"})})
    )


def test_files_of_a_dead_run_are_removed_by_the_next_job(target: Target) -> None:
    _write(target, "before", 1)
    dead, plan, receipts = _stage(target, WriteContext("dead"), 2)
    live, live_plan, live_receipts = _stage(target, WriteContext("live"), 3)
    _die(target, plan)
    _write(target, "next", 4)
    assert [path for path in target.staged() if plan.run in path] == []  # type: ignore[attr-defined] # a part of this kind
    with pytest.raises(CommitError):  # what looked dead wakes up: it is fenced off
        dead.commit(plan, receipts)
    live.commit(live_plan, live_receipts)
    assert target.seen() == Counter([1, 3, 4])
    assert target.staged() == []


def test_a_run_that_seemed_dead_is_fenced_by_the_log_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it sees of its own notes and files: the job that found it dead has taken its name away."""
    _write(target, "before", 1)
    dead, plan, receipts = _stage(target, WriteContext("dead"), 2)
    assert plan.held is not None
    assert plan.held.epoch == 0
    _die(target, plan)
    _write(target, "next", 4)
    monkeypatch.setattr(Run, "is_live", lambda _: True)
    monkeypatch.setattr(publish, "lost_files", lambda *_: [])
    with pytest.raises(SupersededError, match="gave its claim back"):
        dead.commit(plan, receipts)
    assert target.seen() == Counter([1, 4])


def test_a_run_that_seemed_dead_wakes_after_the_log_has_forgotten_that_it_was_ended(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs keep the claims of a number of jobs."""
    _write(target, "before", 1)
    sleeper, plan, receipts = _stage(target, WriteContext("sleeper"), 2)
    _die(target, plan)
    state_class = type(_state(target))
    claim, remove = state_class.claim, Run.remove
    woke: list[str] = []

    def forgetful(self: Any, identity: Any, job: str) -> Any:
        return None if job == "sleeper" else claim(self, identity, job)

    def slow(self: Run, keep: Any = ()) -> None:
        if self.name == plan.run and not woke:  # type: ignore[attr-defined] # a part of this kind
            woke.append(self.name)
            with monkeypatch.context() as patch:
                patch.setattr(state_class, "claim", forgetful)
                with pytest.raises(SupersededError):
                    sleeper.commit(plan, receipts)
        remove(self, keep)

    monkeypatch.setattr(Run, "remove", slow)
    _write(target, "next", 3)
    assert woke
    assert target.seen() == Counter([1, 3])
    assert target.staged() == []


def test_a_published_file_stays_when_its_claim_is_forgotten(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died before it tidied up."""
    writer, plan, receipts = _stage(target, WriteContext("named", txn=("n", 1)), 1)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "remove", lambda *_, **__: None)
        writer.commit(plan, receipts)
    _die(target, plan)
    kept = [claim for claim in writer.kept_claims() if claim.kind == "txn"]
    assert len(writer.forget_claims(kept)) == 1
    _write(target, "next", 2)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_a_batch_that_begins_while_another_job_looks_for_ended_runs_keeps_its_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That job has read the table before, and finds the batch's note with a claim that it does not know."""
    writer, plan, receipts = _stage(target, _batch(0), 0)
    writer.commit(plan, receipts)
    begun: list[tuple[LakeWriter, WritePlan, list[Receipt]]] = []

    def later(*place: Any) -> Any:
        monkeypatch.setattr(publish, "all_runs", all_runs)
        begun.append(_stage(target, _batch(1), 1))
        return all_runs(*place)

    monkeypatch.setattr(publish, "all_runs", later)
    _write(target, "other", 7)
    ((batch, batch_plan, batch_receipts),) = begun
    batch.commit(batch_plan, batch_receipts)
    assert target.seen() == Counter([0, 1, 7])


def test_who_removes_a_batch_of_several_tasks_may_be_killed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task's run has noted the files of all: whoever comes after must know them."""
    _write(target, "before")
    writer = target.writer()
    plans = [writer.prepare(_batch(0), _rows().schema) for _ in range(4)]
    receipts = []
    for number, plan in enumerate(plans):
        attempt = writer.open(plan, number, next(_attempts))
        attempt.write(_rows(number))
        receipts.append(attempt.close())
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        writer.commit(plans[1], receipts)
    remove = Run.remove
    removed: list[str] = []

    def killed(self: Run, keep: Any = ()) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(self.name)
        remove(self, keep)

    def noted_first(*place: Any) -> Any:
        runs, published = all_runs(*place)
        return sorted(runs, key=lambda run: not run.publishing), published

    monkeypatch.setattr(publish, "all_runs", noted_first)
    for _ in plans:
        removed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Run, "remove", killed)
            with suppress(KeyboardInterrupt):
                _write(target, "other")
        assert target.seen() == Counter(range(4))
    _write(target, "next", 9)
    assert target.seen() == Counter([*range(4), 9])
    assert target.staged() == []


def test_a_job_makes_one_version_with_a_transaction_id_and_without(target: Target) -> None:
    def versions() -> int:
        table: Any = _state(target)._table  # type: ignore[attr-defined] # of both formats
        metadata = table.metadata
        return int(table.version()) if callable(metadata) else len(metadata.snapshots)

    _write(target, "before", 1)
    before = versions()
    _write(target, "plain", 2)
    _write(target, "over", 3, overwrite=True)
    plain = versions() - before
    writer, plan, receipts = _stage(target, WriteContext("named", txn=("n", 1)), 4)
    writer.commit(plan, receipts)
    assert (plain, versions() - before - plain) == (2, 1)
    assert writer.commit(plan, receipts) in (True, False)  # again: nothing changes
    for number in (0, 1):
        writer, plan, receipts = _stage(target, _batch(number), 5)
        writer.commit(plan, receipts)
    assert versions() - before - plain == 3
    assert target.seen() == Counter([3, 4, 5, 5])
    assert target.staged() == []


def test_a_run_that_ends_while_another_looks_at_it_leaves_no_note(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, plan, receipts = _stage(target, WriteContext("ends"), 1)
    original = Run.is_dead

    def ends(run: Run, held: HeldClaim) -> bool:
        if receipts and held.owner == "ends":
            staged, receipts[:] = list(receipts), []
            writer.commit(plan, staged)
        return original(run, held)

    monkeypatch.setattr(Run, "is_dead", ends)
    _write(target, "other", 2)
    assert receipts == []
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_a_run_that_begins_and_publishes_while_another_looks_keeps_its_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look at the table, and after the one at what runs publish: the log's history knows it nevertheless."""
    _write(target, "before", 1)
    publishing = Run.publishing
    begun: list[tuple[LakeWriter, WritePlan, list[Receipt]]] = []
    done: list[str] = []

    def begins(*place: Any) -> Any:
        if not done:
            done.append("begun")
            begun.append(_stage(target, WriteContext("quick"), 2))
        return all_runs(*place)

    def publishes(run: Run) -> Any:
        found = publishing(run)
        if begun and run.name == begun[0][1].run:  # type: ignore[attr-defined] # a part of this kind
            writer, plan, receipts = begun.pop()
            with monkeypatch.context() as patch:  # its driver dies before it tidies up
                patch.setattr(LakeWriter, "clear", lambda *_given, **_more: None)
                writer.commit(plan, receipts)
            done.append("published")
        return found

    monkeypatch.setattr("spark_channel.connectors.lake.publish.all_runs", begins)
    monkeypatch.setattr(Run, "publishing", publishes)
    _write(target, "other", 3)
    assert done == ["begun", "published"]
    assert target.seen() == Counter([1, 2, 3])
    _write(target, "next", 4)
    assert target.staged() == []
    assert target.seen() == Counter([1, 2, 3, 4])


def test_a_run_that_sleeps_before_it_notes_what_it_publishes_leaves_no_note(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes were removed when another run took over and published; the note that it then writes is its last."""
    context = WriteContext("sleeps", txn=("n", 1))
    writer, plan, receipts = _stage(target, context, 1)
    original = Run.note_publishing
    woken: list[bool] = []

    def sleeps(run: Run, paths: Any) -> None:
        if not woken:
            woken.append(True)
            other, other_plan, other_receipts = _stage(target, replace(context, job="later"), 1)
            other.commit(other_plan, other_receipts)
        original(run, paths)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "note_publishing", sleeps)
        writer.commit(plan, receipts)  # published by now
    assert target.seen() == Counter([1])
    assert target.staged() == []


def test_notes_of_a_run_that_was_killed_while_it_removed_them_are_removed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, plan, receipts = _stage(target, WriteContext("killed"), 1)
    store = type(writer.lake(plan.place).store)  # type: ignore[attr-defined] # a part of this kind
    original = store.remove

    def killed(self: Any, path: str) -> None:
        if path.endswith(".publishing"):
            raise KeyboardInterrupt
        original(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(plan, receipts)
    assert any(path.endswith(".publishing") for path in target.staged())
    _write(target, "next", 2)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_files_that_were_published_stay_when_the_driver_died_before_it_tidied_up(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for context in (WriteContext("pair", txn=("n", 1)), _batch(0), WriteContext("job")):
        writer, plan, receipts = _stage(target, context, 7)
        with monkeypatch.context() as patch:
            patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
            writer.commit(plan, receipts)
        _write(target, f"next-{context.job}", 8)
    assert target.seen() == Counter({7: 3, 8: 3})
    assert target.staged() == []


def test_a_dead_run_whose_files_old_versions_name_keeps_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published, then overwritten, then found dead: time travel still reads its files."""
    writer, plan, receipts = _stage(target, WriteContext("job", txn=("n", 1)), 7)
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        writer.commit(plan, receipts)
        _write(target, "overwrite", 8, overwrite=True)
    files = list(
        Path(target.options.get("path", target.options.get("warehouse", ""))).rglob("*.parquet")
    )
    _write(target, "next", 9)
    assert all(path.exists() for path in files)


def test_of_two_overwrites_that_overlap_one_set_of_rows_stays(target: Target) -> None:
    for before in ([], [1]):
        target.reset(True)
        if before:
            _write(target, "before", *before)
        one = _stage(target, WriteContext("one", overwrite=True), 10)
        two = _stage(target, WriteContext("two", overwrite=True), 20)
        two[0].commit(*two[1:])
        one[0].commit(*one[1:])
        assert target.seen() == Counter([10])


def test_a_column_that_another_job_added_meanwhile(target: Target) -> None:
    _write(target, "before", 1)
    writer, plan, receipts = _stage(target, WriteContext("slow"), 2)
    other = target.writer(onSchemaChange="evolve")
    wide = pa.record_batch({"id": pa.array([3], pa.int64()), "name": ["c"]})
    other_plan = other.prepare(WriteContext("other"), wide.schema)
    attempt = other.open(other_plan, 0, next(_attempts))
    attempt.write(wide)
    other.commit(other_plan, [attempt.close()])
    writer.commit(plan, receipts)
    assert target.seen() == Counter([1, 2, 3])


def _work(target_options: dict[str, Any], number: int, kill: bool) -> None:
    """In a separate process: ten jobs, each of a pair that another process may run too."""
    from spark_channel.connectors import load_writer

    for version in range(10):
        writer = load_writer(target_options)[0]
        context = WriteContext(f"p{number}-{version}", txn=("n", version))
        try:
            plan = writer.prepare(context, _rows().schema)
            attempt = writer.open(plan, 0, number * 1000 + version)
            attempt.write(_rows(version))
            if kill and version == 5:
                os._exit(9)
            writer.commit(plan, [attempt.close()])
        except (SupersededError, TargetError):
            continue


@pytest.mark.timeout(300)
def test_processes_that_write_the_same_pairs_at_once(target: Target) -> None:
    context = multiprocessing.get_context("forkserver")
    options = {**target.options, "commitTimeout": "120"}
    workers = [context.Process(target=_work, args=(options, n, n == 0)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
        assert worker.exitcode in (0, 9)
    once = target.seen()
    assert all(count == 1 for count in once.values()), once
    _work(options, 9, False)  # the scheduler runs each of them again
    assert target.seen() == Counter(range(10))
    assert target.staged() == []


def test_a_plan_says_what_of_others_an_overwrite_replaces(target: Target) -> None:
    def said() -> str:
        return str(target.writer().foreign_content(_rows().schema))

    _write(target, "a", 1, 2)
    assert said() == "1 file of a table that spark-channel has not overwritten before"
    some = target.writer(replaceWhere="id = 1").foreign_content(_rows().schema)
    assert some.startswith("rows in up to 1 file")
    _write(target, "b", 3, overwrite=True)
    assert said() == ""
