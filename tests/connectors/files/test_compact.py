"""Small files of a folder are merged: the same rows, for every reader, whatever happens meanwhile."""

import json
import os
import signal
import subprocess
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark_channel.clock import utc_now
from spark_channel.connectors.base import compaction
from spark_channel.connectors.base.compaction import small_groups
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.files import compact, parts, publish, writer
from spark_channel.connectors.files.parts import PartFiles
from spark_channel.connectors.files.publish import TargetDirectory
from spark_channel.connectors.files.replaced_files import put_back, replaced_files
from spark_channel.errors import SourceError, TargetError, UnsupportedError
from tests.connectors.files.helpers import (
    FORMATS,
    FolderObjects,
    leftovers,
    newest,
    numbers,
    read,
    read_all,
    reader_of,
    state,
    visible,
    write,
    writer_of,
)

TARGET = 128 << 20


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def merge(form: str, target: Path, size: int = TARGET, **options: Any) -> Any:
    return writer_of(form, target, **options).compact(size)


def fill(form: str, target: Path, count: int, **options: Any) -> None:
    for number in range(count):
        write(form, target, numbers(number), job=f"job{number}", **options)


def data_files(target: Path) -> list[Path]:
    return sorted(path for path in target.iterdir() if path.name[0] not in "._")


@pytest.mark.parametrize("form", FORMATS)
def test_one_file_has_the_rows_of_all_in_the_order_in_which_they_were_read(
    form: str, target: Path
) -> None:
    fill(form, target, 40)
    before = read(form, target)
    done = merge(form, target)
    assert (done.before, done.merged, done.made, done.after, done.rows) == (40, 40, 1, 1, 40)
    assert len(data_files(target)) == 1
    assert done.made_bytes == data_files(target)[0].stat().st_size
    assert read(form, target).equals(before, check_metadata=True)
    assert leftovers(target) == []
    again = merge(form, target)
    assert (again.before, again.merged, again.made) == (1, 0, 0)
    write(form, target, numbers(99), job="later")
    assert visible(form, target) == [*range(40), 99]


