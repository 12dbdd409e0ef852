"""A named write to a lakehouse table makes one commit: its claim comes with its rows.

Runs that overlap, die and wake: in processes that are killed and stopped, and in orders that a test forces.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan
from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.lake import publish
from spark_channel.connectors.lake import writer as lake_writer
from spark_channel.connectors.lake.runs import Run, all_runs
from spark_channel.connectors.lake.table import TableState
from spark_channel.connectors.lake.writer import LakeWriter
from spark_channel.errors import CommitError, SupersededError, TargetError
from spark_channel.processes import describe_owner
from tests.behaviour.exactly_once.targets import LAKES, Target, open_target

_attempts = itertools.count(1)
_ID = pa.schema([("id", pa.int64())])
NAMED = WriteContext("named", txn=("n", 1))
BATCH = WriteContext("stream-q-7", commit="job", stream=("q", 7))


@pytest.fixture(params=LAKES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _writer(target: Target) -> LakeWriter:
    writer = target.writer()
    assert isinstance(writer, LakeWriter)
    return writer


def _task(writer: LakeWriter, plan: WritePlan, *ids: int) -> Receipt:
    attempt = writer.open(plan, 0, next(_attempts))
    attempt.write(pa.record_batch({"id": pa.array(ids, pa.int64())}))
    return attempt.close()


def _stage(
    target: Target, context: WriteContext, *ids: int
) -> tuple[LakeWriter, WritePlan, list[Receipt]]:
    writer = _writer(target)
    plan = writer.prepare(context, _ID)
    return writer, plan, [_task(writer, plan, *ids)]


def _write(target: Target, job: str, *ids: int) -> None:
    writer, plan, receipts = _stage(target, WriteContext(job), *ids)
    writer.commit(plan, receipts)


def _state(target: Target) -> TableState:
    state = _writer(target).lake().open()
    assert state is not None
    return state


def _die(target: Target, plan: WritePlan) -> None:
    """The run's process is gone: its note names one that is not there."""
    notes = [Path(path) for path in target.staged() if path.endswith(f"{plan.run}.json")]  # type: ignore[attr-defined] # a part of this kind
    (note,) = notes
    gone = json.dumps({**describe_owner(), "started": "1"})
    note.write_text(json.dumps({**json.loads(note.read_text()), "process": gone}))


PROGRAM = """
import json, os, signal, sys
import pyarrow as pa
from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.lake.publish import LakePublisher
options, context, point, sign = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def stop():
    os.kill(os.getpid(), sign)
writer = load_writer(options)[0]
for name in ("txn", "stream"):
    context[name] = tuple(context[name]) if context.get(name) else None
state_class = type(writer.lake().open())
commit = state_class.commit
def committing(state, change):
    if point == "before the commit":
        stop()
    done = commit(state, change)
    if point == "before its answer":
        stop()
    return done
state_class.commit = committing
if point == "before it tidies up":
    LakePublisher.clear = lambda *_, **__: stop()
rows = pa.record_batch({"id": pa.array([1], pa.int64())})
plan = writer.prepare(WriteContext(**context), rows.schema)
if point == "before its files":
    stop()
task = writer.open(plan, 0, os.getpid())
task.write(rows)
receipts = [task.close()]
if point == "before it publishes":
    stop()
print(writer.commit(plan, receipts))
"""
POINTS = [
    "before its files",
    "before it publishes",
    "before the commit",
    "before its answer",
    "before it tidies up",
]


def _process(
    target: Target, context: WriteContext, point: str, sign: signal.Signals
) -> subprocess.Popen[str]:
    said = {
        "job": context.job,
        "txn": context.txn,
        "stream": context.stream,
        "commit": context.commit,
    }
    words = [json.dumps(target.options), json.dumps(said), point, str(int(sign))]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.parametrize("context", [NAMED, BATCH], ids=["txn", "stream"])
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_and_run_again_has_its_rows_once(
    target: Target, point: str, context: WriteContext
) -> None:
    killed = _process(target, context, point, signal.SIGKILL)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    is_published = point in ("before its answer", "before it tidies up")
    assert target.seen() == Counter([1] * is_published)
    again = context if context.stream else replace(context, job="again")
    writer, plan, receipts = _stage(target, again, 1)
    assert (plan.published_at is not None) == is_published
    writer.commit(plan, receipts)
    assert target.seen() == Counter([1])
    _write(target, "next", 2)
    assert target.seen() == Counter([1, 2])
    if (point, context) != (
        "before the commit",
        BATCH,
    ):  # which run published the batch is not known then
        assert (target.staged_by_killed or target.staged)() == []


