"""The commit protocol: all or nothing, once, and nothing left behind."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors import TaskWriter
from spark_channel.connectors.files import job_folders, parts, publish, store, writer
from spark_channel.connectors.files.plan import FilesPlan
from spark_channel.connectors.files.published_versions import PublishedVersions
from spark_channel.connectors.files.store import LocalStore, Store
from spark_channel.connectors.files.writer import FilesWriter
from spark_channel.errors import CommitError, OptionError, SourceError, SupersededError, TargetError
from tests.connectors.files.helpers import (
    FORMATS,
    FolderObjects,
    leftovers,
    numbers,
    prepare,
    read,
    reader_of,
    stage,
    state,
    visible,
    write,
    writer_of,
)


@pytest.fixture(params=["disk", "objects"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test on a local disk, and on a store without renames, which a folder stands for."""
    if request.param == "objects":
        monkeypatch.setattr(writer, "store_of", FolderObjects)
    return str(request.param)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def manifest(path: Path) -> dict[str, Any]:
    return state(path)


@pytest.mark.parametrize("form", FORMATS)
def test_append_and_overwrite(kind: str, target: Path, form: str) -> None:
    write(form, target, numbers(1, 2), numbers(3), job="a")
    assert visible(form, target) == [1, 2, 3]
    write(form, target, numbers(4), job="b")
    assert visible(form, target) == [1, 2, 3, 4]
    write(form, target, numbers(5), job="c", context={"overwrite": True}, retention="0")
    assert visible(form, target) == [5]
    assert len([p for p in target.iterdir() if p.name.startswith("part-")]) == 1
    assert leftovers(target) == []
    assert set(manifest(target)["jobs"]) == {"a", "b", "c"}


def test_the_manifest_says_what_is_there(kind: str, target: Path) -> None:
    write("parquet", target, numbers(1, 2), job="a", context={"txn": ("app", 7)})
    found = manifest(target)
    (file,) = found["files"]
    assert file["rows"] == 2
    assert file["nbytes"] == (target / file["path"]).stat().st_size
    assert found["schemas"][file["schema"]]["columns"] == {"n": "int64"}
    assert found["versions"]["app"]["ranges"] == [[7, 7]]
    assert found["claims"] == {}
    assert reader_of("parquet", target).split(1)[0].rows == 2


def test_staged_rows_are_not_seen(kind: str, target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema, "b", overwrite=True)
    receipts = stage(out, plan, [numbers(2), numbers(3)])
    assert visible("csv", target) == [1]
    out.commit(plan, receipts)
    assert visible("csv", target) == [2, 3]


def test_staged_rows_of_a_first_write_are_not_seen(kind: str, target: Path) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(2)])
    with pytest.raises(SourceError, match="holds no data files"):
        read("csv", target)
    out.commit(plan, receipts)
    assert visible("csv", target) == [2]


def test_foreign_files_stay_in_an_append_and_go_in_an_overwrite(kind: str, target: Path) -> None:
    (target / "k=1").mkdir(parents=True)
    (target / "k=1" / "x.json").write_text('{"n": 1}\n')
    (target / "k=1" / ".x.json.crc").write_text("")
    (target / "_SUCCESS").write_text("")
    write("json", target, numbers(2), job="a")
    assert sorted(read("json", target, recursiveFileLookup="true").column("n").to_pylist()) == [
        1,
        2,
    ]
    write("json", target, numbers(3), job="b", context={"overwrite": True}, retention="0")
    assert visible("json", target) == [3]
    assert not list(target.glob("k=1/*.json"))
    assert kind == "objects" or not (target / "k=1").exists()