WHOLE = pa.table(
    {
        "bool": pa.array([True, None, False]),
        "byte": pa.array([-128, None, 127], pa.int8()),
        "long": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "double": pa.array([float("inf"), None, -0.0]),
        "float": pa.array([float("nan"), None, 1e-40], pa.float32()),
        "decimal": pa.array([Decimal("-12345678901234567890.123456789"), None, Decimal("0E-9")], pa.decimal128(38, 9)),
        "text": pa.array(["", None, 'ü"\n,\\N\r']),
        "day": pa.array([date(1900, 1, 1), None, date(9999, 12, 31)]),
        "time": pa.array([datetime(1900, 1, 1, 1, 2, 3), None, datetime(2200, 1, 1)], pa.timestamp("us")),
        "instant": pa.array([0, None, 7_258_118_400_000_001], pa.timestamp("us", "UTC")),
    }
)  # fmt: skip
NESTED = pa.table(
    {
        "data": pa.array([b"\x00\xff", None, b""]),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1}, None, {"b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)  # fmt: skip
BOTH = pa.schema([*WHOLE.schema, *NESTED.schema])


def rows_of(form: str, target: Path) -> pa.Table:
    """By a program that shares no code with us, in the order of the files."""
    names = [str(path) for path in data_files(target)]
    if form in ("csv", "json"):
        how = "header=true, all_varchar=true, escape='\\', nullstr='', allow_quoted_nulls=false, parallel=false"
        made = f"read_csv({names!r}, {how})" if form == "csv" else f"read_ndjson_objects({names!r})"
        found = duckdb.query(f"SELECT * FROM {made}")
        assert found is not None
        return found.arrow().read_all()
    return ds.dataset(names, format="ipc" if form == "arrow" else form).to_table()


@pytest.mark.parametrize("form", FORMATS)
def test_another_program_reads_every_type_as_before(form: str, target: Path) -> None:
    whole = WHOLE if form == "csv" else pa.table([*WHOLE.columns, *NESTED.columns], schema=BOTH)
    parts = [whole, whole.slice(1), whole.slice(2, 1), whole.slice(0, 0)]
    for number, part in enumerate(parts):
        write(form, target, part, job=f"job{number}")
    before, ours = rows_of(form, target), read(form, target)
    assert merge(form, target).made == 1
    after = rows_of(form, target)
    assert before.num_rows == after.num_rows == 6
    assert str(after.to_pylist()) == str(before.to_pylist())  # nan equals nan
    assert after.schema.equals(before.schema, check_metadata=True)
    again = read(form, target)
    assert str(again.to_pylist()) == str(ours.to_pylist())
    assert again.schema.equals(ours.schema, check_metadata=True)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_metadata_of_the_schema_and_the_codec_stay(codec: str, target: Path) -> None:
    field = pa.field("n", pa.int64(), nullable=False, metadata={"comment": "a number"})
    schema = pa.schema([field], metadata={"made": "here"})
    for number in range(3):
        part = pa.table([pa.array([number])], schema=schema)
        write("parquet", target, part, job=f"job{number}", compression=codec)
    before = pq.read_schema(data_files(target)[0])
    merge("parquet", target)
    (made,) = data_files(target)
    assert pq.read_schema(made).equals(before, check_metadata=True)
    found = pq.read_metadata(made).row_group(0).column(0).compression
    assert found == ("UNCOMPRESSED" if codec == "none" else codec.upper())


@pytest.mark.parametrize(
    "how", ["sep=;", "header=false", "nullValue=NA", "compression=gzip", "encoding=utf-16"]
)
def test_text_is_written_as_it_was(how: str, target: Path) -> None:
    options: dict[str, Any] = dict([how.split("=")])
    rows = pa.table({"a": ["x;y", None, "NA"], "b": ['"', "", "ü\n"]})
    for number in range(3):
        write("csv", target, rows, job=f"job{number}", **options)
    before, first = read("csv", target), data_files(target)[0]
    ending = first.name.partition(".")[2]
    merge("csv", target)
    (made,) = data_files(target)
    assert made.name.endswith(ending)
    assert read("csv", target).equals(before)


def test_a_dictionary_and_an_unsigned_number_stay(target: Path) -> None:
    rows = pa.table(
        {"d": pa.array(["a", None]).dictionary_encode(), "u": pa.array([2**64 - 1, 0], pa.uint64())}
    )
    for number in range(2):
        write("parquet", target, rows, job=f"job{number}")
    before = rows_of("parquet", target)
    merge("parquet", target)
    assert rows_of("parquet", target).equals(before, check_metadata=True)


def test_files_with_other_columns_or_other_codecs_stay_apart(target: Path) -> None:
    fill("parquet", target, 3)
    more = pa.table({"n": pa.array([7], pa.int64()), "t": ["x"]})
    for number in range(3):
        write("parquet", target, more, job=f"more{number}")
        write("parquet", target, numbers(8), job=f"zstd{number}", compression="zstd")
    before = sorted(read("parquet", target).to_pylist(), key=str)
    done = merge("parquet", target)
    assert (done.merged, done.made) == (9, 3)
    assert sorted(read("parquet", target).to_pylist(), key=str) == before


def test_large_files_and_those_of_other_programs_stay(target: Path) -> None:
    target.mkdir()
    pq.write_table(numbers(100), target / "other-0.parquet")
    pq.write_table(numbers(101), target / "other-1.parquet")
    fill("parquet", target, 5)
    large = pa.table({"n": pa.array(range(10_000), pa.int64())})
    write("parquet", target, large, job="large")
    done = merge("parquet", target, 40_000)
    assert (done.before, done.merged, done.made, done.after) == (8, 5, 1, 4)
    assert visible("parquet", target) == sorted([*range(5), 100, 101, *range(10_000)])


def test_a_file_ends_at_the_size_that_is_asked_for(target: Path) -> None:
    fill("csv", target, 20)  # "n\n7\n": 4 bytes, from 10 on 5
    done = merge("csv", target, 16)
    assert (done.merged, done.made) == (20, 5)
    assert visible("csv", target) == list(range(20))


def test_a_dry_run_changes_nothing_and_says_what_it_would_do(target: Path) -> None:
    fill("parquet", target, 3)
    before = sorted(str(path) for path in target.rglob("*"))
    found = writer_of("parquet", target).compact(TARGET, dry_run=True)
    assert (found.merged, found.made, found.made_bytes, found.rows) == (3, 1, None, 3)
    assert sorted(str(path) for path in target.rglob("*")) == before


def test_a_reader_that_holds_the_old_list_reads_the_old_files(target: Path) -> None:
    fill("parquet", target, 5)
    reader = reader_of("parquet", target)
    schema, splits = reader.schema(), reader.split(4)
    merge("parquet", target)
    batches = [batch for split in splits for batch in reader.read(split)]
    assert sorted(pa.Table.from_batches(batches, schema)["n"].to_pylist()) == list(range(5))


def test_old_files_go_after_their_time_by_the_next_merge_or_write(target: Path) -> None:
    fill("parquet", target, 150)
    merge("parquet", target, retention="0")
    assert not list((target / "_spark_channel" / "replaced").rglob("*.parquet"))
    for number in range(120):
        write("parquet", target, numbers(number), job=f"more{number}")
    merge("parquet", target)
    assert len(list((target / "_spark_channel" / "replaced").rglob("*.parquet"))) == 121


def test_due_files_are_removed_by_a_merge_with_nothing_to_do(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("parquet", target, 150)
    merge("parquet", target)
    later = utc_now() + timedelta(hours=2)
    monkeypatch.setattr(publish, "utc_now", lambda: later)
    assert merge("parquet", target).merged == 0
    assert not list((target / "_spark_channel" / "replaced").rglob("*.parquet"))
    assert state(target)["removed"] == []
    assert "removedParts" not in state(target)
    assert visible("parquet", target) == list(range(150))


def test_later_jobs_neither_write_nor_read_the_names_of_old_files(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until these are due: then each job removes some of them."""
    monkeypatch.setattr(parts, "_REMOVED", 10)
    for name, value in {"_FEW": 0, "_LEFT": 0, "_MOST": 1}.items():
        monkeypatch.setattr(publish, name, value)
    fill("parquet", target, 60)
    merge("parquet", target)
    found, names = state(target), [part[0] for *_, part in state(target)["removedParts"]]
    assert (found["removed"], len(names)) == ([], 6)
    assert len(json.dumps(found)) < 6_000
    asked: list[str] = []
    read_part = PartFiles.read

    def noted(files: PartFiles, name: str) -> Any:
        asked.append(name)
        return read_part(files, name)

    monkeypatch.setattr(PartFiles, "read", noted)
    monkeypatch.setattr(TargetDirectory, "_share", lambda *_: [])  # a local disk looks at one
    write("parquet", target, numbers(90), job="later")
    assert not set(asked) & set(names)
    monkeypatch.undo()
    for name, value in {"_FEW": 0, "_LEFT": 0, "_MOST": 1}.items():
        monkeypatch.setattr(publish, name, value)
    later = utc_now() + timedelta(hours=2)
    monkeypatch.setattr(publish, "utc_now", lambda: later)
    kept = target / "_spark_channel" / "replaced"
    for number in range(6):
        assert len(list(kept.rglob("*.parquet"))) == 60 - 10 * number
        write("parquet", target, numbers(number), job=f"more{number}")
    assert not list(kept.rglob("*.parquet"))
    assert "removedParts" not in state(target)
    assert visible("parquet", target) == sorted([*range(60), 90, *range(6)])


def test_a_merge_of_many_groups_writes_one_list_of_what_it_merged(target: Path) -> None:
    fill("csv", target, 20)
    assert merge("csv", target, 16).made == 5
    merges = state(target)["merges"]
    assert len({name for name, _ in merges.values()}) == 1
    assert sorted(place for _, place in merges.values()) == list(range(5))


def test_a_merge_of_many_files_is_done_in_steps_that_stay(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_STEP_FILES", 8)
    fill("csv", target, 20)
    publish_step, left = compact._Run._publish, [2]

    def once(run: Any, plan: Any, made: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("the machine goes down")
        return publish_step(run, plan, made)

    monkeypatch.setattr(compact._Run, "_publish", once)
    told = (
        "the machine goes down.* 8 files were merged before, in steps of their own, and stay merged"
    )
    with pytest.raises(TargetError, match=told):
        merge("csv", target, 16)
    assert len(data_files(target)) == 12 + 2
    assert visible("csv", target) == list(range(20))
    assert leftovers(target) == []
    left[0] = 0
    done = merge("csv", target, 16)
    assert (done.merged, done.made, len(data_files(target))) == (12, 3, 5)
    assert visible("csv", target) == list(range(20))


def test_merged_files_are_not_offered_to_be_put_back(target: Path) -> None:
    fill("parquet", target, 3)
    merge("parquet", target)
    assert replaced_files(str(target)) == []
    write("parquet", target, numbers(9), job="over", context={"overwrite": True})
    (kept,) = replaced_files(str(target))
    assert put_back(str(target), kept.number) == 1
    assert visible("parquet", target) == [0, 1, 2]
    with pytest.raises(TargetError, match="has no files that entry"):
        put_back(str(target), kept.number - 2)


def test_an_append_while_files_are_merged_is_kept(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("parquet", target, 5)
    merged = compact._Run._merged

    def beside(self: Any, *given: Any) -> Any:
        write("parquet", target, numbers(77), job="beside")
        return merged(self, *given)

    monkeypatch.setattr(compact._Run, "_merged", beside)
    done = merge("parquet", target)
    assert (done.merged, done.made) == (5, 1)
    assert visible("parquet", target) == [*range(5), 77]
    assert len(data_files(target)) == 2


@pytest.mark.parametrize("other", ["overwrite", "merge"])
def test_what_another_job_took_out_meanwhile_is_not_merged(
    other: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("parquet", target, 5)
    published = compact._Run._publish

    def beside(self: Any, *given: Any) -> Any:
        monkeypatch.undo()
        if other == "merge":
            merge("parquet", target)
        else:
            write("parquet", target, numbers(9), job="over", context={"overwrite": True})
        return published(self, *given)

    monkeypatch.setattr(compact._Run, "_publish", beside)
    done = merge("parquet", target)
    assert (done.merged, done.made, done.rows, done.dropped) == (0, 0, 0, 5)
    assert visible("parquet", target) == (list(range(5)) if other == "merge" else [9])
    assert len(data_files(target)) == 1
    assert leftovers(target) == []
    assert state(target)["claims"] == {}


def test_the_rest_is_merged_where_an_overtaken_part_is_not(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two merges has sources that the first one took, and others."""
    fill("csv", target, 20)
    published = compact._Run._publish

    def beside(self: Any, plan: Any, made: Any) -> Any:
        monkeypatch.undo()
        (first, *_), manifest = made, self.directory.manifest()
        gone = {source.path for source in first[1].sources}
        some = [file for file in manifest.files if file.path in gone]
        monkeypatch.setattr(compact, "_groups", lambda *_: [some])
        merge("csv", target)
        monkeypatch.undo()
        return published(self, plan, made)

    monkeypatch.setattr(compact._Run, "_publish", beside)
    done = merge("csv", target, 16)
    assert done.made == 4
    assert done.merged == 16
    assert len(data_files(target)) == 5
    assert visible("csv", target) == list(range(20))
    assert leftovers(target) == []


def test_a_store_without_renames(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "store_of", FolderObjects)
    monkeypatch.setattr(compact, "store_of", FolderObjects)
    fill("parquet", target, 6)
    reader = reader_of("parquet", target)
    schema, splits = reader.schema(), reader.split(4)
    assert merge("parquet", target).made == 1
    batches = [batch for split in splits for batch in reader.read(split)]
    assert sorted(pa.Table.from_batches(batches, schema)["n"].to_pylist()) == list(range(6))
    assert visible("parquet", target) == list(range(6))
    assert len(data_files(target)) == 7
    later = utc_now() + timedelta(hours=2)
    monkeypatch.setattr(publish, "utc_now", lambda: later)
    merge("parquet", target)
    assert len(data_files(target)) == 1
    assert visible("parquet", target) == list(range(6))


def test_a_folder_without_a_log_and_another_format_are_refused(target: Path) -> None:
    target.mkdir()
    pq.write_table(numbers(1), target / "other.parquet")
    with pytest.raises(TargetError, match="has no log of spark-channel"):
        merge("parquet", target)
    fill("csv", target.parent / "text", 2)
    with pytest.raises(TargetError, match="holds csv files"):
        merge("parquet", target.parent / "text")
    with pytest.raises(UnsupportedError, match="over SFTP and FTP a folder has no log"):
        merge("parquet", "sftp://host/folder")  # type: ignore[arg-type]


def test_files_of_a_prefix(target: Path) -> None:
    target.mkdir()
    (target / "notes.txt").write_text("x")
    for number in range(4):
        write("csv", target, numbers(number), job=f"job{number}", filePrefix="orders")
    done = merge("csv", target, filePrefix="orders")
    assert (done.merged, done.made) == (4, 1)
    (made,) = target.glob("orders__*")
    assert sorted(made.read_text().split()) == ["0", "1", "2", "3", "n"]
    assert (target / "notes.txt").exists()


# Real processes: killed, and side by side.

KILLED = """
import os, signal, sys
from spark_channel.connectors import load_writer
from spark_channel.connectors.files import compact, log, publish
target, point = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if point == "staging":
    compact.Output.added = die
elif point == "before the commit":
    change = log.Log.change
    def changed(self, decide, base, what):
        return die() if what.startswith("merge files") else change(self, decide, base, what)
    log.Log.change = changed
elif point == "after the commit":
    publish.TargetDirectory._finish = die
elif point == "while old files are put aside":
    aside, left = publish.TargetDirectory._set_aside, [5]
    def set_aside(self, each):
        left[0] -= 1
        return aside(self, each) if left[0] else die()
    publish.TargetDirectory._set_aside = set_aside
load_writer({"writer": "csv", "path": target})[0].compact(128 << 20)
"""
POINTS = ["staging", "before the commit", "after the commit", "while old files are put aside"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_merge_loses_and_doubles_nothing(point: str, target: Path) -> None:
    fill("csv", target, 12)
    splits = (reader := reader_of("csv", target)).split(4)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(target), point],
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert killed.returncode == -signal.SIGKILL
    assert visible("csv", target) == list(range(12))
    held = [
        row for split in splits for batch in reader.read(split) for row in batch["n"].to_pylist()
    ]
    assert sorted(held) == list(range(12))
    is_merged = "after" in point or "aside" in point
    assert merge("csv", target).merged == (0 if is_merged else 12)
    write("csv", target, numbers(12), job="next")
    assert visible("csv", target) == list(range(13))
    assert len(data_files(target)) == 2
    assert leftovers(target) == []
    assert state(target)["claims"] == {}


def test_merges_and_appends_at_once(target: Path) -> None:
    fill("csv", target, 30)
    command = [sys.executable, "-m", "spark_channel.cli", "compact", f"csv:{target}"]
    here = Path(__file__).parents[3]
    merges = [subprocess.Popen(command, cwd=here, stdout=subprocess.DEVNULL) for _ in range(3)]
    try:
        for number in range(30, 60):
            write("csv", target, numbers(number), job=f"job{number}")
            assert visible("csv", target) == list(range(number + 1))
        assert [each.wait(120) for each in merges] == [0, 0, 0]
    finally:
        for each in merges:
            each.kill()
    assert visible("csv", target) == list(range(60))
    assert len(data_files(target)) < 60
    merge("csv", target)
    assert len(data_files(target)) == 1
    assert leftovers(target) == []


def test_files_that_cannot_be_read_stay_and_are_named(target: Path) -> None:
    fill("parquet", target, 3)
    odd = pa.table({"n": pa.array([7, 8]).dictionary_encode()})
    for number in range(2):
        write("parquet", target, odd, job=f"odd{number}")
    before = sorted(row["n"] for row in ds.dataset(data_files(target)).to_table().to_pylist())
    done = merge("parquet", target)
    assert (done.before, done.merged, done.made, len(done.left)) == (5, 3, 1, 1)
    assert "does not fit dictionary<values=int64" in done.left[0]
    after = [row["n"] for path in data_files(target) for row in pq.read_table(path).to_pylist()]
    assert sorted(after) == before
    assert leftovers(target) == []


def test_files_with_other_rows_than_the_log_says_stay_and_are_named(target: Path) -> None:
    fill("csv", target, 4)
    other = min(target.glob("part-*.csv"))
    before = other.stat()
    other.write_text("n".ljust(before.st_size, "\n"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = merge("csv", target)
    assert (done.merged, done.made) == (0, 0)
    assert "have 3 rows, and the log says 4: look for a program" in done.left[0]
    assert leftovers(target) == []


@pytest.mark.parametrize(
    ("form", "options", "line"),
    [
        ("csv", {"quoteAll": "true"}, '"1","x"'),
        ("csv", {}, "1,x"),
        ("json", {"ignoreNullFields": "false"}, '{"n":1,"s":"x","t":null}'),
        ("json", {}, '{"n":1,"s":"x"}'),
    ],
)
def test_a_merged_file_is_written_as_its_sources_were(
    form: str, options: dict[str, Any], line: str, target: Path
) -> None:
    names = ["n", "s"] if form == "csv" else ["n", "s", "t"]
    rows = pa.table({"n": [1], "s": ["x"], "t": pa.nulls(1, pa.string())}).select(names)
    for number in range(2):
        write(form, target, rows, job=f"job{number}", **options)
    before = [text for path in data_files(target) for text in path.read_text().splitlines()]
    merge(form, target)
    (made,) = data_files(target)
    after = made.read_text().splitlines()
    assert sorted(set(after)) == sorted(set(before))
    assert after.count(line) == 2


def test_a_merge_of_each_new_file_does_not_write_all_rows_each_time() -> None:
    """A merge after each of a thousand jobs: of all rows, few times each; and few files stay."""
    sizes: list[int] = []
    written = most = 0
    for _ in range(1_000):
        sizes.append(1_000)
        for group in small_groups(enumerate(sizes), lambda _: "", lambda file: file[1], 1 << 30):
            gone = {place for place, _ in group}
            made = sum(size for _, size in group)
            sizes = [*(size for place, size in enumerate(sizes) if place not in gone), made]
            written += made
        most = max(most, len(sizes))
    assert sum(sizes) == 1_000_000
    assert written < 20 * 1_000_000
    assert most < 20


# A stream of the folder.


def feed_of(target: Path, partitions: int = 1) -> Any:
    return reader_of("parquet", target).feed(FeedOptions(partitions=partitions))


def taken(feed: Any, tokens: list[Any]) -> tuple[list[int], list[Any]]:
    """What new ranges have, and the tokens behind them."""
    found: list[int] = []
    after = []
    for token in tokens:
        upto = feed.latest(token, FeedLimit())
        for split in feed.changes(token, upto):
            for batch in feed.read(split):
                found += batch["n"].to_pylist()
        after.append(upto)
    return sorted(found), after


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("times", [1, 2])
def test_a_stream_takes_each_row_once_when_files_are_merged(
    partitions: int, times: int, target: Path
) -> None:
    fill("parquet", target, 5)
    feed = feed_of(target, partitions)
    rows, tokens = taken(feed, feed.earliest())
    assert rows == list(range(5))
    for turn in range(times):
        write("parquet", target, numbers(10 + turn), job=f"more{turn}")
        merge("parquet", target)
    assert len(data_files(target)) == 1
    rows, tokens = taken(feed_of(target, partitions), tokens)
    assert rows == [10 + turn for turn in range(times)]
    write("parquet", target, numbers(20), job="last")
    rows, tokens = taken(feed_of(target, partitions), tokens)
    assert rows == [20]
    rows, _ = taken(feed_of(target, partitions), feed.earliest())
    assert rows == sorted([*range(5), *(10 + turn for turn in range(times)), 20])


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged files are kept for no time."""
    original = writer_of
    monkeypatch.setattr(
        "tests.connectors.files.test_compact.writer_of",
        lambda form, path, **options: original(form, path, retention="0", **options),
    )


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_stream_that_took_all_skips_merged_files_also_when_these_are_gone(
    partitions: int, target: Path
) -> None:
    fill("parquet", target, 5)
    feed = feed_of(target, partitions)
    _, tokens = taken(feed, feed.earliest())
    for turn in range(3):
        merge("parquet", target)
        assert taken(feed_of(target, partitions), tokens)[0] == []
        write("parquet", target, numbers(10 + turn), job=f"more{turn}")
        rows, tokens = taken(feed_of(target, partitions), tokens)
        assert rows == [10 + turn]


@pytest.mark.usefixtures("gone")
def test_a_new_stream_takes_a_merged_file_and_a_late_one_says_that_it_cannot(target: Path) -> None:
    fill("parquet", target, 5)
    feed = feed_of(target)
    _, late = taken(feed, feed.earliest())
    write("parquet", target, numbers(9), job="more")
    merge("parquet", target)
    rows, tokens = taken(feed_of(target), feed.earliest())
    assert rows == [*range(5), 9]
    with pytest.raises(SourceError, match="This stream may have taken some of them"):
        taken(feed_of(target), late)
    write("parquet", target, numbers(10), job="more2")
    merge("parquet", target)
    with pytest.raises(SourceError, match="This stream may have taken some of them"):
        taken(feed_of(target), tokens)


def test_the_log_of_merged_files_is_of_a_version_that_earlier_programs_refuse(target: Path) -> None:
    fill("parquet", target, 2)
    merge("parquet", target)
    assert newest(target)["log"] == "spark-channel/5"


def test_a_list_in_parts(target: Path) -> None:
    fill("csv", target, 400)
    merge("csv", target)
    assert len(state(target)["files"]) + len(state(target).get("parts", [])) == 1
    assert visible("csv", target) == list(range(400))
    for number in range(6):
        write("csv", target, numbers(number), job=f"later{number}")
    assert merge("csv", target).merged == 6  # the file of 400 rows is more than four times as large
    assert read_all(reader_of("csv", target)).num_rows == 406


# Options that choose files, by when and as what these were written.


def chosen(target: Path, **options: Any) -> list[int]:
    return sorted(read("parquet", target, **options)["n"].to_pylist())


@pytest.fixture
def middle(target: Path) -> str:
    """A time after files 0 to 2 and before file 9 were written."""
    fill("parquet", target, 3)
    for path in data_files(target):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    write("parquet", target, numbers(9), job="new")
    return "2025-01-01T00:00:00Z"


def test_a_read_by_the_time_or_name_of_files_has_the_same_rows_after_a_merge(
    middle: str, target: Path
) -> None:
    def look() -> list[list[int]]:
        return [
            chosen(target, modifiedAfter=middle),
            chosen(target, modifiedBefore=middle),
            chosen(target, pathGlobFilter="*-job1-*"),
            chosen(target, modifiedAfter="2020-01-01T00:00:00Z"),
        ]

    before = look()
    assert before == [[9], [0, 1, 2], [1], [0, 1, 2, 9]]
    for turn in range(2):
        merge("parquet", target)
        assert len(data_files(target)) == 1
        assert look() == before
        write("parquet", target, numbers(20 + turn), job=f"later{turn}")
        before = [[*before[0], 20 + turn], *before[1:3], [*before[3], 20 + turn]]
        assert look() == before


@pytest.mark.usefixtures("gone")
def test_a_read_by_the_time_of_files_that_are_gone_is_refused(middle: str, target: Path) -> None:
    merge("parquet", target)
    assert chosen(target, modifiedAfter="2020-01-01T00:00:00Z") == [0, 1, 2, 9]
    with pytest.raises(SourceError, match="holds no data files"):
        chosen(target, modifiedBefore="2020-01-01T00:00:00Z")
    with pytest.raises(SourceError, match=r"merged from 4 files, of which .* choose 1, and these"):
        chosen(target, modifiedAfter=middle)


def test_a_stream_of_files_by_their_time_takes_each_row_once(middle: str, target: Path) -> None:
    options = FeedOptions()
    feed = reader_of("parquet", target, modifiedAfter=middle).feed(options)
    rows, tokens = taken(feed, feed.earliest())
    assert rows == [9]
    write("parquet", target, numbers(10), job="later")
    merge("parquet", target)
    feed = reader_of("parquet", target, modifiedAfter=middle).feed(options)
    assert taken(feed, feed.earliest())[0] == [9, 10]
    rows, tokens = taken(feed, tokens)
    assert rows == [10]
    merge("parquet", target, retention="0")
    write("parquet", target, numbers(11), job="last", retention="0")
    feed = reader_of("parquet", target, modifiedAfter=middle).feed(options)
    assert taken(feed, tokens)[0] == [11]


@pytest.mark.usefixtures("gone")
def test_a_stream_of_files_by_their_time_skips_merged_ones_that_it_took(
    middle: str, target: Path
) -> None:
    feed = reader_of("parquet", target, modifiedAfter=middle).feed(FeedOptions())
    _, tokens = taken(feed, feed.earliest())
    merge("parquet", target)
    assert taken(feed, tokens)[0] == []
    with pytest.raises(SourceError, match="its options take some alone"):
        taken(feed, feed.earliest())


@pytest.mark.usefixtures("gone")
def test_a_read_does_not_look_what_files_were_merged_from(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("parquet", target, 3)
    merge("parquet", target)
    feed = feed_of(target)
    _, tokens = taken(feed, feed.earliest())
    reads: list[str] = []
    original = PartFiles.read

    def noted(self: PartFiles, name: str) -> Any:
        reads.append(name)
        return original(self, name)

    monkeypatch.setattr(PartFiles, "read", noted)
    assert visible("parquet", target) == [0, 1, 2]
    assert taken(feed_of(target), tokens)[0] == []
    assert reads == []
    assert chosen(target, modifiedAfter="2020-01-01T00:00:00Z") == [0, 1, 2]
    assert reads != []
