"""The log: numbers that were removed, readers whose files are replaced, forged entries."""

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.files import filesystem, log, publish, writer
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.log import Log, newest_entry
from spark_channel.connectors.files.manifest import Manifest
from spark_channel.connectors.files.store import LocalStore
from spark_channel.errors import CommitError, SourceError, SupersededError, TargetError
from spark_channel.processes import describe_owner
from tests.connectors.files.helpers import (
    FolderObjects,
    leftovers,
    newest,
    numbers,
    prepare,
    reader_of,
    stage,
    state,
    visible,
    write,
    writer_of,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_writer_that_slept_while_its_number_was_written_and_removed_publishes_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided on entry 2 and puts number 3, which others wrote long ago and removed as old."""
    write("csv", target, numbers(0), job="first")
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema, "slow", txn=("n", 1))
    receipts = stage(out, plan, [numbers(1)])
    original = LocalStore.put_new
    slept: list[str] = []
    sleeper = threading.current_thread()

    def sleepy(this: LocalStore, path: str, data: bytes) -> bool:
        if not slept and threading.current_thread() is sleeper:
            slept.append(path)
            others = threading.Thread(target=meanwhile)
            others.start()
            others.join(240)
            assert not Path(path).exists(), "its number was removed"
        return original(this, path, data)

    def meanwhile() -> None:
        write("csv", target, numbers(1), job="fast", context={"txn": ("n", 1)})
        for number in range(40):
            write("csv", target, numbers(100 + number), job=f"later{number}")

    monkeypatch.setattr(LocalStore, "put_new", sleepy)
    out.commit(plan, receipts)
    assert slept
    assert visible("csv", target) == [0, 1, *range(100, 140)]
    assert leftovers(target) == []
    entries = sorted(path.stem for path in (target / "_spark_channel").glob("*.json"))
    assert len(entries) <= log._KEPT + 2
    assert Path(slept[0]).stem not in entries, "its own entry, which no reader looks at, is removed"


def test_a_put_whose_answer_was_lost_is_settled_by_the_log(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(1)])
    original = LocalStore.put_new

    def lost(this: LocalStore, path: str, data: bytes) -> bool:
        original(this, path, data)
        monkeypatch.setattr(LocalStore, "put_new", original)
        raise OSError("connection reset")

    monkeypatch.setattr(LocalStore, "put_new", lost)
    out.commit(plan, receipts)
    assert visible("csv", target) == [1]


@pytest.mark.parametrize("arrives", ["before the error", "later", "never"])
def test_an_object_store_that_does_not_answer(
    target: Path, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    """Its number is taken, so that a request that is still on its way will be rejected."""
    monkeypatch.setattr(writer, "store_of", FolderObjects)
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(1)])
    original = FolderObjects.put_new
    on_its_way: list[tuple[FolderObjects, str, bytes]] = []

    def lost(this: FolderObjects, path: str, data: bytes) -> bool:
        monkeypatch.setattr(FolderObjects, "put_new", original)
        if arrives == "before the error":
            original(this, path, data)
        on_its_way.append((this, path, data))
        raise OSError("timeout")

    monkeypatch.setattr(FolderObjects, "put_new", lost)
    if arrives == "before the error":
        out.commit(plan, receipts)
        assert visible("csv", target) == [1]
        return
    with pytest.raises(CommitError, match=r"timeout\. The target is unchanged"):
        out.commit(plan, receipts)
    if arrives == "later":
        assert not original(*on_its_way[0]), "the number is taken"
    out.abort(plan, receipts)
    write("csv", target, numbers(2), job="next")
    assert visible("csv", target) == [2]
    assert leftovers(target) == []


def test_a_success_file_that_another_writer_has_just_put_stays(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends a write while this package publishes another: readers see both."""
    write("csv", target, numbers(1), job="a")
    original = LocalStore.put_new

    def meanwhile(this: LocalStore, path: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalStore, "put_new", original)
        (target / "part-00000-of-spark.csv").write_text("n\n9\n")
        (target / "_SUCCESS").write_text("")
        return original(this, path, data)

    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema, "b")
    receipts = stage(out, plan, [numbers(2)])
    monkeypatch.setattr(LocalStore, "put_new", meanwhile)
    out.commit(plan, receipts)
    assert visible("csv", target) == [1, 2, 9]
    write("csv", target, numbers(3), job="c")
    assert visible("csv", target) == [1, 2, 3, 9]