def test_files_put_there_by_hand_are_not_seen_unless_asked_for(target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    pq.write_table(numbers(9), target / "extra.parquet")
    assert visible("parquet", target) == [1]
    assert sorted(read("parquet", target, useManifest="false").column("n").to_pylist()) == [1, 9]
    assert sorted(read("parquet", target / "*.parquet").column("n").to_pylist()) == [1]


def test_a_listed_file_that_is_gone_is_an_error(target: Path) -> None:
    write("parquet", target, numbers(1), numbers(2))
    next(target.glob("part-*")).unlink()
    with pytest.raises(SourceError, match=r"listed in the log.*useManifest=false"):
        read("parquet", target)


def test_sparks_own_success_file_ends_our_manifest(target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    pq.write_table(numbers(9), target / "part-00000-of-spark.parquet")
    (target / "_SUCCESS").write_text("")
    assert visible("parquet", target) == [1, 9]
    write("parquet", target, numbers(2), job="b")
    assert visible("parquet", target) == [1, 2, 9]


def test_commit_and_abort_any_number_of_times(kind: str, target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "b")
    receipts = stage(out, plan, [numbers(2)])
    for _ in range(2):
        out.commit(plan, receipts)
    for _ in range(2):
        out.abort(plan, None)
        out.abort(plan, [None, *receipts])
    assert visible("parquet", target) == [1, 2]
    lost = prepare(out, numbers().schema, "c")
    stage(out, lost, [numbers(3)])
    for _ in range(2):
        out.abort(lost, None)
    assert visible("parquet", target) == [1, 2]
    assert leftovers(target) == []


def test_abort_of_a_first_write_leaves_a_log_without_files(kind: str, tmp_path: Path) -> None:
    out = writer_of("parquet", tmp_path / "a" / "b" / "out")
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(1)])
    out.abort(plan, list(receipts))
    out.abort(plan, None)
    left = {p.parent.name for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"_spark_channel"}
    assert leftovers(tmp_path / "a" / "b" / "out") == []
    with pytest.raises(SourceError, match="holds no data files"):
        read("parquet", tmp_path / "a" / "b" / "out")


def test_only_the_given_receipts_are_published(kind: str, target: Path) -> None:
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema)
    first = stage(out, plan, [numbers(1), numbers(2)], attempt=10)
    second = stage(out, plan, [numbers(1), numbers(2)], attempt=20)
    out.commit(plan, [first[0], second[1]])
    assert visible("parquet", target) == [1, 2]
    assert len(list(target.glob("part-*"))) == 2
    assert leftovers(target) == []


def test_a_rolled_back_attempt_leaves_nothing(kind: str, target: Path) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    opened = out.open(plan, 0, 0)
    opened.write(numbers(1).to_batches()[0])
    opened.rollback()
    opened.rollback()
    assert [p for p in target.rglob("part-*") if p.is_file()] == []
    out.commit(plan, stage(out, plan, [numbers(2)], attempt=1))
    assert visible("csv", target) == [2]


def fill(opened: TaskWriter) -> None:
    opened.write(numbers(2).to_batches()[0])
    opened.close()


def test_a_task_that_outlives_its_job_hears_of_it(kind: str, target: Path) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    early, late = out.open(plan, 0, 0), out.open(plan, 1, 1)
    early.write(numbers(1).to_batches()[0])
    out.abort(plan, None)
    for opened in (early, late):
        with pytest.raises(TargetError, match=r"aborted|cannot be written"):
            fill(opened)
        opened.rollback()
    assert leftovers(target) == []
    assert not list(target.glob("part-*"))


def test_a_version_is_published_once(kind: str, target: Path) -> None:
    for job in ("a", "b"):
        plan = write("parquet", target, numbers(1), job=job, context={"txn": ("nightly", 7)})
    assert plan.published_at is not None
    write("parquet", target, numbers(2), job="c", context={"txn": ("nightly", 8)})
    write("parquet", target, numbers(3), job="d", context={"txn": ("other", 7)})
    assert visible("parquet", target) == [1, 2, 3]
    assert leftovers(target) == []


def test_of_two_runs_of_one_version_the_later_wins(kind: str, target: Path) -> None:
    """The first hangs after its tasks, the scheduler starts another, the first wakes up."""
    out = writer_of("parquet", target)
    plans = [prepare(out, numbers().schema, job, txn=("app", 1)) for job in ("a", "b")]
    receipts = [stage(out, plans[1], [numbers(1)])]
    with pytest.raises(SupersededError, match="run 'b' took over"):
        stage(out, plans[0], [numbers(1)])
    with pytest.raises(SupersededError, match="run 'b' took over") as caught:
        out.commit(plans[0], [])
    assert (caught.value.owner, caught.value.successor) == ("a", "b")
    out.commit(plans[1], receipts[0])
    assert visible("parquet", target) == [1]
    assert leftovers(target) == []


def test_a_run_whose_folder_goes_before_it_is_ready_says_who_took_over(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target)
    put = LocalStore.put

    def overtaken(self: LocalStore, path: str, data: bytes) -> None:
        if path.endswith("job.json"):
            monkeypatch.undo()
            prepare(out, numbers().schema, "b", txn=("n", 1))
        put(self, path, data)

    monkeypatch.setattr(LocalStore, "put", overtaken)
    with pytest.raises(SupersededError, match="run 'b' took over"):
        prepare(out, numbers().schema, "a", txn=("n", 1))


