"""Writes to S3, GCS, Azure and HDFS: the same promises as on a disk, by conditional puts, or renames that fail."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from spark_channel.connectors.files.conditional_put import put_new
from spark_channel.connectors.files.filesystem import LOG, Location, locate, read_file
from spark_channel.connectors.files.store import ObjectStore, store_of
from spark_channel.errors import SourceError, SupersededError, TargetError, UnsupportedError
from tests.connectors.files.helpers import (
    numbers,
    prepare,
    read,
    reader_of,
    stage,
    write,
    writer_of,
)
from tests.servers.stores import KINDS, STORES, VERSIONED, ObjectServer, object_server, start_gcs

BUCKETS = (*KINDS, VERSIONED)


@pytest.fixture(scope="module", params=(*STORES, VERSIONED))
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with object_server(request.param) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture
def target(server: ObjectServer) -> str:
    return server.uri(f"{uuid4().hex}/out")


def _times(target: str, times: int) -> int:
    """Fewer where it lasts: of a race in SeaweedFS, each waits a second for the other; a client of HDFS waits 0.4 s
    until the NameNode knows that a file is whole."""
    return times // 5 if target.startswith(("hdfs:", "s3:")) else times


def seen(target: str) -> list[int]:
    return sorted(read("parquet", target).column("n").to_pylist())


def objects(place: Location, inside: str = "") -> list[str]:
    top = f"{place.path}/{inside}".rstrip("/")
    found = place.fs.get_file_info(pafs.FileSelector(top, recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"{top}/") for info in found if info.is_file)


@pytest.mark.lowest
def test_append_and_overwrite(target: str) -> None:
    write("parquet", target, numbers(1, 2), numbers(3), job="a")
    write("parquet", target, numbers(4), job="b")
    assert seen(target) == [1, 2, 3, 4]
    write("parquet", target, numbers(5), job="c", context={"overwrite": True}, retention="0")
    assert seen(target) == [5]
    place = locate(target)
    assert len([path for path in objects(place) if path.startswith("part-")]) == 1
    assert objects(place, f"{LOG}/staging") == []


def test_a_read_keeps_what_it_planned(target: str) -> None:
    write("parquet", target, numbers(1, 2), job="a")
    source = reader_of("parquet", target)
    splits = source.split(1)
    write("parquet", target, numbers(3), job="b", context={"overwrite": True})
    assert sum(batch.num_rows for split in splits for batch in source.read(split)) == 2
    assert seen(target) == [3]


def test_of_conditional_puts_at_once_one_is_accepted(target: str) -> None:
    """Eight threads write one name, several times: all but one get an error that it exists."""
    store = store_of(locate(target))
    place = store.place
    store.make(f"{place.path}/{LOG}")
    for number in range(_times(target, 20)):
        accepted: list[int] = []
        ready = threading.Barrier(8)

        def put(
            mine: int,
            number: int = number,
            accepted: list[int] = accepted,
            ready: threading.Barrier = ready,
        ) -> None:
            ready.wait()
            if store.put_new(f"{place.path}/{number}.json", str(mine).encode()):
                accepted.append(mine)

        threads = [threading.Thread(target=put, args=(mine,)) for mine in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        with place.fs.open_input_file(f"{place.path}/{number}.json") as file:
            assert accepted == [int(file.read())]


def test_a_run_that_was_overtaken_adds_nothing(target: str) -> None:
    out = writer_of("parquet", target)
    first = prepare(out, numbers().schema, "a", txn=("n", 1))
    receipts = stage(out, first, [numbers(1)])
    second = prepare(out, numbers().schema, "b", txn=("n", 1))
    with pytest.raises(SupersededError, match="run 'b' took over"):
        out.commit(first, receipts)
    out.commit(second, stage(out, second, [numbers(1)]))
    assert (
        write("parquet", target, numbers(1), job="c", context={"txn": ("n", 1)}).published_at
        is not None
    )
    assert seen(target) == [1]
    assert len([path for path in objects(locate(target)) if path.startswith("part-")]) == 1


def test_jobs_that_append_at_once_keep_all(target: str) -> None:
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            write("parquet", target, numbers(number), job=f"j{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert seen(target) == list(range(6))


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_others_do_not_wait_while_replaced_objects_are_removed(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job is stopped in its removals. Appends and an overwrite end meanwhile, and lose nothing when it wakes."""
    write("parquet", target, numbers(*range(5)), job="many", maxRecordsPerFile="1", retention="0")
    removing, removed = threading.Event(), threading.Event()
    original = ObjectStore.remove_many

    def remove_many(store: ObjectStore, paths: Sequence[str]) -> None:
        if threading.current_thread().name == "slow":
            removing.set()
            assert removed.wait(60), "the jobs beside it did not end"
        original(store, paths)

    monkeypatch.setattr(ObjectStore, "remove_many", remove_many)
    arguments = {"job": "slow", "context": {"overwrite": True}, "retention": "0"}
    slow = threading.Thread(
        target=write, args=("parquet", target, numbers(6)), kwargs=arguments, name="slow"
    )
    slow.start()
    try:
        assert removing.wait(60)
        write("parquet", target, numbers(7), job="append", retention="0")
        assert seen(target) == [6, 7]
        write(
            "parquet",
            target,
            numbers(8),
            job="overwrite",
            context={"overwrite": True},
            retention="0",
        )
        write("parquet", target, numbers(9), job="append-again", retention="0")
        assert seen(target) == [8, 9]
    finally:
        removed.set()
        slow.join(60)
    assert seen(target) == [8, 9]