def test_a_dead_runs_committed_tasks_can_be_continued_whatever_writes_meanwhile(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("csv", target)
    context: dict[str, Any] = {"txn": ("n", 1), "commit": "task"}
    stage(out, prepare(out, numbers().schema, "dead", **context), [numbers(1)])
    gone = json.dumps({"machine": describe_owner()["machine"], "pid": 2**22 + 1, "started": "1"})
    entry = max((target / "_spark_channel").glob("*.json"))
    forged = json.loads(entry.read_text())
    (claim,) = forged["state"]["claims"].values()
    claim["process"] = gone
    entry.write_text(json.dumps(forged))
    write("csv", target, numbers(5), job="x")
    found = out.unfinished(WriteContext("b", **context))
    assert found is not None
    write("csv", target, numbers(6), job="y")
    plan = prepare(out, numbers().schema, "b", **context, resume=found.epoch)
    committed = out.committed(plan, 0)
    assert committed is not None
    out.commit(plan, [committed])
    assert visible("csv", target) == [1, 5, 6]
    assert leftovers(target) == []


def test_a_retried_put_that_finds_its_own_entry_has_won(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HTTP client sends a request again whose answer was lost; the store answers that the name exists."""
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema)
    receipts = stage(out, plan, [numbers(1)])
    original = LocalStore.put_new

    def twice(this: LocalStore, path: str, data: bytes) -> bool:
        original(this, path, data)
        return original(this, path, data)

    monkeypatch.setattr(LocalStore, "put_new", twice)
    before = newest(target)["number"]
    out.commit(plan, receipts)
    assert visible("csv", target) == [1]
    assert newest(target)["number"] == before + 1


def test_a_gap_in_the_log_ends_it(target: Path) -> None:
    write("csv", target, numbers(1))
    entries = target / "_spark_channel"
    last = max(entries.glob("*.json"))
    far = json.loads(last.read_text())
    (entries / f"{99:020d}.json").write_text(
        json.dumps({**far, "state": {**far["state"], "files": []}})
    )
    found = newest_entry(locate(str(target)), str(target))
    assert found is not None
    assert found.number == int(last.stem)


@pytest.mark.parametrize("rows", [1, 50_000])
def test_a_read_keeps_what_it_planned(target: Path, rows: int) -> None:
    write("parquet", target, numbers(*range(rows)), numbers(-1), job="a")
    reader = reader_of("parquet", target)
    splits = reader.split(2)
    write("parquet", target, numbers(7), job="b", context={"overwrite": True})
    assert visible("parquet", target) == [7]
    planned = sorted(
        n for split in splits for batch in reader.read(split) for n in batch.column("n").to_pylist()
    )
    assert planned == [-1, *range(rows)]
    assert [path.name for path in target.glob("part-*")] == [
        file["path"] for file in state(target)["files"]
    ]
    assert sorted(pq.read_table(target).column("n").to_pylist()) == [7], (
        "readers of others see what is published"
    )


def test_a_listing_during_an_overwrite_is_of_one_state(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overwrite comes after the manifest was read, and before the files are listed."""
    from spark_channel.connectors.files import listing, visible_files

    write("parquet", target, numbers(1), numbers(2), job="a")
    original = visible_files.walk

    def late(*args: Any) -> Any:
        monkeypatch.setattr(listing, "walk", original)
        write("parquet", target, numbers(7), job="b", context={"overwrite": True})
        return original(*args)

    monkeypatch.setattr(listing, "walk", late)
    assert visible("parquet", target) == [1, 2]
    assert visible("parquet", target) == [7]


def test_replaced_files_go_when_their_time_is_over(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("parquet", target, numbers(1), job="a")
    write("parquet", target, numbers(2), job="b", context={"overwrite": True}, retention="60")
    write("parquet", target, numbers(3), job="c", context={"overwrite": True})
    assert len([p for p in (target / "_spark_channel" / "replaced").rglob("*") if p.is_file()]) == 2
    later = (utc_now() + timedelta(minutes=10)).isoformat(timespec="seconds")
    monkeypatch.setattr(publish, "_now", lambda: later)
    write("parquet", target, numbers(4), job="d")
    kept = [p for p in (target / "_spark_channel" / "replaced").rglob("*") if p.is_file()]
    assert len(kept) == 1
    assert len(state(target)["removed"]) == 1
    assert visible("parquet", target) == [3, 4]


@pytest.mark.parametrize(
    "path",
    ["../victim.csv", "/victim.csv", "a/../../victim.csv", "_spark_channel/x", "./x", "victim.csv"],
)
def test_a_forged_entry_cannot_name_other_files_to_be_removed(
    tmp_path: Path, target: Path, path: str
) -> None:
    write("csv", target, numbers(1), job="a")
    for victim in (
        tmp_path / "victim.csv",
        target / "victim.csv",
        target / "_spark_channel" / "x",
        target / "x",
    ):
        victim.write_text("mine")
    entry = max((target / "_spark_channel").glob("*.json"))
    forged = json.loads(entry.read_text())
    forged["state"]["removed"] = [[{"path": path, "nbytes": 4}, 1, ""]]
    entry.write_text(json.dumps(forged))
    if path == "victim.csv":
        write("csv", target, numbers(2), job="b", retention="0")
    else:
        with pytest.raises(TargetError, match="damaged"):
            write("csv", target, numbers(2), job="b", retention="0")
        entry.write_text(json.dumps({**forged, "state": {**forged["state"], "removed": []}}))
        write("csv", target, numbers(2), job="b", retention="0")
    assert all(
        victim.read_text() == "mine"
        for victim in (
            tmp_path / "victim.csv",
            target / "victim.csv",
            target / "_spark_channel" / "x",
            target / "x",
        )
    )
    assert visible("csv", target) == [1, 2]


def forge(target: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The newest entry, as another user who may write the log left it."""
    entry = max((target / "_spark_channel").glob("*.json"))
    found = json.loads(entry.read_text())
    change(found["state"])
    entry.write_text(json.dumps(found))


def test_a_forged_number_cannot_lead_out_of_the_directory(tmp_path: Path, target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    victim = tmp_path / "victim.csv"
    victim.write_text("mine")
    removed = [[{"path": "victim.csv", "nbytes": 4}, "../../..", ""]]
    forge(target, lambda state: state.update(removed=removed))
    with pytest.raises(TargetError, match="damaged"):
        write("csv", target, numbers(2), job="b", retention="0")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("owner", ["../../../victim", "/victim", "a/b"])
def test_a_forged_owner_cannot_lead_out_of_the_directory(
    tmp_path: Path, target: Path, owner: str
) -> None:
    """A run in doubt gets a note in its folder: not in any folder that the log names."""
    write("csv", target, numbers(1), job="a")
    victim = tmp_path / "victim-e1"
    victim.mkdir()
    (victim / "job.json").write_text("{}")
    identity = {"target": "", "kind": "job", "name": "x", "version": None}
    claim = {
        "identity": identity,
        "owner": owner,
        "epoch": 1,
        "process": "elsewhere/1/1",
        "beat_at": "2020-01-01T00:00:00+00:00",
    }
    forge(target, lambda state: state["claims"].update(x=claim))
    with pytest.raises(TargetError, match="damaged"):
        write("csv", target, numbers(2), job="b", retention="0")
    assert [each.name for each in victim.iterdir()] == ["job.json"]


@pytest.mark.parametrize("path", ["../secret.csv", "/etc/passwd", "a/../../secret.csv"])
def test_a_forged_entry_cannot_name_other_files_to_be_read(
    tmp_path: Path, target: Path, path: str
) -> None:
    write("csv", target, numbers(1), job="a")
    (tmp_path / "secret.csv").write_text("n\n7\n")
    forge(target, lambda state: state["files"][0].update(path=path))
    with pytest.raises((SourceError, TargetError), match="damaged"):
        visible("csv", target)


def test_an_entry_that_is_nested_without_end_is_damaged(target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    entry = max((target / "_spark_channel").glob("*.json"))
    entry.write_text('{"manifest": ' + "[" * 5_000)
    with pytest.raises((SourceError, TargetError), match="damaged"):
        visible("csv", target)


def test_a_link_below_the_directory_leads_no_removal_out_of_it(
    tmp_path: Path, target: Path
) -> None:
    write("csv", target, numbers(1), job="a")
    outside = tmp_path / "outside"
    (outside / "1" / "x-e1").mkdir(parents=True)
    victims = [
        outside / "victim.csv",
        outside / "1" / "victim.csv",
        outside / "job.json",
        outside / "1" / "x-e1" / "f",
    ]
    for victim in victims:
        victim.write_text("mine")
    (target / "link").symlink_to(outside)
    log = target / "_spark_channel"
    (log / "replaced").symlink_to(outside)
    (log / "staging").mkdir(exist_ok=True)
    (log / "staging" / "x-e1").symlink_to(outside)
    (log / "staging" / "y-e1").symlink_to(outside / "1")
    removed = [[{"path": path, "nbytes": 4}, 1, ""] for path in ("link/victim.csv", "victim.csv")]
    forge(target, lambda state: state.update(removed=removed))
    write("csv", target, numbers(2), job="b", retention="0")
    assert all(victim.read_text() == "mine" for victim in victims)
    assert visible("csv", target) == [1, 2]


def test_a_folder_of_staging_that_is_a_link_is_left_alone(tmp_path: Path, target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    outside = tmp_path / "outside"
    (outside / "x-e1").mkdir(parents=True)
    (outside / "x-e1" / "f").write_text("mine")
    staging = target / "_spark_channel" / "staging"
    if staging.exists():
        staging.rmdir()
    staging.symlink_to(outside)
    with pytest.raises(TargetError, match="link"):
        write("csv", target, numbers(2), job="b", retention="0")
    assert (outside / "x-e1" / "f").read_text() == "mine"


def test_files_that_the_log_does_not_list_are_never_removed(target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    (target / "by-hand.csv").write_text("n\n5\n")
    write("csv", target, numbers(2), job="b", context={"overwrite": True}, retention="0")
    assert (target / "by-hand.csv").exists()
    assert visible("csv", target) == [2]


def test_a_stream_has_one_claim_whatever_the_number_of_its_batches(target: Path) -> None:
    out = writer_of("csv", target)
    for batch in range(30):
        plan = prepare(out, numbers().schema, f"stream-q-{batch}", stream=("q", batch))
        out.commit(plan, stage(out, plan, [numbers(batch)]))
    again = prepare(out, numbers().schema, "stream-q-3", stream=("q", 3))
    assert again.published_at is not None
    assert visible("csv", target) == list(range(30))
    assert len(state(target)["claims"]) == 1
    assert state(target)["jobs"] == {}
    assert leftovers(target) == []


def test_tasks_of_one_batch_share_a_claim_and_one_driver_publishes(target: Path) -> None:
    """Each task of a batch prepares the write; after a crash another driver runs the batch again."""
    out = writer_of("csv", target)
    plans = [prepare(out, numbers().schema, "stream-q-0", stream=("q", 0)) for _ in range(2)]
    first = [stage(out, plans[0], [numbers(1)])[0]]
    second = [
        stage(out, plans[1], [numbers(1)])[0]
    ]  # the same attempt number, in another driver's count
    out.commit(plans[1], second)
    out.commit(plans[0], first)
    assert visible("csv", target) == [1]
    assert leftovers(target) == []


def test_a_transfer_continues_what_tasks_have_committed(target: Path) -> None:
    out = writer_of("csv", target)
    context: dict[str, Any] = {"txn": ("n", 1), "commit": "task"}
    plan = prepare(out, numbers().schema, "a", **context)
    out.keep(plan, "the plan")
    (receipt,) = stage(out, plan, [numbers(1)])
    found = out.unfinished(WriteContext("b", **context))
    assert found is not None
    assert (found.job, found.plan, [each.task for each in found.receipts]) == ("a", "the plan", [0])
    second = prepare(out, numbers().schema, "b", **context, resume=found.epoch)
    committed = out.committed(second, 0)
    assert committed is not None
    assert committed.rows == receipt.rows
    again = out.unfinished(WriteContext("c", **context))
    assert again is not None
    assert again.plan == "the plan"
    late = out.open(plan, 1, 9)
    with pytest.raises(SupersededError):  # the first driver lives after all
        late.write(numbers(2).to_batches()[0])
    late.rollback()
    opened = out.open(second, 1, 1)
    opened.write(numbers(2).to_batches()[0])
    out.commit(second, [committed, opened.close()])
    assert visible("csv", target) == [1, 2]
    assert out.unfinished(WriteContext("d", **context)) is None


def test_an_overwrite_by_task_starts_over_after_a_killed_driver(target: Path) -> None:
    write("csv", target, numbers(0), job="before")
    out = writer_of("csv", target)
    context: dict[str, Any] = {"txn": ("n", 1), "commit": "task", "overwrite": True}
    stage(out, prepare(out, numbers().schema, "killed", **context), [numbers(1)])
    write("csv", target, numbers(1), numbers(2), job="again", context=context)
    assert visible("csv", target) == [1, 2]


def test_of_two_overwrites_by_task_the_later_wins(target: Path) -> None:
    out = writer_of("csv", target)
    first = prepare(out, numbers().schema, "a", commit="task", overwrite=True)
    one = stage(out, first, [numbers(1)])
    second = prepare(out, numbers().schema, "b", commit="task", overwrite=True)
    with pytest.raises(SupersededError, match="an overwrite by run 'b' replaced its rows"):
        out.commit(first, one)
    out.commit(second, stage(out, second, [numbers(2)]))
    assert visible("csv", target) == [2]


def test_others_do_not_wait_while_replaced_files_are_removed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job is stopped in the middle of its removals; another publishes meanwhile."""
    write("csv", target, *[numbers(n) for n in range(5)], job="a")
    stopped, resume = threading.Event(), threading.Event()
    original = publish.TargetDirectory._set_aside

    def stuck(this: publish.TargetDirectory, each: Any) -> None:
        if threading.current_thread().name == "slow":
            stopped.set()
            resume.wait(60)
        original(this, each)

    monkeypatch.setattr(publish.TargetDirectory, "_set_aside", stuck)
    slow = threading.Thread(
        target=write,
        args=("csv", target, numbers(7)),
        kwargs={"job": "b", "context": {"overwrite": True}},
        name="slow",
    )
    slow.start()
    assert stopped.wait(60)
    write("csv", target, numbers(8), job="c")
    assert visible("csv", target) == [7, 8]
    resume.set()
    slow.join(60)
    assert visible("csv", target) == [7, 8]
    assert len(list(target.glob("part-*"))) == 2


def test_a_disk_without_hard_links_is_refused(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from spark_channel.errors import UnsupportedError

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(LocalStore, "link", refuse)
    with pytest.raises(UnsupportedError, match="the disk has no hard links"):
        prepare(writer_of("csv", target), numbers().schema)
    assert not (target / "_spark_channel").exists()


def test_folders_are_made_again_that_another_job_removes_meanwhile(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends removes the folder of all runs when it is empty: also between two steps of one that begins."""
    store = LocalStore(locate(str(target)))
    runs = target / filesystem.LOG / "staging"
    mkdir = os.mkdir
    removed: list[str] = []

    def slow(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if name == "run" and len(removed) < 3:
            removed.append(name)
            store.remove_empty(str(runs))
        mkdir(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", slow)
    store.make(str(runs / "run"))
    assert (runs / "run").is_dir()
    assert len(removed) == 3


def test_the_log_is_asked_again_by_the_one_that_lost(target: Path) -> None:
    place = locate(str(target))
    store = LocalStore(place)
    store.make(str(target / filesystem.LOG))
    made = Log(store, str(target), 10.0, 60.0)
    asked: list[int] = []

    def change(manifest: Manifest, number: int) -> Manifest | None:
        asked.append(number)
        if len(asked) == 1:
            write("csv", target, numbers(1), job="first")
        return None if manifest.ended else manifest.with_ended("x", 1, "said")

    entry, wrote = made.change(
        change, lambda newest: Manifest("csv") if newest is None else newest.manifest, "test"
    )
    assert wrote
    assert entry is not None
    assert asked == [1, 3]
    assert visible("csv", target) == [1]


def test_an_object_that_is_replaced_while_it_is_read_is_read_again(target: Path) -> None:
    target.write_bytes(b"new")
    here = locate(str(target))
    errors = [OSError("the condition was not met")]

    class Store:
        def open_input_file(self, path: str) -> Any:
            if errors:
                raise errors.pop()
            return here.fs.open_input_file(path)

    place = filesystem.Location(Store(), str(target), "abfs://box@account.dfs.core.windows.net")
    assert filesystem.read_file(place, str(target)) == b"new"