def test_a_run_that_wakes_up_after_another_published_adds_nothing(kind: str, target: Path) -> None:
    out = writer_of("parquet", target)
    first = prepare(out, numbers().schema, "a", txn=("app", 1))
    receipts = stage(out, first, [numbers(1)])
    write("parquet", target, numbers(1), job="b", context={"txn": ("app", 1)})
    out.commit(first, receipts)
    out.abort(first, receipts)
    assert visible("parquet", target) == [1]
    assert leftovers(target) == []
    assert len(list(target.glob("part-*"))) == 1


def test_the_hole_with_commit_by_task(kind: str, target: Path) -> None:
    """Driver A claims the pair and hangs, B publishes it, A's tasks wake up."""
    write("parquet", target, numbers(0), job="before")
    out = writer_of("parquet", target)
    first = prepare(out, numbers().schema, "a", commit="task", txn=("n", 1))
    sleeping = out.open(first, 0, 0)
    sleeping.write(numbers(1).to_batches()[0])
    write("parquet", target, numbers(1), job="b", context={"txn": ("n", 1), "commit": "task"})
    with pytest.raises(SupersededError):
        sleeping.close()
    sleeping.rollback()
    with pytest.raises(SupersededError):
        fill(out.open(first, 1, 1))
    out.abort(first, None)
    assert visible("parquet", target) == [0, 1]
    assert leftovers(target) == []


def test_versions_stay_published_whatever_comes_after(target: Path) -> None:
    known = PublishedVersions()
    for version in range(0, 500, 2):
        known = known.having(version, f"at {version}")
    again = PublishedVersions.from_json(json.loads(json.dumps(known.to_json())))
    assert again.published_at(498) == "at 498"
    assert again.published_at(4) == "an unknown time"
    assert again.published_at(5) is None, "a backfill of a version that was left out is written"
    dense = PublishedVersions()
    for version in range(10_000):
        dense = dense.having(version, "")
    assert dense.ranges == ((0, 9_999),)


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_write_leaves_a_schema(kind: str, target: Path, form: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    for job in ("a", "b"):
        write(form, target, schema.empty_table(), schema.empty_table(), job=job)
    found = read(form, target)
    assert found.num_rows == 0
    assert found.schema.equals(schema)
    assert len([p for p in target.iterdir() if p.name.startswith("part-")]) == 1


def test_an_empty_overwrite_empties(kind: str, target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    write("parquet", target, numbers(), job="b", context={"overwrite": True})
    assert visible("parquet", target) == []


def test_two_jobs_that_append_at_once_keep_both(kind: str, target: Path) -> None:
    jobs = 8
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            write("csv", target, numbers(number), job=f"j{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert visible("csv", target) == list(range(jobs))
    assert leftovers(target) == []


def test_a_run_that_always_comes_second_ends_with_an_error(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target, commitTimeout="0.2")
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(1)])
    with monkeypatch.context() as patch:
        for base in (LocalStore, FolderObjects):
            patch.setattr(base, "put_new", lambda *_: False)
        with pytest.raises(
            CommitError, match=r"other jobs wrote the log .* raise option commitTimeout"
        ):
            out.commit(plan, receipts)
    out.commit(plan, receipts)
    assert visible("parquet", target) == [1]
    assert leftovers(target) == []


def test_another_format_cannot_be_appended(target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    with pytest.raises(TargetError, match="holds parquet files"):
        write("csv", target, numbers(2), job="b")
    write("csv", target, numbers(2), job="c", context={"overwrite": True})
    assert visible("csv", target) == [2]


def test_commit_by_task(kind: str, target: Path) -> None:
    write("parquet", target, numbers(0), job="a")
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "b", commit="task")
    receipts = stage(out, plan, [numbers(1), numbers(2)])
    assert visible("parquet", target) == [0, 1, 2]
    again = stage(out, plan, [numbers(1)], attempt=5)
    assert visible("parquet", target) == [0, 1, 2]
    out.commit(plan, [again[0], receipts[1]])
    out.commit(plan, receipts)
    assert visible("parquet", target) == [0, 1, 2]
    assert leftovers(target) == []


def test_commit_by_task_keeps_what_was_committed_when_the_job_fails(
    kind: str, target: Path
) -> None:
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "b", commit="task", txn=("app", 1))
    stage(out, plan, [numbers(1)])
    loose = out.open(plan, 1, 7)
    loose.write(numbers(2).to_batches()[0])
    out.abort(plan, None)
    with pytest.raises(TargetError):
        loose.close()
    loose.rollback()
    assert visible("parquet", target) == [1]
    with pytest.raises(
        TargetError,
        match="transaction id 'app:1' is partially committed: run 'b'",
    ):
        prepare(out, numbers().schema, "c", commit="task", txn=("app", 1))
    assert leftovers(target) == []