def test_a_store_that_ignores_the_condition_is_refused() -> None:
    with start_gcs(conditional=False) as server:
        out = writer_of("parquet", server.uri("plain/out"))
        for overwrite in (True, False):
            with pytest.raises(
                UnsupportedError, match=r"ignores the condition .* df.write.parquet"
            ):
                prepare(out, numbers().schema, overwrite=overwrite)
        assert not [path for path in objects(locate(server.uri("plain"))) if not path.endswith("/")]


def test_a_directory_that_was_copied_with_its_log_into_such_a_store_is_refused(
    tmp_path: Path,
) -> None:
    write("parquet", tmp_path / "out", numbers(1), job="a")
    with start_gcs(conditional=False) as server:
        target = server.uri("copied/out")
        place = locate(target)
        pafs.copy_files(str(tmp_path / "out"), place.path, destination_filesystem=place.fs)
        before = objects(place)
        for overwrite in (True, False):
            with pytest.raises(UnsupportedError, match="ignores the condition"):
                prepare(writer_of("parquet", target), numbers().schema, "b", overwrite=overwrite)
        assert objects(place) == before
        assert seen(target) == [1]


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_a_directory_that_was_copied_with_its_log_is_written_as_before(
    target: str, tmp_path: Path
) -> None:
    write("parquet", tmp_path / "out", numbers(1), job="a")
    place = locate(target)
    pafs.copy_files(str(tmp_path / "out"), place.path, destination_filesystem=place.fs)
    assert seen(target) == [1]
    write("parquet", target, numbers(2), job="b")
    assert seen(target) == [1, 2]
    write("parquet", target, numbers(3), job="c", context={"overwrite": True})
    assert seen(target) == [3]


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_an_object_beside_a_folder_of_its_name_hides_no_rows(
    server: ObjectServer, target: str
) -> None:
    """`out` and `out/...`, which a disk cannot hold: the path means two things, and a pattern means both."""
    write("parquet", target, numbers(1), job="a")
    store = store_of(locate(target))
    (part,) = [path for path in objects(store.place) if path.startswith("part-")]
    with store.place.fs.open_input_file(f"{store.place.path}/{part}") as file:
        store.put(store.place.path, file.read())
    with pytest.raises(SourceError, match=r"out is an object, and others are below \S+out/,"):
        read("parquet", target)
    with pytest.raises(TargetError, match="is a file; a write needs a directory"):
        write("parquet", target, numbers(2), job="b")
    _, folder, name = store.place.path.split("/")
    assert seen(server.uri(f"{folder}/{name}/part-*")) == [1]
    if server.kind != "gcs":  # this emulator lists one of the two
        assert seen(server.uri(f"{folder}/o*")) == [1, 1]


