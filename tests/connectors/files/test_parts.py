"""Long lists of a directory's log: what one more job costs, who may remove a part, and what readers see."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.files import log, manifest, parts
from spark_channel.connectors.files.filesystem import LOG, locate
from spark_channel.connectors.files.log import Log
from spark_channel.connectors.files.manifest import Manifest
from spark_channel.connectors.files.parts import DataFile, FileList, Part, PartFiles
from spark_channel.connectors.files.store import LocalStore
from spark_channel.errors import SourceError, TargetError
from tests.connectors.files.helpers import (
    leftovers,
    newest,
    numbers,
    parts_named,
    prepare,
    read,
    reader_of,
    stage,
    state,
    visible,
    write,
    writer_of,
)


class Counted(LocalStore):
    """A local disk that counts the bytes that are put, by the folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(locate(str(path)))
        self.nbytes: Counter[str] = Counter()

    def put(self, path: str, data: bytes) -> None:
        self.nbytes[Path(path).parent.name] += len(data)
        super().put(path, data)

    def put_new(self, path: str, data: bytes) -> bool:
        self.nbytes["entries"] += len(data)
        return super().put_new(path, data)


def file_number(number: int) -> DataFile:
    name = f"part-00000-{number:012x}-e{number}-0-00000000-000.snappy.parquet"
    return DataFile(name, 1_000, 1, "0123456789ab", f"{number:012x}")


def filled(path: Path, count: int, at_once: int = 1) -> tuple[Log, Counted]:
    """A directory's log after appends of `count` files."""
    store = Counted(path)
    store.make(str(path / LOG))
    entries = Log(store, str(path), 10.0, 60.0)
    for start in range(0, count, at_once):
        add(entries, start, min(at_once, count - start))
    return entries, store


def add(entries: Log, start: int, count: int = 1) -> Manifest:
    def change(manifest: Manifest, _: int) -> Manifest:
        files = [file_number(start + offset) for offset in range(count)]
        return replace(manifest, files=manifest.files.adding(files))

    entry, wrote = entries.change(
        change, lambda entry: Manifest("parquet") if entry is None else entry.manifest, "add"
    )
    assert wrote
    assert entry is not None
    entries.prune()
    return entry.manifest


def listed(entries: Log) -> list[DataFile]:
    entry = entries.newest()
    assert entry is not None
    return list(entry.manifest.files)


def test_the_order_of_the_files_is_kept_and_few_parts_are_named(tmp_path: Path) -> None:
    entries, store = filled(tmp_path, 1_000)
    assert [file.path for file in listed(entries)] == [
        file_number(number).path for number in range(1_000)
    ]
    entry = entries.newest()
    assert entry is not None
    assert len(entry.manifest.files.parts) < 12
    assert len(entry.manifest.files) == 1_000
    on_disk = {path.name for path in (tmp_path / LOG / "parts").iterdir()}
    assert on_disk == parts_named(tmp_path)
    # Each file's name is written about 16 times in entries, and once for each size of parts.
    assert store.nbytes["entries"] < 1_000 * 6_000
    assert store.nbytes["parts"] < 1_000 * 500