def test_commit_by_task_with_overwrite_empties_first(kind: str, target: Path) -> None:
    write("parquet", target, numbers(0), job="a")
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "b", commit="task", overwrite=True)
    receipts = stage(out, plan, [numbers(1)])
    assert visible("parquet", target) == [1]
    out.commit(plan, receipts)
    assert visible("parquet", target) == [1]


def test_a_commit_without_its_staged_files_changes_nothing(kind: str, target: Path) -> None:
    write("parquet", target, numbers(0), job="a")
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "b")
    receipts = stage(out, plan, [numbers(1), numbers(2)])
    next(target.rglob("part-00001-b-*")).unlink()
    with pytest.raises(CommitError, match=r"missing or incomplete.*The target is unchanged"):
        out.commit(plan, receipts)
    assert visible("parquet", target) == [0]


def test_files_roll(target: Path) -> None:
    write("csv", target, numbers(*range(10)), maxRecordsPerFile="4")
    assert sorted(len(p.read_text().splitlines()) - 1 for p in target.glob("part-*")) == [2, 4, 4]
    assert visible("csv", target) == list(range(10))
    write(
        "json",
        target.parent / "j",
        *[numbers(*range(k, k + 5)) for k in range(3)],
        maxBytesPerFile="10",
    )
    assert all(p.stat().st_size <= 60 for p in (target.parent / "j").glob("part-*"))


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, `except Exception` and clean-up included."""


CHANGES = (
    "create",
    "seal",
    "put",
    "put_new",
    "link",
    "rename",
    "sync",
    "remove",
    "remove_tree",
    "remove_empty",
    "make",
)


class Fault:
    """Makes the nth change of the file system fail, or kill: all changes after a kill are impossible."""

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.left = at
        self.error = error
        self.fired = False

    def install(self, base: type[Store]) -> type[Store]:
        def faulty(name: str) -> Callable[..., Any]:
            original = getattr(base, name)

            def call(this: Store, *args: Any) -> Any:
                if self.fired and isinstance(self.error(), Killed):
                    raise Killed
                if self.left == 0 and not self.fired:
                    self.fired = True
                    raise self.error()
                self.left -= 1
                return original(this, *args)

            return call

        return type(
            "Faulty", (base,), {name: faulty(name) for name in CHANGES if hasattr(base, name)}
        )


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@settings(deadline=None, max_examples=60)
@given(
    at=st.integers(0, 40),
    kills=st.booleans(),
    objects=st.booleans(),
    overwrite=st.booleans(),
    gathers=st.booleans(),
    before=st.sampled_from(["nothing", "ours", "foreign"]),
)
def test_a_fault_at_any_point_shows_the_old_rows_or_the_new(
    tmp_path_factory: pytest.TempPathFactory,
    at: int,
    kills: bool,
    objects: bool,
    overwrite: bool,
    gathers: bool,
    before: str,
) -> None:
    target = tmp_path_factory.mktemp("fault") / "out"
    base: type[Store] = FolderObjects if objects else LocalStore
    old: list[int] = []
    if before == "ours":
        write("csv", target, numbers(1), numbers(2), job="old")
        old = [1, 2]
    elif before == "foreign":
        target.mkdir()
        (target / "x.csv").write_text("n\n1\n")
        old = [1]
    new = [7, 8, 9] if overwrite else sorted([*old, 7, 8, 9])
    fault = Fault(at, Killed if kills else disk_full)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "store_of", fault.install(base))
        published = False
        out = writer_of("csv", target, retention="0")
        try:
            plan = prepare(out, numbers().schema, "new", overwrite=overwrite, gathers=gathers)
            try:
                receipts = stage(out, plan, [numbers(7), numbers(8), numbers(9)])
                out.commit(plan, receipts)
                published = True
            except (TargetError, Killed):
                if not kills:
                    out.abort(plan, None)
        except (TargetError, Killed):
            pass
    seen = visible("csv", target) if target.exists() and _holds_data(target) else []
    assert seen in (old, new)
    if published:
        assert seen == new
    if not kills and not published:
        assert seen == old
    # The next job clears up, whoever is to blame; the dead one's process is gone.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "store_of", base)
        patch.setattr(job_folders, "is_alive", lambda *_: "dead")
        patch.setattr(store, "is_running", lambda _: False)
        write("csv", target, numbers(10), job="next", retention="0")
    assert visible("csv", target) == sorted([*seen, 10])
    assert leftovers(target) == []
    listed = {file["path"] for file in manifest(target)["files"]}
    assert {p.name for p in target.iterdir() if p.is_file()} == {*listed, "_SUCCESS"}


def _holds_data(target: Path) -> bool:
    try:
        reader_of("csv", target).schema()
    except SourceError:
        return False
    return True


@settings(deadline=None, max_examples=25)
@given(data=st.data(), objects=st.booleans())
def test_any_interleaving_of_jobs_and_attempts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, objects: bool
) -> None:
    """A model: the rows of committed jobs, in whatever order attempts, commits and aborts come."""
    target = tmp_path_factory.mktemp("mixed") / "out"
    target.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if objects:
            patch.setattr(writer, "store_of", FolderObjects)
        out = writer_of("csv", target)
        expected: list[int] = []
        open_jobs: dict[str, tuple[FilesPlan, dict[int, Any]]] = {}
        attempts = 0
        for step in range(data.draw(st.integers(1, 14))):
            action = data.draw(
                st.sampled_from(["prepare", "attempt", "rollback", "commit", "abort"])
            )
            if action == "prepare" or not open_jobs:
                job = f"j{step}"
                overwrite = data.draw(st.booleans())
                open_jobs[job] = prepare(out, numbers().schema, job, overwrite=overwrite), {}
                continue
            job = data.draw(st.sampled_from(sorted(open_jobs)))
            plan, receipts = open_jobs[job]
            if action in ("attempt", "rollback"):
                attempts += 1
                task = data.draw(st.integers(0, 2))
                opened = out.open(plan, task, attempts)
                opened.write(numbers(int(job[1:]) * 10 + task).to_batches()[0])
                if action == "rollback":
                    opened.rollback()
                else:
                    receipts[task] = opened.close()
            elif action == "commit":
                out.commit(plan, list(receipts.values()))
                rows = [int(job[1:]) * 10 + task for task in receipts]
                expected = rows if plan.overwrite else [*expected, *rows]
                del open_jobs[job]
            else:
                out.abort(plan, data.draw(st.sampled_from([None, [None, *receipts.values()]])))
                del open_jobs[job]
            seen = visible("csv", target) if _holds_data(target) else []
            assert seen == sorted(expected)
        for plan, _ in open_jobs.values():
            out.abort(plan, None)
    assert leftovers(target) == []
    assert (visible("csv", target) if _holds_data(target) else []) == sorted(expected)


def test_a_dead_runs_staging_goes_and_a_live_ones_stays(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target)
    dead, live = (prepare(out, numbers().schema, job) for job in ("dead", "live"))
    lost = stage(out, dead, [numbers(1)])
    receipts = stage(out, live, [numbers(2)])
    with monkeypatch.context() as patch:
        patch.setattr(
            job_folders, "is_alive", lambda claim, _: "dead" if claim.owner == "dead" else "live"
        )
        write("parquet", target, numbers(3), job="next")
    assert [folder.name for folder in (target / "_spark_channel" / "staging").iterdir()] == [
        folder_of(live)
    ]
    with pytest.raises(SupersededError, match="its driver has ended"):
        out.commit(dead, lost)
    out.commit(live, receipts)
    assert visible("parquet", target) == [2, 3]
    assert leftovers(target) == []


def folder_of(plan: FilesPlan) -> str:
    return f"{plan.claim.owner}-e{plan.claim.epoch}"


def test_staging_has_no_age(kind: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is paused for years, on this machine: its process lives."""
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, "paused")
    receipts = stage(out, plan, [numbers(1)])
    for path in (target / "_spark_channel").rglob("*"):
        os.utime(path, (1, 1))
    write("parquet", target, numbers(2), job="next")
    out.commit(plan, receipts)
    assert visible("parquet", target) == [1, 2]


