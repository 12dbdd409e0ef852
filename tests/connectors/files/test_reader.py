"""What a read does to files: which ones, when they are open, and what goes wrong with them."""

import errno
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.files.filesystem import locate
from spark_channel.errors import OptionError, SourceError
from tests.connectors.files.helpers import FORMATS, numbers, read, read_all, reader_of, write


def csv_file(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("n\n" + "".join(f"{value}\n" for value in values))
    return path


def numbers_in(path: object, **options: Any) -> list[int]:
    return sorted(read("csv", path, **options).column("n").to_pylist())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    csv_file(tmp_path / "a.csv", 1)
    csv_file(tmp_path / "deep" / "er" / "b.csv", 2)
    csv_file(tmp_path / "deep" / "c.txt", 3)
    csv_file(tmp_path / ".hidden.csv", 10)
    csv_file(tmp_path / "_logs" / "d.csv", 11)
    csv_file(tmp_path / "deep" / "_SUCCESS", 12)
    csv_file(tmp_path / "x.csv._COPYING_", 13)
    return tmp_path


def test_a_directory_is_read_with_all_below_it_but_what_is_hidden(tree: Path) -> None:
    (tree / "deep" / "_SUCCESS").write_text("")
    assert numbers_in(tree) == [1, 2, 3]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", [1]),
        ("deep/*", [2, 3]),
        ("*/er/*.csv", [2]),
        ("**/*.csv", [1, 2]),
        ("deep/{c.txt,er}", [2, 3]),
        ("[!a-c]*", [2, 3]),
        ("deep/?.txt", [3]),
        ("_logs/*", [11]),
    ],
)
def test_globs(tree: Path, pattern: str, expected: list[int]) -> None:
    (tree / "deep" / "_SUCCESS").write_text("")
    assert numbers_in(tree / pattern) == expected


def test_a_hidden_file_is_read_when_it_is_named(tree: Path) -> None:
    assert numbers_in(tree / ".hidden.csv") == [10]


def test_a_name_that_looks_like_a_glob_is_a_name_first(tmp_path: Path) -> None:
    csv_file(tmp_path / "a[1].csv", 5)
    csv_file(tmp_path / "a1.csv", 6)
    assert numbers_in(tmp_path / "a[1].csv") == [5]


def test_several_paths(tree: Path) -> None:
    paths = f'["{tree}/a.csv", "{tree}/deep/er", "{tree}/a.csv"]'
    found, _ = load_reader({"reader": "csv", "paths": paths})
    assert sorted(
        row
        for split in found.split(9)
        for batch in found.read(split)
        for row in batch["n"].to_pylist()
    ) == [1, 2]


