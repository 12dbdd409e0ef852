"""A file that is replaced while it is read, by one of its size, in the same second where that can be: an error.

Servers without tags (HDFS, SFTP, FTP) show such a replacement only by another time.
"""

import gzip
import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.store import store_of
from spark_channel.errors import SourceError
from tests.connectors.files.helpers import FORMATS, read_all, reader_of, write
from tests.servers.bucket import Bucket, bucket
from tests.servers.files import PASSWORD, USER, ftp_server, sftp_server
from tests.servers.stores import object_server

ROWS = 20_000
PLACES = ("local", "renamed", "bucket", "s3", "gcs", "azure", "hdfs", "sftp", "ftp")
CASES = [
    pytest.param(place, form, marks=[pytest.mark.every_server] * (place == "hdfs"))
    for place in PLACES
    for form in (FORMATS if place in ("local", "s3") else ("csv", "parquet"))  # which stand for all
]
CHANGED = "was changed after the read was planned"


def made(form: str, version: int) -> bytes:
    """A file of one column `n`: `numbers_in(version)`, mixed, so that ORC does not shorten them. All have one size."""
    mixed = [version * 1_000_000 + each * 7_919 % ROWS for each in range(ROWS)]
    table = pa.table({"n": pa.array(mixed, pa.int64())})
    out = io.BytesIO()
    if form == "parquet":
        pa.parquet.write_table(
            table, out, row_group_size=ROWS // 10, compression="none", use_dictionary=False
        )
    elif form == "orc":
        pa.orc.write_table(table, out, compression="uncompressed", stripe_size=1 << 14)
    elif form == "arrow":
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, ROWS // 10)
    elif form == "csv":
        pa.csv.write_csv(table, out)
    else:
        out.write("".join(f'{{"n": {n}}}\n' for n in table.column("n").to_pylist()).encode())
    return out.getvalue()


def numbers_in(version: int) -> list[int]:
    return list(range(version * 1_000_000, version * 1_000_000 + ROWS))


@dataclass
class Place:
    """`put` writes the file whole, with the time that the first one had, where the store lets a writer choose it."""

    uri: str
    options: dict[str, Any]
    put: Callable[[bytes], None]
    shows_identity: str

    def reader(self, form: str, **options: Any) -> FilesReader:
        found, _ = load_reader(
            {"reader": form, "path": self.uri, "splitBytes": "40000", **self.options, **options}
        )
        assert isinstance(found, FilesReader)
        return found


def _local(folder: Path, *, rename: bool) -> Place:
    path = folder / "x"
    time = 1_700_000_000_123_456_789

    def put(data: bytes) -> None:
        target = folder / "new" if rename else path
        target.write_bytes(data)
        os.utime(target, ns=(time, time))
        target.rename(path)

    return Place(str(path), {}, put, r"then: \d+ bytes, .*changed at \d+ ns; now: ")