def test_a_run_of_another_machine_is_doubted_for_a_day_before_it_counts_as_dead(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target)
    with monkeypatch.context() as patch:
        elsewhere = {"machine": ["elsewhere", "", ""], "pid": 1, "started": "1"}
        patch.setattr(publish, "own_process", lambda: json.dumps(elsewhere))
        plan = prepare(out, numbers().schema, "far")
        stage(out, plan, [numbers(1)])
    folder = target / "_spark_channel" / "staging" / folder_of(plan)
    os.utime(folder / "job.json", (1, 1))  # or the clock has jumped
    write("parquet", target, numbers(2), job="next")
    assert folder.exists()
    day = 86_400.0
    os.utime(folder / "doubted", (time.time() - 1.5 * day,) * 2)
    fill_and_forget = prepare(out, numbers().schema, "last")
    assert not folder.exists()
    out.abort(fill_and_forget, None)


def test_an_open_task_shows_that_its_run_lives(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema)
    opened = out.open(plan, 0, 0)
    batch = numbers(1).to_batches()[0]
    opened.write(batch)
    marker = target / "_spark_channel" / "staging" / folder_of(plan) / "job.json"
    os.utime(marker, (0, 0))
    opened.write(batch)
    assert marker.stat().st_mtime == 0
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.0)
    opened.write(batch)
    assert marker.stat().st_mtime > 0
    opened.rollback()
    out.abort(plan, None)