@pytest.mark.parametrize("point", ["before its files", "before it publishes", "before the commit"])
def test_a_process_that_was_stopped_wakes_after_another_run_has_published(
    target: Target, point: str
) -> None:
    sleeper = _process(target, NAMED, point, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
        writer, plan, receipts = _stage(target, replace(NAMED, job="later"), 1)
        assert writer.commit(plan, receipts)
    finally:
        sleeper.send_signal(signal.SIGCONT)
        output, errors = sleeper.communicate(timeout=120)
    assert output == "False\n" or "another run took it over" in errors, (output, errors)
    assert target.seen() == Counter([1])
    assert (target.staged_by_killed or target.staged)() == []


def test_the_later_of_two_runs_wins_when_neither_has_a_claim_yet(target: Target) -> None:
    writer, plan, receipts = _stage(target, NAMED, 1)
    later, later_plan, later_receipts = _stage(target, replace(NAMED, job="later"), 2)
    with pytest.raises(SupersededError, match="'later' took over"):
        writer.commit(plan, receipts)
    assert later.commit(later_plan, later_receipts)
    assert target.seen() == Counter([2])
    assert target.staged() == []


def test_two_runs_that_do_not_see_each_other_publish_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a store listed notes late: the commit alone decides, and the first one is it."""
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "_remove_ended", lambda *_, **__: [])
        runs = [_stage(target, replace(NAMED, job=job), 1) for job in ("one", "two")]
    assert [writer.commit(plan, receipts) for writer, plan, receipts in runs] == [True, False]
    assert target.seen() == Counter([1])
    assert target.staged() == []


def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As releases do that take each claim before the rows, and pass notes without an identity."""
    read = Run.read

    def passing(run: Run, *place: Any) -> Any:
        return None if "deferred" in (run.about() or {}) else read(run, *place)

    monkeypatch.setattr(
        lake_writer,
        "_unclaimed",
        lambda table, *_: None if table is not None else pytest.fail("the table is there"),
    )
    monkeypatch.setattr(Run, "read", passing)


@pytest.mark.parametrize("context", [NAMED, BATCH], ids=["txn", "stream"])
@pytest.mark.parametrize("older_begins", [True, False])
def test_an_older_release_beside_this_one(
    target: Target, monkeypatch: pytest.MonkeyPatch, context: WriteContext, older_begins: bool
) -> None:
    def older(job: str) -> tuple[LakeWriter, WritePlan, list[Receipt]]:
        with monkeypatch.context() as patch:
            _as_before(patch)
            return _stage(target, replace(context, job=job), 1)

    def newer(job: str) -> tuple[LakeWriter, WritePlan, list[Receipt]]:
        return _stage(target, replace(context, job=job), 1)

    runs = [(older if older_begins else newer)("first"), (newer if older_begins else older)("then")]
    with monkeypatch.context() as patch:
        if older_begins:
            _as_before(patch)
        with pytest.raises(SupersededError, match="'then' took over"):
            runs[0][0].commit(*runs[0][1:])
    assert target.seen() == Counter()
    with monkeypatch.context() as patch:
        if not older_begins:
            _as_before(patch)
        assert runs[1][0].commit(*runs[1][1:])
    assert target.seen() == Counter([1])
    _write(target, "next", 2)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_an_older_release_leaves_the_files_of_a_run_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its process seems to have ended: only who knows that its claim comes late can fence it."""
    writer, plan, receipts = _stage(target, NAMED, 1)
    _die(target, plan)
    with monkeypatch.context() as patch:
        _as_before(patch)
        other, other_plan, other_receipts = _stage(target, WriteContext("o", txn=("o", 1)), 2)
        other.commit(other_plan, other_receipts)
    assert writer.commit(plan, receipts)
    assert target.seen() == Counter([1, 2])


def test_a_claim_that_an_older_release_left_open_is_taken_over(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _as_before(patch)
        stale, plan, receipts = _stage(target, NAMED, 1)
    later, later_plan, later_receipts = _stage(target, replace(NAMED, job="later"), 1)
    assert later_plan.held is not None
    assert later_plan.held.epoch == 2
    assert later.commit(later_plan, later_receipts)
    assert not stale.commit(plan, receipts)
    assert target.seen() == Counter([1])


def test_a_commit_that_is_on_its_way_when_the_run_is_found_dead_is_rejected(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(target, "before", 1)
    sleeper, plan, receipts = _stage(target, NAMED, 2)
    state_class = type(_state(target))
    original = state_class.commit
    answers: list[bool] = []

    def late(self: TableState, change: Any) -> bool:
        if change.job == "named" and not answers:
            answers.append(True)
            _die(target, plan)
            files = {path: path.read_bytes() for path in map(Path, target.staged())}
            _stage(target, WriteContext("other"), 3)
            for path, data in files.items():
                if path.suffix == ".parquet":  # the request has looked at them before
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
            answers[:] = [bool(original(self, change))]
            return answers[0]
        return bool(original(self, change))

    monkeypatch.setattr(state_class, "commit", late)
    with pytest.raises(SupersededError):
        sleeper.commit(plan, receipts)
    assert answers == [False]
    assert target.seen() == Counter([1])


def test_a_run_whose_files_are_being_removed_publishes_none_of_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that found it dead has fenced it, and sleeps before it removes the files; a task's sign of life makes the
    run's note again.
    """
    _write(target, "before", 1)
    sleeper, plan, receipts = _stage(target, NAMED, 2)
    _die(target, plan)
    remove, woke = Run.remove, list[str]()

    def slow(self: Run, keep: Any = ()) -> None:
        if self.name == plan.run and not woke:  # type: ignore[attr-defined] # a part of this kind
            woke.append(self.name)
            with pytest.raises(SupersededError):
                sleeper.commit(plan, receipts)
        remove(self, keep)

    monkeypatch.setattr(Run, "remove", slow)
    _write(target, "next", 3)
    assert woke
    assert target.seen() == Counter([1, 3])
    assert target.staged() == []


def test_a_run_that_ended_leaves_the_claim_to_runs_that_live(target: Target) -> None:
    """A later run has begun; the job that finds the earlier one dead must not take the claim from it."""
    _, plan, _ = _stage(target, NAMED, 1)
    _die(target, plan)
    later, later_plan, later_receipts = _stage(target, replace(NAMED, job="later"), 1)
    _write(target, "next", 2)
    assert later.commit(later_plan, later_receipts)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_the_tasks_of_a_batch_are_published_together_or_end_together(target: Target) -> None:
    """Each of them begins a run of one name."""
    writer = _writer(target)
    plans = [writer.prepare(BATCH, _ID) for _ in range(2)]
    receipts = [_task(writer, plan, number) for number, plan in enumerate(plans)]
    writer.abort(plans[0], receipts)
    assert target.staged() == []
    with pytest.raises((SupersededError, CommitError)):
        writer.commit(plans[1], receipts[1:])
    plans = [writer.prepare(BATCH, _ID) for _ in range(2)]
    receipts = [_task(writer, plan, number) for number, plan in enumerate(plans)]
    writer.commit(plans[0], receipts)
    assert target.seen() == Counter([0, 1])
    assert target.staged() == []


def test_a_stopped_query_finds_the_batch_after_its_own(target: Target) -> None:
    old, plan, receipts = _stage(target, BATCH, 1)
    for number in (7, 8):
        batch = replace(BATCH, job=f"stream-q-{number}", stream=("q", number))
        writer, new_plan, new_receipts = _stage(target, batch, number)
        writer.commit(new_plan, new_receipts)
    old.commit(plan, receipts)
    assert target.seen() == Counter([7, 8])
    assert target.staged() == []


def test_a_published_batch_keeps_the_files_of_a_task_whose_plan_is_aborted(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver did not tidy up; the note of another task's run names what is published."""
    writer = _writer(target)
    plans = [writer.prepare(BATCH, _ID) for _ in range(2)]
    receipts = [_task(writer, plan, number) for number, plan in enumerate(plans)]
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        writer.commit(plans[0], receipts)
    writer.abort(plans[1], None)
    assert target.seen() == Counter([0, 1])


def test_an_aborted_run_that_has_published_keeps_the_files_of_earlier_versions(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, plan, receipts = _stage(target, NAMED, 1)
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        patch.setattr(LakeWriter, "_remove_ended", lambda *_, **__: [])
        writer.commit(plan, receipts)
        before = set(tmp_path.rglob(f"{plan.run}/*.parquet"))  # type: ignore[attr-defined] # a part of this kind
        other, other_plan, other_receipts = _stage(target, WriteContext("o", overwrite=True), 2)
        other.commit(other_plan, other_receipts)
    writer.abort(plan, None)
    assert before
    assert all(path.exists() for path in before)


def test_a_published_batch_whose_claim_a_job_does_not_know_keeps_its_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the job spells the table in another way; the batch's driver was killed before it tidied up."""
    writer = _writer(target)
    plans = [writer.prepare(BATCH, _ID) for _ in range(2)]
    receipts = [_task(writer, plan, number) for number, plan in enumerate(plans)]
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        writer.commit(plans[0], receipts)
    state_class = type(_state(target))
    own_claim = state_class.own_claim

    def unknown(self: TableState, identity: Identity, *about: Any, **more: Any) -> Any:
        return None if identity.kind == "stream" else own_claim(self, identity, *about, **more)

    monkeypatch.setattr(state_class, "own_claim", unknown)
    dead = {plan.run for plan in plans}  # type: ignore[attr-defined] # a part of this kind
    monkeypatch.setattr(Run, "is_dead", lambda run, _: run.name in dead)
    _write(target, "next", 3)
    assert target.seen() == Counter([0, 1, 3])


def test_the_claim_of_a_stream_is_held_while_a_batch_is_written(target: Target) -> None:
    writer, plan, receipts = _stage(target, BATCH, 7)
    writer.commit(plan, receipts)
    (before,) = (claim for claim in writer.kept_claims() if claim.kind == "stream")
    assert not before.is_held
    context = replace(BATCH, job="stream-q-8", stream=("q", 8))
    later, later_plan, later_receipts = _stage(target, context, 8)
    (kept,) = (claim for claim in writer.kept_claims() if claim.kind == "stream")
    assert (kept.is_held, kept.run) == (True, "stream-q-8")
    assert writer.forget_claims([before]) == []
    later.commit(later_plan, later_receipts)
    assert target.seen() == Counter([7, 8])
    assert len(writer.forget_claims([before])) == 1


def test_a_forgotten_publication_keeps_its_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died before it tidied up; a rerun, which the claim no longer holds off, takes the write over."""
    writer, plan, receipts = _stage(target, NAMED, 1)
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        writer.commit(plan, receipts)
    kept = [claim for claim in writer.kept_claims() if claim.kind == "txn"]
    assert len(writer.forget_claims(kept)) == 1
    again, again_plan, again_receipts = _stage(target, replace(NAMED, job="again"), 1)
    again.commit(again_plan, again_receipts)
    assert target.seen() == Counter([1, 1])
    assert target.staged() == []


def test_a_lost_answer_of_a_commit_that_another_run_made_is_a_no_op(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, plan, receipts = _stage(target, NAMED, 1)
    state_class = type(_state(target))
    original = state_class.commit

    def lost(self: TableState, change: Any) -> bool:
        if change.job != "named":
            return bool(original(self, change))
        later, later_plan, later_receipts = _stage(target, replace(NAMED, job="later"), 1)
        assert later.commit(later_plan, later_receipts)
        assert not original(self, change)
        raise TargetError("the connection was lost")

    monkeypatch.setattr(state_class, "commit", lost)
    assert writer.commit(plan, receipts) is False
    assert target.seen() == Counter([1])
    assert target.staged() == []


def test_columns_that_are_added_first_make_the_claim_come_first(target: Target) -> None:
    writer = target.writer(onSchemaChange="evolve")
    rows = pa.record_batch({"id": pa.array([1], pa.int64()), "s": ["x"]})
    plan = writer.prepare(NAMED, rows.schema)
    identity = Identity(_writer(target).lake().shown, "txn", "n", 1)
    claim = _state(target).claim(identity, "named")
    assert isinstance(claim, Claim)
    assert (claim.owner, claim.epoch) == ("named", 1)
    writer.abort(plan, None)
    assert target.staged() == []


def _versions(target: Target) -> int:
    table: Any = _state(target)._table  # type: ignore[attr-defined] # of both formats
    metadata = table.metadata
    return int(table.version()) if callable(metadata) else len(metadata.snapshots)


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_named_write_makes_one_version(target: Target, mode: str) -> None:
    _write(target, "before", 1, 2)
    before = _versions(target)
    more = {"writeMode": "upsert", "keyColumns": "id"} if mode == "upsert" else {}
    writer = target.writer(**more)
    assert isinstance(writer, LakeWriter)
    plan = writer.prepare(replace(NAMED, overwrite=mode == "overwrite"), _ID)
    assert writer.commit(plan, [_task(writer, plan, 2, 3)])
    assert _versions(target) - before == 1
    rows = {"append": [1, 2, 2, 3], "overwrite": [2, 3], "upsert": [1, 2, 3]}
    assert target.seen() == Counter(rows[mode])
    assert target.staged() == []


@pytest.mark.parametrize("context", [NAMED, BATCH], ids=["txn", "stream"])
def test_a_commit_whose_answer_is_lost_is_published(
    target: Target, monkeypatch: pytest.MonkeyPatch, context: WriteContext
) -> None:
    _write(target, "before", 1)
    before = _versions(target)
    writer, plan, receipts = _stage(target, context, 2)
    state_class = type(_state(target))
    original = state_class.commit

    def lost(self: TableState, change: Any) -> bool:
        assert original(self, change)
        raise TargetError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(state_class, "commit", lost)
        assert writer.commit(plan, receipts) is True
    assert _versions(target) - before == 1
    _, again, _ = _stage(target, replace(context, job="again"), 2)
    assert again.published_at is not None
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_a_commit_that_was_not_written_never_is(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request arrives after the run has been told that it failed."""
    _write(target, "before", 1)
    writer, plan, receipts = _stage(target, NAMED, 2)
    state_class = type(_state(target))
    original, late = state_class.commit, list[tuple[TableState, Any]]()

    def lost(self: TableState, change: Any) -> bool:
        if change.job != "named" or late:
            return bool(original(self, change))
        late.append((self, change))
        raise TargetError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(state_class, "commit", lost)
        with pytest.raises(CommitError, match="the rows that it had before"):
            writer.commit(plan, receipts)
    ((state, change),) = late
    assert state.commit(change) is False
    writer.abort(plan, list(receipts))
    again, again_plan, again_receipts = _stage(target, replace(NAMED, job="again"), 2)
    assert again.commit(again_plan, again_receipts)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_a_run_that_sleeps_while_its_write_is_published_and_forgotten_adds_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has no claim then, as when the run began."""
    sleeper, plan, receipts = _stage(target, NAMED, 1)
    with monkeypatch.context() as patch:  # its listing was late, and it dies before it tidies up
        patch.setattr(LakeWriter, "_remove_ended", lambda *_, **__: [])
        patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
        later, later_plan, later_receipts = _stage(target, replace(NAMED, job="later"), 1)
        assert later.commit(later_plan, later_receipts)
    kept = [claim for claim in later.kept_claims() if claim.kind == "txn"]
    assert len(later.forget_claims(kept)) == 1
    with pytest.raises(SupersededError):
        sleeper.commit(plan, receipts)
    assert target.seen() == Counter([1])


def test_a_run_whose_rival_gave_up_keeps_what_it_publishes_while_a_job_looks(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That job has read a claim by which the run has ended, and which the log forgets then."""
    with monkeypatch.context() as patch:
        patch.setattr(LakeWriter, "_tidy", lambda *_, **__: None)
        sleeper, plan, receipts = _stage(target, NAMED, 1)
        patch.setattr(LakeWriter, "_remove_ended", lambda *_, **__: [])
        rival, rival_plan, _ = _stage(target, NAMED, 5)
        lake = rival.lake()
        table = lake.open()
        assert table is not None
        identity = Identity(lake.shown, "txn", "n", 1)
        taken = rival._take(lake, table, replace(NAMED, job="rival"), identity, "")
        rival_plan = replace(rival_plan, held=taken.held, table="")  # type: ignore[call-arg] # a part of this kind
        rival.abort(rival_plan, None)
    answers: list[str] = []

    def later(*place: Any) -> Any:
        found = all_runs(*place)
        if not answers:
            answers.append("looked")
            with monkeypatch.context() as patch:
                patch.setattr(LakeWriter, "_remove_ended", lambda *_, **__: [])
                patch.setattr(LakeWriter, "clear", lambda *_, **__: None)
                other = _stage(target, WriteContext("v", txn=("n", 17)), 17)
                other[0].commit(*other[1:])
                try:
                    answers.append(str(sleeper.commit(plan, receipts)))
                except SupersededError:
                    answers.append("superseded")
        return found

    monkeypatch.setattr(publish, "all_runs", later)
    _write(target, "next", 2)
    # A Delta log has one place for both versions.
    is_published = target.kind == "delta"
    assert answers == ["looked", "True" if is_published else "superseded"]
    assert target.seen() == Counter([1] * is_published + [2, 17])


def test_a_batch_that_begins_while_a_job_looks_at_an_earlier_version_keeps_its_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(number: int) -> tuple[LakeWriter, WritePlan, list[Receipt]]:
        context = WriteContext(f"stream-q-{number}", commit="job", stream=("q", number))
        return _stage(target, context, number)

    def published(number: int) -> None:
        writer, plan, receipts = batch(number)
        writer.commit(plan, receipts)

    published(0)
    begun: list[tuple[LakeWriter, WritePlan, list[Receipt]]] = []

    def later(*place: Any) -> Any:
        monkeypatch.setattr(publish, "all_runs", all_runs)
        published(1)
        begun.append(batch(2))
        return all_runs(*place)

    monkeypatch.setattr(publish, "all_runs", later)
    _write(target, "other", 7)
    ((writer, plan, receipts),) = begun
    writer.commit(plan, receipts)
    assert target.seen() == Counter([0, 1, 2, 7])


def test_a_version_whose_claim_was_given_back_has_it_before_its_rows(target: Target) -> None:
    """A log may forget such a claim, and the epoch that would show who has had it since."""
    _stage(target, NAMED, 1)
    rival, rival_plan, _ = _stage(target, replace(NAMED, job="rival"), 1)
    rival.abort(rival_plan, None)
    before = _versions(target)
    writer, plan, receipts = _stage(target, replace(NAMED, job="again"), 1)
    assert _versions(target) - before == 1
    assert writer.commit(plan, receipts)
    assert target.seen() == Counter([1])
    assert target.staged() == []


@pytest.mark.parametrize("context", [NAMED, BATCH], ids=["txn", "stream"])
def test_a_run_that_seemed_dead_is_fenced_by_the_log_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch, context: WriteContext
) -> None:
    """Whatever it sees of notes and files: on a network disk they may be those of a minute ago."""
    _write(target, "before", 1)
    sleeper, plan, receipts = _stage(target, context, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "is_dead", lambda run, _: run.name == plan.run)  # type: ignore[attr-defined] # a part of this kind
        _write(target, "next", 3)
    monkeypatch.setattr(publish, "live_runs", lambda *_: {plan.run})  # type: ignore[attr-defined] # a part of this kind
    monkeypatch.setattr(publish, "lost_files", lambda *_: [])
    with pytest.raises(SupersededError):
        sleeper.commit(plan, receipts)
    assert target.seen() == Counter([1, 3])


@pytest.mark.parametrize("context", [NAMED, BATCH], ids=["txn", "stream"])
def test_a_run_that_seemed_dead_is_fenced_by_its_note_where_the_log_has_forgotten_it(
    target: Target, monkeypatch: pytest.MonkeyPatch, context: WriteContext
) -> None:
    """And who found it dead sleeps before it removes the files."""
    _write(target, "before", 1)
    sleeper, plan, receipts = _stage(target, context, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "is_dead", lambda run, _: run.name == plan.run)  # type: ignore[attr-defined] # a part of this kind
        patch.setattr(Run, "remove", lambda *_, **__: None)
        _write(target, "next", 3)
    state_class = type(_state(target))
    own_claim = state_class.own_claim

    def forgetful(self: TableState, *identity: Any, brief: bool = False) -> Any:
        return None if brief else own_claim(self, *identity)

    monkeypatch.setattr(state_class, "own_claim", forgetful)
    with pytest.raises(SupersededError):
        sleeper.commit(plan, receipts)
    assert target.seen() == Counter([1, 3])


class TestAnotherWriterOfDelta:
    """It keeps the last version of each application id, as the protocol says."""

    @pytest.fixture
    def delta(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
        for target in open_target("delta", request, tmp_path):
            target.reset(True)
            yield target

    @staticmethod
    def _other(target: Target, version: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        properties = CommitProperties(app_transactions=[Transaction("n", version)])
        rows = pa.table({"id": pa.array([70 + version], pa.int64())})
        write_deltalake(target.options["path"], rows, mode="append", commit_properties=properties)

    def test_a_run_of_an_earlier_version_holds_no_other_job_up(self, delta: Target) -> None:
        _stage(delta, NAMED, 1)
        self._other(delta, 3)
        _write(delta, "next", 2)
        assert delta.seen() == Counter([73, 2])

    def test_a_dead_run_of_an_earlier_version_is_removed(self, delta: Target) -> None:
        _, plan, _ = _stage(delta, NAMED, 1)
        _die(delta, plan)
        self._other(delta, 3)
        _write(delta, "next", 2)
        assert delta.seen() == Counter([73, 2])
        assert delta.staged() == []

    def test_a_version_that_it_wrote_meanwhile_is_not_written_again(self, delta: Target) -> None:
        writer, plan, receipts = _stage(delta, NAMED, 1)
        self._other(delta, 1)
        assert writer.commit(plan, receipts) is False
        assert delta.seen() == Counter([71])
        writer.abort(plan, list(receipts))
        _write(delta, "next", 2)
        assert delta.seen() == Counter([71, 2])
        assert delta.staged() == []

    def test_a_later_version_that_it_wrote_meanwhile_is_an_error(self, delta: Target) -> None:
        writer, plan, receipts = _stage(delta, NAMED, 1)
        self._other(delta, 3)
        before = _versions(delta)
        with pytest.raises(CommitError, match="cannot be known"):
            writer.commit(plan, receipts)
        writer.abort(plan, list(receipts))
        assert _versions(delta) == before
        with pytest.raises(TargetError, match="cannot be known"):
            _stage(delta, replace(NAMED, job="again"), 1)
        _write(delta, "next", 2)
        assert delta.seen() == Counter([73, 2])
        assert delta.staged() == []

    def test_a_later_version_that_it_wrote_leaves_a_lost_commit_lost(
        self, delta: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer, plan, receipts = _stage(delta, NAMED, 1)
        state_class = type(_state(delta))

        def lost(*_: Any) -> bool:
            monkeypatch.undo()
            self._other(delta, 3)
            raise TargetError("the connection was lost")

        monkeypatch.setattr(state_class, "commit", lost)
        with pytest.raises(CommitError, match="the rows that it had before"):
            writer.commit(plan, receipts)
        writer.abort(plan, list(receipts))
        assert delta.seen() == Counter([73])
        assert delta.staged() == []