@pytest.mark.parametrize("count", [1_000, 10_000, 100_000])
def test_one_more_file_costs_the_same_whatever_was_added_before(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, store = filled(tmp_path, count, at_once=count // 10)
    fresh = Log(store, str(tmp_path), 10.0, 60.0)
    store.nbytes.clear()
    monkeypatch.setattr(PartFiles, "read", _no_part_is_read)
    for number in range(32):
        add(fresh, count + number)
    # 32 entries, of which each names up to 32 files.
    assert store.nbytes.total() < 32 * 7_000
    assert len(entries.newest().manifest.files) == count + 32  # type: ignore[union-attr]


def _no_part_is_read(_: PartFiles, name: str) -> Any:
    raise AssertionError(f"an append reads {name}")


def test_an_append_of_a_job_lists_no_directory_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    listed: list[str] = []
    original = LocalStore.entries

    def entries(this: LocalStore, path: str, *, recursive: bool = False) -> Any:
        listed.append(os.path.relpath(path, tmp_path))
        return original(this, path, recursive=recursive)

    monkeypatch.setattr(LocalStore, "entries", entries)
    monkeypatch.setattr("spark_channel.connectors.files.publish.data_files", _no_listing)
    monkeypatch.setattr(PartFiles, "read", _no_part_is_read)
    write("csv", tmp_path, numbers(40), job="j40")
    write("csv", tmp_path, numbers(41), job="j41", context={"commit": "task"})
    assert all(path.startswith(LOG) for path in listed), listed
    monkeypatch.undo()
    assert visible("csv", tmp_path) == [*range(42)]
    assert leftovers(tmp_path) == []


def _no_listing(*_: Any) -> Any:
    raise AssertionError("the directory is listed")


def test_readers_see_the_rows_of_all_parts_in_the_order_of_the_appends(tmp_path: Path) -> None:
    for number in range(35):
        write("parquet", tmp_path, numbers(number), job=f"j{number}")
    (part,) = state(tmp_path)["parts"]
    assert visible("parquet", tmp_path) == [*range(35)]
    write("parquet", tmp_path, numbers(99), job="o", context={"overwrite": True})
    assert visible("parquet", tmp_path) == [99]
    assert "parts" not in state(tmp_path)
    assert state(tmp_path)["removedParts"][0][3] == part, "as it was"
    write("parquet", tmp_path, numbers(100), job="p")
    assert visible("parquet", tmp_path) == [99, 100]
    assert leftovers(tmp_path) == []


def test_a_small_log_can_be_read_by_earlier_versions(tmp_path: Path) -> None:
    write("csv", tmp_path, numbers(1), job="a")
    assert newest(tmp_path)["log"] == "spark-channel/2"
    assert not {"parts", "olderJobs", "retired"} & state(tmp_path).keys()
    for number in range(33):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    assert newest(tmp_path)["log"] == "spark-channel/3"


def test_a_log_of_an_earlier_version_is_converted_by_the_first_write(tmp_path: Path) -> None:
    write("csv", tmp_path, numbers(1), job="a")
    entry = max((tmp_path / LOG).glob("*.json"))
    old = json.loads(entry.read_text())
    (file,) = old["state"]["files"]
    content = (tmp_path / file["path"]).read_bytes()
    for number in range(200):
        path = f"part-00000-x{number}-e1-0-{number:08x}-000.csv"
        (tmp_path / path).write_bytes(content)
        old["state"]["files"].append({**file, "path": path})
    old["state"]["jobs"] = {f"old{number}": "2026-01-01T00:00:00+00:00" for number in range(900)}
    entry.write_text(json.dumps(old))
    write("csv", tmp_path, numbers(2), job="b")
    assert visible("csv", tmp_path) == [*[1] * 201, 2]
    assert len(state(tmp_path)["files"]) == 1
    assert (tmp_path / LOG / f"{newest(tmp_path)['number']:020d}.json").stat().st_size < 4_000
    again = prepare(writer_of("csv", tmp_path), numbers().schema, "old3")
    assert again.published_at == "2026-01-01T00:00:00+00:00"


def test_a_job_that_was_published_many_jobs_ago_is_known(tmp_path: Path) -> None:
    for number in range(120):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    assert len(state(tmp_path)["jobs"]) <= 50
    for job in ("j0", "j60", "j119"):
        assert prepare(writer_of("csv", tmp_path), numbers().schema, job).published_at
    write("csv", tmp_path, numbers(0), job="j0")
    assert visible("csv", tmp_path) == [*range(120)]


def test_only_the_newest_thousand_jobs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_JOBS_KEPT", 60)
    for number in range(110):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    writer = writer_of("csv", tmp_path)
    assert prepare(writer, numbers().schema, "j80").published_at
    assert prepare(writer, numbers().schema, "j0").published_at is None


def test_a_writer_that_is_killed_between_a_part_and_its_entry_leaves_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(31):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    out = writer_of("csv", tmp_path)
    plan = prepare(out, numbers().schema, "killed", txn=("n", 1))
    receipts = stage(out, plan, [numbers(31), numbers(32)])
    original = LocalStore.put_new

    def killed(this: LocalStore, path: str, data: bytes) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStore, "put_new", killed)
    with pytest.raises(KeyboardInterrupt):
        out.commit(plan, receipts)
    monkeypatch.setattr(LocalStore, "put_new", original)
    (orphan,) = (tmp_path / LOG / "parts").iterdir()
    assert visible("csv", tmp_path) == [*range(31)]
    write("csv", tmp_path, numbers(31), numbers(32), job="again", context={"txn": ("n", 1)})
    assert visible("csv", tmp_path) == [*range(33)]
    assert not orphan.exists()
    assert {path.name for path in (tmp_path / LOG / "parts").iterdir()} == parts_named(tmp_path)


def test_a_part_for_an_entry_to_come_is_not_removed(tmp_path: Path) -> None:
    """Its writer may be about to put that entry."""
    entries, store = filled(tmp_path, 200)
    entry = entries.newest()
    assert entry is not None
    folder = tmp_path / LOG / "parts"
    for number in (entry.number, entry.number + 1, entry.number + 40):
        (folder / PartFiles.new_name(number)).write_text("{}")
    for number in range(200, 235):
        add(entries, number)
    left = {path.name for path in folder.iterdir()} - parts_named(tmp_path)
    assert [PartFiles.number_of(name) for name in left] == [entry.number + 40]
    assert store.nbytes["parts"] > 0


def test_a_retired_part_stays_for_readers_that_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, store = filled(tmp_path, 320)
    before = entries.newest()
    assert before is not None
    for number in range(320, 400):
        add(entries, number)
    assert {name for name, _ in state(tmp_path)["retired"]} >= before.manifest.part_names
    assert len(list(before.manifest.files)) == 320, "a reader of the older entry"
    later = utc_now() + timedelta(seconds=61)
    monkeypatch.setattr(log, "utc_now", lambda: later)
    for number in range(400, 470):
        add(entries, number)
    gone = PartFiles(store.place, str(tmp_path))
    with pytest.raises(TargetError, match=r"parts/.*was removed: the log was read longer ago"):
        gone.read(next(iter(before.manifest.part_names)))


def test_a_reader_has_its_list_when_it_is_planned(tmp_path: Path) -> None:
    for number in range(35):
        write("parquet", tmp_path, numbers(number), job=f"j{number}")
    reader = reader_of("parquet", tmp_path)
    splits = reader.split(2)
    for path in (tmp_path / LOG / "parts").iterdir():
        path.unlink()
    rows = [n for s in splits for b in reader.read(s) for n in b.column("n").to_pylist()]
    assert sorted(rows) == [*range(35)]
    with pytest.raises(SourceError, match=r"parts/.*was removed"):
        read("parquet", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"no json",
        b"[]",
        b'{"files": []}',
        b'{"files": [{"path": "../x", "nbytes": 1}]}',
        b'{"files": [{"path": "_spark_channel/x", "nbytes": 1}]}',
    ],
)
def test_a_damaged_part_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    for number in range(33):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    (part,) = (tmp_path / LOG / "parts").iterdir()
    part.write_bytes(content)
    entry = max((tmp_path / LOG).glob("*.json"))
    forged = json.loads(entry.read_text())
    forged["state"]["parts"][0][1] = 1
    entry.write_text(json.dumps(forged))
    with pytest.raises(SourceError, match=rf"{part.name} is a damaged part of a log"):
        read("csv", tmp_path)