def test_a_damaged_entry_is_named(target: Path) -> None:
    write("parquet", target, numbers(1))
    entry = max((target / "_spark_channel").glob("*.json"))
    whole = entry.read_text()
    entry.write_text(whole[:-40])
    with pytest.raises(SourceError, match=r"0002.json is a damaged log entry"):
        read("parquet", target)
    entry.write_text(whole.replace("spark-channel/2", "spark-channel/9"))
    with pytest.raises(TargetError, match=r"version 'spark-channel/9'"):
        write("parquet", target, numbers(2), job="b")


def test_a_job_name_must_fit_into_a_path(target: Path) -> None:
    out = writer_of("parquet", target)
    with pytest.raises(OptionError, match="jobId"):
        prepare(out, numbers().schema, "../../etc")
    assert not target.exists()


def test_names_tell_runs_apart() -> None:
    from spark_channel.connectors.files.file_names import file_name, run_of

    assert run_of(file_name(0, "a-1-e7", 5, "0123abcd", 0, "csv.gz")) == "a-1-e7"
    assert run_of(file_name(0, "a-e12", 1, "0123abcd", 5, "csv")) == "a-e12"
    assert run_of(file_name(0, "a-e1-e12", 1, "0123abcd", 5, "csv")) == "a-e1-e12"
    assert run_of("part-00000-3a5e-c000.snappy.parquet") is None


def test_the_writer_travels(target: Path) -> None:
    import pickle

    out: FilesWriter = pickle.loads(pickle.dumps(writer_of("parquet", target)))
    plan = pickle.loads(pickle.dumps(prepare(out, numbers().schema)))
    assert plan == replace(plan)
    out.commit(plan, pickle.loads(pickle.dumps(stage(out, plan, [numbers(1)]))))
    assert visible("parquet", target) == [1]


def test_a_job_does_not_wait_for_the_files_that_another_one_replaced(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of them: the job that replaced them removes them. When it has died, later jobs do, part by part."""
    monkeypatch.setattr(publish, "_FEW", 5)
    monkeypatch.setattr(publish, "_MOST", 10)
    monkeypatch.setattr(parts, "_REMOVED", 10)
    rows = numbers(*range(40))
    write("parquet", target, rows, job="many", maxRecordsPerFile="1", retention="0")
    there = len(list(target.glob("part-*")))
    assert there == 40

    def dies(*_: Any) -> None:
        raise OSError("the job that replaced them dies here")

    with monkeypatch.context() as patch:
        patch.setattr(publish.TargetDirectory, "_remove", dies)
        write(
            "parquet",
            target,
            numbers(1),
            job="overwrite",
            context={"overwrite": True},
            retention="0",
        )

    def left() -> int:
        return len(list(target.glob("part-*"))) - int(read("parquet", target).num_rows)

    assert left() == 40
    for number in range(3):
        write("parquet", target, numbers(number), job=f"soon-{number}", retention="0")
        assert left() == 40
    for number in range(8):
        write("parquet", target, numbers(number), job=f"later-{number}", retention="0")
    write("parquet", target, numbers(9), job="part", retention="0")
    before = left()
    assert 0 < before < 40
    write("parquet", target, numbers(9), job="one", retention="0")
    assert left() == before - 10
    write("parquet", target, numbers(7), job="replaces", context={"overwrite": True}, retention="0")
    assert left() == 0