def _served(folder: Path, uri: str, **settings: str) -> Place:
    time = iter(range(1_700_000_000, 1_800_000_000))

    def put(data: bytes) -> None:
        (folder / "new").write_bytes(data)
        os.utime(folder / "new", (at := next(time), at))
        (folder / "new").rename(folder / "x")

    login = ", ".join(
        f'"{k}": "{v}"' for k, v in {"user": USER, "password": PASSWORD, **settings}.items()
    )
    return Place(
        uri,
        {"storageOptions": f"{{{login}}}"},
        put,
        r"changed at 2023-11-14T22:13:20.*now: .*T22:13:21",
    )


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str], Any]]:
    """Object stores and HDFS, each started when a test first asks for it."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        known: dict[str, Any] = {}

        def start(kind: str) -> Any:
            if kind not in known:
                known[kind] = stack.enter_context(object_server(kind))
                for name, value in known[kind].environment.items():
                    patch.setenv(name, value)
            return known[kind]

        yield start


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    started: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    kind = request.param
    if kind in ("local", "renamed"):
        yield _local(tmp_path, rename=kind == "renamed")
    elif kind == "sftp":
        with sftp_server(tmp_path) as (port, key):
            yield _served(tmp_path, f"sftp://127.0.0.1:{port}/x", host_key=key)
    elif kind == "ftp":
        with ftp_server(tmp_path) as port:
            yield _served(tmp_path, f"ftp://127.0.0.1:{port}/x")
    elif kind == "bucket":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
        with bucket() as found:
            yield _in_bucket(found)
    else:
        yield _in_store(started(kind).uri(f"{uuid4().hex}/x"), kind)


def _in_bucket(found: Bucket) -> Place:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Place(
        found.uri("a/x"),
        {},
        lambda data: found.put("a/x", data, at),
        r'ETag "\w+".*now: .*ETag "\w+"',
    )


def _in_store(uri: str, kind: str) -> Place:
    target = locate(uri)

    def put(data: bytes) -> None:
        if kind == "hdfs":
            store = store_of(target)
            folder = target.path.rpartition("/")[0]
            store.make(folder)
            stream = store.create(f"{folder}/new")
            stream.write(data)
            store.seal(stream)
            store.rename(f"{folder}/new", target.path)
        else:
            with target.fs.open_output_stream(target.path) as stream:
                stream.write(data)

    shown = {"gcs": "generation", "hdfs": "changed at"}.get(kind, "ETag")
    return Place(uri, {}, put, f"then: .*{shown}.*now: .*{shown}")


def numbers_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


@pytest.mark.parametrize(("place", "form"), CASES, indirect=["place"])
def test_no_read_returns_rows_of_two_versions(place: Place, form: str) -> None:
    """Replaced after planning, between two splits, and within a split."""
    first, second = made(form, 2), made(form, 3)
    assert len(first) == len(second)
    place.put(first)
    reader = place.reader(form)
    reader.schema()
    splits = reader.split(4)
    if form != "orc":
        assert len(splits) > 1
    assert sorted(n for split in splits for n in numbers_of(reader.read(split))) == numbers_in(2)

    batches = reader.read(splits[-1])
    next(batches)
    place.put(second)
    with pytest.raises(
        SourceError, match=f"x {CHANGED} .*{place.shows_identity}.*load\\(\\) it again"
    ):
        list(batches)
    for split in splits:  # another attempt, or the splits of other tasks
        with pytest.raises(
            SourceError, match=f"x {CHANGED} .*{place.shows_identity}.*load\\(\\) it again"
        ):
            list(reader.read(split))
    assert sorted(read_all(place.reader(form)).column("n").to_pylist()) == numbers_in(3)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    with bucket() as found:
        yield found


AT = datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
"""A store that lists fractions of seconds, and reports whole seconds for one object."""


def test_a_compressed_object_is_read_as_one_version(objects: Bucket) -> None:
    first, second = (gzip.compress(made("csv", version), 0) for version in (2, 3))
    assert len(first) == len(second)
    objects.put("x.csv.gz", first, AT)
    reader = reader_of("csv", objects.uri("x.csv.gz"))
    reader.schema()
    (split,) = reader.split(4)
    assert sorted(numbers_of(reader.read(split))) == numbers_in(2)
    batches = reader.read(split)
    next(batches)
    objects.put("x.csv.gz", second, AT)
    with pytest.raises(SourceError, match=CHANGED):
        list(batches)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_splits_are_of_the_version_that_the_columns_came_from(
    objects: Bucket, form: str
) -> None:
    objects.put("x", made(form, 2), AT)
    reader = reader_of(form, objects.uri("x"))
    reader.schema()
    objects.put("x", made(form, 3), AT)
    with pytest.raises(SourceError, match=CHANGED):
        reader.split(4)
    # It lists again, as a later read does.
    assert sorted(
        n for split in reader.split(4) for n in numbers_of(reader.read(split))
    ) == numbers_in(3)


@pytest.mark.parametrize("where", ["local", "bucket"])
def test_a_small_file_among_many_that_is_not_opened_by_the_plan(
    objects: Bucket, tmp_path: Path, where: str
) -> None:
    """The second attempt of a split, in another process, does not read what has replaced the file."""

    def put(number: int, data: bytes) -> None:
        objects.put(f"a/{number:03}.csv", data, AT)
        path = tmp_path / f"{number:03}.csv"
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))

    for number in range(70):
        put(number, b"n\n%d\n" % (100 + number))
    reader = reader_of("csv", tmp_path if where == "local" else objects.uri("a"))
    schema = reader.schema()
    splits = reader.split(2)
    travelled, (first, *_) = pickle.loads(pickle.dumps((reader, splits)))
    assert numbers_of(travelled.with_schema(schema).read(first))[:2] == [100, 101]
    put(30, b"n\n999\n")
    with pytest.raises(SourceError, match=f"030.csv {CHANGED}"):
        numbers_of(travelled.read(first))


def test_requests_to_a_store(objects: Bucket) -> None:
    """One for each file that the plan does not open, and two for each piece that is read, of which one opens it."""
    for number in range(70):
        objects.put(f"a/{number:03}.csv", b"n\n%03d\n" % number, AT)
    reader = reader_of("csv", objects.uri("a"))
    reader.schema()
    objects.asked.clear()
    splits = reader.split(2)
    assert [asked.split()[0] for asked in objects.asked] == ["HEAD"] * 60
    objects.asked.clear()
    assert len([n for split in splits for n in numbers_of(reader.read(split))]) == 70
    assert [asked.split()[0] for asked in objects.asked].count("HEAD") == 140


def test_an_object_that_is_replaced_and_then_removed(objects: Bucket) -> None:
    objects.put("x.csv", made("csv", 2), AT)
    reader = reader_of("csv", objects.uri("x.csv"))
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    next(batches)
    objects.put("x.csv", made("csv", 3), AT)
    while len(objects.asked) < 4:
        next(batches)
    del objects.objects["x.csv"]
    with pytest.raises(SourceError, match="removed after the read was planned"):
        list(batches)


def test_a_broken_read_of_two_versions_is_named_as_such(objects: Bucket) -> None:
    """The footer is of one version, and the pages of another one do not fit it."""
    first = made("parquet", 2)
    objects.put("x", first, AT)
    reader = reader_of("parquet", objects.uri("x"))
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    next(batches)
    objects.put("x", bytes(len(first)), AT)
    with pytest.raises(SourceError, match=CHANGED):
        list(batches)


def test_a_stream_does_not_read_two_versions_of_a_file_that_arrives(objects: Bucket) -> None:
    objects.put("a/x", made("csv", 2), AT)
    reader = reader_of("csv", objects.uri("a"))
    feed = reader.feed(FeedOptions())
    (start,) = feed.earliest()
    splits = feed.changes(start, feed.latest(start, FeedLimit()))
    batches = feed.read(splits[0])
    next(batches)
    objects.put("a/x", made("csv", 3), AT)
    with pytest.raises(SourceError, match=CHANGED):
        list(batches)


def test_a_file_that_an_overwrite_puts_aside_is_still_the_planned_one(tmp_path: Path) -> None:
    """The rename changes the time of its metadata, and not its rows."""
    write("parquet", tmp_path, pa.table({"n": [1, 2]}), job="a")
    reader = reader_of("parquet", tmp_path)
    reader.schema()
    splits = reader.split(1)
    opened = reader.read(splits[0])
    next(opened)
    write("parquet", tmp_path, pa.table({"n": [3]}), job="b", context={"overwrite": True})
    assert not any(True for _ in opened)
    assert [n for split in splits for n in numbers_of(reader.read(split))] == [1, 2]