@pytest.mark.parametrize(
    ("status", "refused"),
    [("403 Forbidden", False), ("400 Bad Request", False), ("501 Not Implemented", True)],
)
def test_only_the_stores_answer_says_that_it_has_no_conditional_puts(
    status: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error's text has the object's name: 501 in it, as in entry 501 of a log, says nothing."""
    import obstore
    from obstore.exceptions import GenericError

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    path = f"tenant-501/x/_spark_channel/{501:020d}.json"

    def answer(*_arguments: Any, **_options: Any) -> None:
        code = "NotImplemented" if refused else "Other"
        raise GenericError(
            f"Generic S3 error: Error performing PUT http://host/{path} in 1.2ms - Server returned non-2xx status "
            f"code: {status}: <Error><Code>{code}</Code></Error>"
        )

    monkeypatch.setattr(obstore, "put", answer)
    place = locate("s3://tenant-501/x?region=us-east-1")
    with pytest.raises(UnsupportedError if refused else OSError, match=status.split(maxsplit=1)[0]):
        put_new(place, path, b"x")


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_an_object_that_is_removed_while_it_is_open(target: str) -> None:
    """What each store says of it: the file is gone, to whoever reads rows; no file, to whoever reads a note."""
    write(
        "parquet",
        target,
        pa.table({"n": range(100_000), "s": ["x" * 40] * 100_000}),
        rowGroupRows="1000",
    )
    place = locate(target)
    (name,) = [path for path in objects(place) if path.startswith("part-")]
    source = reader_of("parquet", target)
    (split,) = source.split(1)
    batches = source.read(split)
    next(batches)
    store_of(place).remove(f"{place.path}/{name}")
    with pytest.raises(SourceError, match=r"removed after the read was planned"):
        list(batches)
    assert read_file(place, f"{place.path}/{name}") is None


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_a_note_that_is_removed_while_it_is_read(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = locate(target)
    store = store_of(place)
    store.put(f"{place.path}/note", b"one")
    opened: list[str] = []

    class Removes:
        """Opens a file, and has it removed before it is read."""

        def open_input_file(self, path: str) -> Any:
            found = place.fs.open_input_file(path)
            opened.append(path)
            store.remove(path)
            return found

    assert read_file(replace(place, fs=Removes()), f"{place.path}/note") is None
    assert len(opened) == 1


@pytest.mark.parametrize("server", BUCKETS, indirect=True)
def test_a_folder_that_two_jobs_remove_and_a_third_writes_to(target: str) -> None:
    """A job that was stopped writes to it when it wakes up, after the other removed it and before this one does."""
    place = locate(target)
    store = store_of(place)
    folder = f"{place.path}/gone"
    store.put(f"{folder}/old", b"x")

    class Meanwhile:
        def get_file_info(self, selector: Any) -> Any:
            return place.fs.get_file_info(selector)

        def delete_dir(self, path: str) -> None:
            store.put(f"{path}/late", b"x")
            raise FileNotFoundError(path)

    store_of(replace(place, fs=Meanwhile())).remove_tree(folder)
    assert objects(place) == ["gone/late"]


def test_a_reader_sees_the_old_content_or_the_new_one(target: str) -> None:
    place = locate(target)
    store, path = store_of(place), f"{place.path}/note"
    store.make(f"{place.path}/{LOG}")
    store.put(path, b"0")
    done = threading.Event()
    seen: set[bytes | None] = set()

    def look() -> None:
        while not done.is_set():
            seen.add(read_file(place, path))

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(_times(target, 40)):
        store.put(path, str(number).encode())
    done.set()
    thread.join(60)
    assert seen
    assert b"" not in seen