def test_uris_relative_paths_and_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv_file(tmp_path / "a b" / "c%.csv", 4)
    assert numbers_in(path.as_uri()) == [4]
    assert numbers_in(f"file:{path}".replace("%", "%25")) == [4]
    monkeypatch.chdir(tmp_path)
    assert numbers_in("a b/c%.csv") == [4]
    assert numbers_in("a b/c*.csv") == [4]
    csv_file(tmp_path / "12:30.csv", 5)
    assert numbers_in("12:30.csv") == [5]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://key:hunter2@bucket/x", "holds a password"),
        ("s3://key:hunter2/and/more@bucket/x", "holds a password"),
        ("sftp://ann:hunter2/and?more@h/x", "holds a password"),
        ("ftp://ann:hunter2#more@h/x", "holds a password"),
        ("webdav://host/x", "webdav"),
        ("", "is empty"),
        ("odd:thing", "two slashes"),
    ],
)
def test_paths_that_are_refused(path: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        locate(path)
    assert "hunter2" not in str(caught.value)


def test_object_store_uris_open_no_connection() -> None:
    place = locate("s3a://bucket/some/key?region=eu-west-1&endpoint_override=localhost%3A9")
    assert (place.path, place.local) == ("bucket/some/key", False)
    assert place.show() == "s3://bucket/some/key"


def test_partition_folders_become_typed_columns(tmp_path: Path) -> None:
    for year, city in (("2023", "New%20York"), ("2024", "__HIVE_DEFAULT_PARTITION__")):
        csv_file(
            tmp_path / f"year={year}" / f"day={year}-01-02" / f"city={city}" / "x.csv", int(year)
        )
    found = read("csv", tmp_path)
    assert found.schema.names == ["n", "year", "day", "city"]
    assert [str(kind) for kind in found.schema.types] == ["int64", "int32", "date32[day]", "string"]
    assert found.column("city").to_pylist() == ["New York", None]
    assert numbers_in(tmp_path, where="year = 2024 and city is null") == [2024]
    reader = reader_of("csv", tmp_path, where="day < DATE '2024-01-01'")
    reader.schema()
    assert len(reader.split(9)) == 1
    assert read("csv", tmp_path, columns="year").to_pydict() == {"year": [2023, 2024]}
    assert read("csv", tmp_path, recursiveFileLookup="true").schema.names == ["n"]
    assert read("csv", tmp_path / "year=2023").schema.names == ["n", "day", "city"]
    assert read("csv", tmp_path / "year=2023", basePath=str(tmp_path)).schema.names == [
        "n",
        "year",
        "day",
        "city",
    ]
    given = pa.schema([("year", pa.string()), ("n", pa.int16())])
    assert read_all(reader_of("csv", tmp_path).with_schema(given)).to_pydict() == {
        "year": ["2023", "2024"],
        "n": [2023, 2024],
    }


def test_partition_folders_that_differ_are_an_error(tmp_path: Path) -> None:
    csv_file(tmp_path / "a=1" / "x.csv", 1)
    csv_file(tmp_path / "b=1" / "x.csv", 1)
    with pytest.raises(SourceError, match="recursiveFileLookup"):
        read("csv", tmp_path)


def test_files_are_kept_by_name_and_time(tree: Path) -> None:
    (tree / "deep" / "_SUCCESS").write_text("")
    os.utime(tree / "a.csv", (1_000_000_000, 1_000_000_000))
    assert numbers_in(tree, pathGlobFilter="*.csv") == [1, 2]
    assert numbers_in(tree, modifiedBefore="2010-01-01T00:00:00") == [1]
    assert numbers_in(tree, modifiedAfter="2010-01-01T00:00:00") == [2, 3]


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_path_and_a_directory_without_files(tmp_path: Path, form: str) -> None:
    with pytest.raises(SourceError, match=r"nowhere does not exist"):
        reader_of(form, tmp_path / "nowhere").schema()
    with pytest.raises(SourceError, match=r"nowhere\.\* matches no file"):
        reader_of(form, tmp_path / "nowhere.*").schema()
    with pytest.raises(SourceError, match="holds no data files"):
        reader_of(form, tmp_path).schema()
    given = reader_of(form, tmp_path).with_schema(pa.schema([("n", pa.int64())]))
    assert given.split(3) == []
    assert given.schema().names == ["n"]


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{form}"
    path.write_bytes(b"this is none of that")
    with pytest.raises(SourceError, match=rf"x.{form} cannot be read") as caught:
        reader_of(form, path).schema()
    assert caught.value.__cause__ is not None


@pytest.fixture
def not_root() -> Iterator[None]:
    """Permissions count for everybody but root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_file_is_named(tmp_path: Path, not_root: None) -> None:
    if os.getuid() == 0:
        os.seteuid(0)
    folder = Path("/tmp") / f"spark-channel-test-{os.getpid()}"  # its parents are open to everybody
    path = csv_file(folder / "x.csv", 1)
    try:
        path.chmod(0)
        if os.getuid() == 0:
            os.seteuid(65534)
        with pytest.raises(
            SourceError, match=r"x.csv cannot be read: permission denied to user"
        ) as caught:
            reader_of("csv", path).schema()
        assert isinstance(caught.value.__cause__, PermissionError)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_gone_or_changed_before_it_is_read(tmp_path: Path, form: str) -> None:
    write(form, tmp_path / "out", numbers(1, 2, 3))
    (path,) = (tmp_path / "out").glob("part-*")
    reader = reader_of(form, path)
    reader.schema()
    (split,) = reader.split(1)
    assert next(reader.read(split)).num_rows > 0
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="was changed after the read was planned"):
        list(reader.read(split))
    path.unlink()
    with pytest.raises(
        SourceError, match=r"does not exist, or was removed after the read was planned"
    ) as caught:
        list(reader.read(split))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "x.csv", *range(2_000))
    reader = reader_of("csv", path)
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    next(batches)
    with path.open("a") as out:
        out.write("5\n")
    with pytest.raises(SourceError, match="was changed after"):
        list(batches)


def test_a_file_removed_while_it_is_open_is_read_to_its_end(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "x.csv", *range(2_000))
    reader = reader_of("csv", path)
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    rows = next(batches).num_rows
    path.unlink()
    assert rows + sum(batch.num_rows for batch in batches) == 2_000


def open_files(path: Path) -> int:
    return sum(os.path.realpath(fd) == str(path) for fd in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("form", FORMATS)
def test_files_are_open_only_while_they_are_read(tmp_path: Path, form: str) -> None:
    many = pa.table({"n": range(200_000)})
    options: dict[str, Any] = {"rowGroupRows": "10000"} if form == "parquet" else {}
    write(form, tmp_path / "out", many, **options)
    (path,) = (tmp_path / "out").glob("part-*")
    reader = reader_of(form, path)
    reader.schema()
    splits = reader.split(1)
    assert open_files(path) == 0
    threads = threading.active_count()
    batches = reader.read(splits[0])
    assert open_files(path) == 0
    next(batches)
    assert open_files(path) == 1
    batches.close()  # type: ignore[attr-defined] # a generator
    assert open_files(path) == 0
    with pytest.raises(StopIteration):
        next(batches)
    list(reader.read(splits[0]))
    assert open_files(path) == 0
    assert threading.active_count() <= threads


@pytest.mark.parametrize("form", FORMATS)
def test_a_retry_reads_the_same_and_readers_travel(tmp_path: Path, form: str) -> None:
    write(form, tmp_path / "out", pa.table({"n": range(5_000)}))
    reader = reader_of(form, tmp_path / "out", where="n > 10", splitBytes="5000")
    schema = reader.schema()
    splits = reader.split(3)
    again, same = pickle.loads(pickle.dumps((reader, splits)))
    for split, copy in zip(splits, same, strict=True):
        first = [batch.to_pydict() for batch in reader.read(split)]
        assert first == [batch.to_pydict() for batch in again.read(copy)]
    assert again.schema().equals(schema)


def test_a_disk_error_is_named_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv_file(tmp_path / "x.csv", *range(200_000))
    reader = reader_of("csv", path)
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    next(batches)

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("spark_channel.connectors.files.formats.text.TextFile._as_utf8", broken)
    with pytest.raises(SourceError, match=r"x.csv cannot be read: Input/output error") as caught:
        list(batches)
    assert isinstance(caught.value.__cause__, OSError)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Peak of Arrow's pool over a file of 40 row groups: about one of them."""
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, pa.schema([("n", pa.int64())]), use_dictionary=False) as out:
        for start in range(0, 2_000_000, 50_000):
            out.write_table(pa.table({"n": range(start, start + 50_000)}))
    for form, source in (
        ("parquet", path),
        ("csv", csv_file(tmp_path / "x.csv", *range(1_500_000))),
    ):
        reader = reader_of(form, source)
        reader.schema()
        splits = reader.split(1)
        before = pa.total_allocated_bytes()
        most = 0
        for split in splits:
            for _ in reader.read(split):
                most = max(most, pa.total_allocated_bytes() - before)
        assert most < 8 << 20


def test_importing_the_readers_does_not_import_the_dataset_machinery() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import spark_channel.connectors.files.reader, spark_channel.connectors.files.writer; "
        "sys.exit('pyarrow.dataset' in sys.modules or 'pyarrow.acero' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False
        ).returncode
        == 0
    )
