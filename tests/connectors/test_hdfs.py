"""Writes to HDFS where answers are lost: a folder stands for HDFS. `test_object_stores` has a real one."""

import errno
import os
import posixpath
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

pytest.importorskip("hdfs_native")

from spark_channel.connectors import hdfs
from spark_channel.connectors.files.filesystem import LOG, Location, locate
from spark_channel.connectors.files.store import UNFINISHED, HdfsStore
from spark_channel.errors import (
    CommitError,
    MissingPackageError,
    OptionError,
    TargetError,
    UnsupportedError,
)
from tests.connectors.files.helpers import leftovers, numbers, read, write


class FolderHdfs:
    """The client's operations, on a disk. `on_rename` is called in place of the next conditional rename."""

    def __init__(self, _root: str) -> None:
        self.on_rename: Callable[[str, str], None] | None = None

    def make(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def open_write(self, path: str) -> Any:
        file = Path(path).open("xb")  # noqa: SIM115 - the caller closes it
        file.sync = file.flush  # type: ignore[attr-defined] # a part of this kind
        return file

    def open_read(self, path: str) -> Any:
        return Path(path).open("rb")

    def rename(self, old: str, new: str) -> None:
        Path(old).rename(new)

    def rename_new(self, old: str, new: str) -> None:
        act, self.on_rename = self.on_rename, None
        (act or self._rename_new)(old, new)

    def _rename_new(self, old: str, new: str) -> None:
        os.link(old, new)
        Path(old).unlink()

    def remove(self, path: str) -> None:
        Path(path).rmdir() if Path(path).is_dir() else Path(path).unlink(missing_ok=True)

    def remove_empty(self, path: str) -> None:
        try:
            Path(path).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def touch(self, path: str, at: float) -> None:
        os.utime(path, (at, at))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FolderHdfs:
    made = FolderHdfs("")
    monkeypatch.setattr(hdfs, "_opened", lambda _root, _process: made)
    monkeypatch.setattr(hdfs, "filesystem", lambda _root: pafs.LocalFileSystem())
    return made


@pytest.fixture
def store(client: FolderHdfs, tmp_path: Path) -> HdfsStore:
    made = HdfsStore(Location(pafs.LocalFileSystem(), str(tmp_path), "hdfs://nn:8020"))
    made.make(str(tmp_path / LOG))
    return made


def _uri(path: Path) -> str:
    return f"hdfs://{path.name}:8020{path}"  # filesystems are remembered by their root


def test_append_overwrite_and_read(client: FolderHdfs, tmp_path: Path) -> None:
    target = tmp_path / "out"
    write("parquet", _uri(target), numbers(1, 2), job="a")
    write("parquet", _uri(target), numbers(3), job="b")
    assert sorted(read("parquet", _uri(target))["n"].to_pylist()) == [1, 2, 3]
    write("parquet", _uri(target), numbers(4), job="c", context={"overwrite": True})
    assert read("parquet", _uri(target))["n"].to_pylist() == [4]
    assert leftovers(target) == []
    assert len(list(target.glob("part-*"))) == 1, (
        "what was replaced is visible to Spark's own readers"
    )
    assert len(list((target / LOG / "replaced").rglob("part-*"))) == 2


def test_a_rename_whose_answer_is_lost_is_settled_by_the_log(
    client: FolderHdfs, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    write("parquet", _uri(target), numbers(1), job="a")

    def lost(old: str, new: str) -> None:
        if '"what": "publish' not in Path(old).read_text():
            client._rename_new(old, new)
            client.on_rename = lost
            return
        client._rename_new(old, new)
        raise ConnectionError("the NameNode does not answer")

    client.on_rename = lost
    write("parquet", _uri(target), numbers(2), job="b", context={"txn": ("n", 1)})
    assert (
        write("parquet", _uri(target), numbers(2), job="c", context={"txn": ("n", 1)}).published_at
        is not None
    )
    assert sorted(read("parquet", _uri(target))["n"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("second", [FileNotFoundError, FileExistsError])
def test_a_request_that_the_library_sends_twice(
    client: FolderHdfs, store: HdfsStore, tmp_path: Path, second: type[OSError]
) -> None:
    def twice(old: str, new: str) -> None:
        client._rename_new(old, new)
        raise second(old)

    client.on_rename = twice
    path = str(tmp_path / LOG / "1.json")
    assert store.put_new(path, b"mine")
    assert not store.put_new(path, b"another's")
    assert Path(path).read_bytes() == b"mine"
    assert [each.name for each in (tmp_path / LOG).iterdir()] == ["1.json"]


def test_a_rename_of_a_staged_file_that_is_sent_twice(
    client: FolderHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    rename, twice = client.rename, []

    def sent_twice(old: str, new: str) -> None:
        rename(old, new)
        if posixpath.basename(new).startswith("part-"):
            twice.append(new)
            rename(old, new)

    monkeypatch.setattr(client, "rename", sent_twice)
    write("parquet", _uri(target), numbers(1, 2), job="a")
    assert len(twice) == 1
    assert read("parquet", _uri(target))["n"].to_pylist() == [1, 2]


def test_a_rename_of_a_file_that_is_not_there_fails(
    client: FolderHdfs, store: HdfsStore, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        store.rename(str(tmp_path / "old"), str(tmp_path / "new"))
    (tmp_path / "old").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        store.rename(str(tmp_path / "old"), str(tmp_path / "missing" / "new"))


def test_a_file_that_another_host_took_for_a_dead_processes_is_written_again(
    client: FolderHdfs, store: HdfsStore, tmp_path: Path
) -> None:
    def gone(old: str, new: str) -> None:
        Path(old).unlink()
        client._rename_new(old, new)

    client.on_rename = gone
    assert store.put_new(str(tmp_path / LOG / "1.json"), b"mine")
    assert [each.name for each in (tmp_path / LOG).iterdir()] == ["1.json"]


def test_files_of_killed_processes_of_this_host_are_removed(
    client: FolderHdfs, store: HdfsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_old: str, _new: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HdfsStore, "_remove_quietly", lambda *_: None)
    for host, pid in (("here", 7), ("here", 8), ("there", 7)):
        client.on_rename = killed
        with monkeypatch.context() as patch:
            patch.setattr("socket.gethostname", lambda host=host: host)
            patch.setattr("os.getpid", lambda pid=pid: pid)
            with pytest.raises(KeyboardInterrupt):
                store.put_new(str(tmp_path / LOG / "1.json"), b"x")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr("spark_channel.connectors.files.store.is_running", lambda pid: pid == 8)
    store.remove_unfinished(str(tmp_path / LOG))
    left = sorted(each.name.rpartition("-")[0] for each in (tmp_path / LOG).iterdir())
    assert left == [f"{UNFINISHED}here-8", f"{UNFINISHED}there-7"]
    for each in (tmp_path / LOG).iterdir():
        if "there" in each.name:
            os.utime(each, (time.time() - 90_000,) * 2)
    store.remove_unfinished(str(tmp_path / LOG))
    left = [each.name.rpartition("-")[0] for each in (tmp_path / LOG).iterdir()]
    assert left == [f"{UNFINISHED}here-8"], "a host in a container does not come again"


def test_a_filesystem_whose_rename_replaces_is_refused(
    client: FolderHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_rename_new", lambda old, new: Path(old).replace(new))
    with pytest.raises(UnsupportedError, match="a rename replaces an existing file"):
        write("parquet", _uri(tmp_path / "out"), numbers(1))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_write_without_the_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hdfs, "is_installed", lambda: False)
    place = Location(pafs.LocalFileSystem(), str(tmp_path), "hdfs://nn:8020")
    with pytest.raises(MissingPackageError, match=r"pip install 'spark-channel\[hdfs\]'"):
        HdfsStore(place)


def test_a_rename_that_arrives_late_publishes_nothing(client: FolderHdfs, tmp_path: Path) -> None:
    """The job got an error for its write: the request that is still on its way must not be carried out then."""
    target = tmp_path / "out"
    write("parquet", _uri(target), numbers(1), job="a")
    late: list[tuple[str, str, bytes]] = []

    def delayed(old: str, new: str) -> None:
        data = Path(old).read_bytes()
        if b'"what": "publish' not in data:
            client._rename_new(old, new)
            client.on_rename = delayed
            return
        late.append((old, new, data))
        raise ConnectionError("the NameNode does not answer")

    client.on_rename = delayed
    with pytest.raises(CommitError, match="The target is unchanged"):
        write("parquet", _uri(target), numbers(2), job="b", context={"txn": ("n", 1)})
    ((old, new, data),) = late
    Path(old).write_bytes(data)  # as if the removal of it had been lost, too
    with pytest.raises(FileExistsError):
        client._rename_new(old, new)
    assert read("parquet", _uri(target))["n"].to_pylist() == [1]
    write("parquet", _uri(target), numbers(2), job="c", context={"txn": ("n", 1)})
    assert sorted(read("parquet", _uri(target))["n"].to_pylist()) == [1, 2]


def test_a_uri_with_a_login_is_refused() -> None:
    with pytest.raises(OptionError, match="names more than a host"):
        locate("hdfs://ann@nn:8020/out")


def test_a_question_mark_belongs_to_the_name() -> None:
    assert locate("hdfs://nn:8020/out?replication=2").path == "/out?replication=2"


def test_a_uri_without_a_host_is_in_the_default_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = locate("hdfs:///out/x")
    assert (place.root, place.path) == ("hdfs://", "/out/x")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(OSError, match=r"fs\.defaultFS of HADOOP_CONF_DIR"):
        hdfs.HdfsClient(place.root)
    settings = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in (
            ("fs.defaultFS", "hdfs://127.0.0.1:1"),
            ("dfs.client.failover.max.attempts", 1),
        )
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (tmp_path / name).write_text(f"<configuration>{settings}</configuration>")
    with pytest.raises(OSError, match=r"/out/x.*refused"):
        hdfs.HdfsClient(place.root).info(place.path)
    for uri in ("hdfs://:8020/out", "viewfs:///out"):
        with pytest.raises(OptionError, match="names no host"):
            locate(uri)


def test_a_name_node_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "<name>dfs.client.failover.max.attempts</name><value>1</value>"
    (tmp_path / "hdfs-site.xml").write_text(
        f"<configuration><property>{setting}</property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(TargetError, match="hdfs:///out cannot be written"):
        write("parquet", "hdfs://127.0.0.1:1/out", pa.table({"n": [1]}))