@pytest.mark.parametrize("name", ["../../x.json", "/etc/hostname", "x", 7])
def test_a_forged_name_of_a_part_leads_nowhere(tmp_path: Path, name: Any) -> None:
    write("csv", tmp_path, numbers(1), job="a")
    entry = max((tmp_path / LOG).glob("*.json"))
    whole = json.loads(entry.read_text())
    for forged in ({"parts": [[name, 1, []]]}, {"olderJobs": name}):
        entry.write_text(json.dumps({**whole, "state": {**whole["state"], **forged}}))
        with pytest.raises(SourceError, match="damaged"):
            read("csv", tmp_path)
        with pytest.raises(TargetError, match="damaged"):
            prepare(writer_of("csv", tmp_path), numbers().schema, "b")


def test_a_run_that_lost_the_race_for_a_part_publishes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers fold the same list for one number: the one that loses folds the newer one."""
    for number in range(32):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    original = LocalStore.put_new
    done: list[str] = []

    def late(this: LocalStore, path: str, data: bytes) -> bool:
        if not done and b'"publish slow"' in data:
            done.append(path)
            monkeypatch.setattr(LocalStore, "put_new", original)
            write("csv", tmp_path, numbers(100), job="fast")
            monkeypatch.setattr(LocalStore, "put_new", late)
        return original(this, path, data)

    monkeypatch.setattr(LocalStore, "put_new", late)
    write("csv", tmp_path, numbers(101), job="slow")
    assert done
    assert visible("csv", tmp_path) == [*range(32), 100, 101]
    for number in range(40):
        write("csv", tmp_path, numbers(200 + number), job=f"k{number}")
    assert leftovers(tmp_path) == []


def test_what_fails_after_the_entry_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have put the file's name into a part meanwhile, and no part can be read, listed or removed."""
    for number in range(32):
        write("csv", tmp_path, numbers(number), job=f"j{number}")
    original, entries = LocalStore.put_new, LocalStore.entries

    def unreachable(this: LocalStore, path: str, *, recursive: bool = False) -> Any:
        if path.endswith("/parts"):
            raise OSError("unreachable")
        return entries(this, path, recursive=recursive)

    def read(_: PartFiles, name: str) -> Any:
        raise OSError(f"{name} is unreachable")

    def then_others(this: LocalStore, path: str, data: bytes) -> bool:
        put = original(this, path, data)
        if b'"publish mine"' in data:
            monkeypatch.setattr(LocalStore, "put_new", original)
            for number in range(40):
                write("csv", tmp_path, numbers(200 + number), job=f"k{number}")
            monkeypatch.setattr(PartFiles, "read", read)
            monkeypatch.setattr(LocalStore, "entries", unreachable)
        return put

    monkeypatch.setattr(LocalStore, "put_new", then_others)
    write("csv", tmp_path, numbers(100), job="mine")
    monkeypatch.undo()
    assert visible("csv", tmp_path) == [*range(32), 100, *range(200, 240)]
    assert leftovers(tmp_path) == []


def _counting() -> Iterator[str]:
    yield from (f"{number:020d}-{number:012x}.json" for number in range(10**6))


@given(st.lists(st.one_of(st.integers(1, 40), st.integers(1, 4_000)), max_size=60))
def test_a_list_is_the_same_in_parts(sizes: list[int]) -> None:
    names = _counting()
    made, plain, written = FileList(), 0, 0

    def keep(files: Any) -> Part:
        nonlocal written
        written += len(files)
        return Part.from_files(next(names), files)

    for size in sizes:
        files = [DataFile(str(number), 1) for number in range(plain, plain + size)]
        made = made.adding(files).folded(keep)
        plain += size
        assert len(made.newest) <= parts._NEWEST
    assert [file.path for file in made] == [str(number) for number in range(plain)]
    assert len(made) == plain
    assert len(made.parts) <= 9 * 6
    assert written <= 6 * plain
    assert made.missing(["0", "x", str(plain)]) == ([] if plain else ["0"]) + ["x", str(plain)]


def test_a_write_that_finds_committed_tasks_continues(tmp_path: Path) -> None:
    """Receipts of tasks stay in the entry, whatever is folded around them."""
    out = writer_of("csv", tmp_path)
    context: dict[str, Any] = {"txn": ("n", 1), "commit": "task"}
    stage(out, prepare(out, numbers().schema, "first", **context), [numbers(1)])
    for number in range(40):
        write("csv", tmp_path, numbers(100 + number), job=f"j{number}")
    found = out.unfinished(WriteContext("b", **context))
    assert found is not None
    assert [receipt.rows for receipt in found.receipts] == [1]


class Busy(Counted):
    """Another job adds a file while every third request of this one is on its way."""

    def __init__(self, path: Path, other: Log) -> None:
        super().__init__(path)
        self.other, self.requests, self.parts, self.added = other, 0, 0, 0

    def put(self, path: str, data: bytes) -> None:
        self.parts += 1
        self._meanwhile()
        super().put(path, data)

    def put_new(self, path: str, data: bytes) -> bool:
        self._meanwhile()
        return super().put_new(path, data)

    def _meanwhile(self) -> None:
        self.requests += 1
        if self.requests % 3 == 0:
            add(self.other, 20_000 + self.added)
            self.added += 1


def overwritten(entries: Log, until: str = "2999-01-01") -> Manifest:
    def change(manifest: Manifest, number: int) -> Manifest:
        gone = manifest.files.removed(number, until)
        return replace(manifest, files=FileList(), removed=(*manifest.removed, *gone))

    entry, wrote = entries.change(
        change, lambda entry: Manifest("parquet") if entry is None else entry.manifest, "overwrite"
    )
    assert wrote
    assert entry is not None
    return entry.manifest


def test_an_overwrite_of_many_files_ends_beside_a_job_that_adds_some(tmp_path: Path) -> None:
    """Twenty parts have to be written, and while they are, the other job is seven entries ahead."""
    other, _ = filled(tmp_path, 20_000, at_once=20_000)
    store = Busy(tmp_path, other)
    entries = Log(store, str(tmp_path), 10.0, 0.0)
    manifest = overwritten(entries)
    assert [each.file for each in manifest.replaced()] == [
        file_number(number) for number in range(20_000 + store.added)
    ]
    assert not manifest.files
    assert 40 <= store.parts < 50, "by the first try, and by the second, which the third one names"
    assert store.added < 20
    add(other, 30_000, 40)
    left = {path.name for path in (tmp_path / LOG / "parts").iterdir()}
    assert left == parts_named(tmp_path), "what the first try wrote is gone"


def test_parts_ahead_of_the_log_are_written_again_when_it_has_reached_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job may have removed them by then."""
    monkeypatch.setattr(log, "_LEAD", 2)
    other, _ = filled(tmp_path, 20_000, at_once=20_000)
    store = Busy(tmp_path, other)
    entries = Log(store, str(tmp_path), 10.0, 60.0)
    manifest = overwritten(entries)
    assert len([*manifest.replaced()]) == 20_000 + store.added
    assert store.parts >= 60
    for each in manifest.removed:
        if isinstance(each.files, Part):
            assert (tmp_path / LOG / "parts" / each.files.name).exists()
