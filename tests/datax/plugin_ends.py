"""Servers that plugins of DataX and of spark-channel both reached, for the jobs of plugins.json."""

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.orc
import pyarrow.parquet
from bson import json_util

from spark_channel.connectors.hdfs import HdfsClient
from tests.datax.relays import old_driver_relay, oss_relay
from tests.servers.clickhouse import PASSWORD as CLICKHOUSE_PASSWORD
from tests.servers.clickhouse import USER as CLICKHOUSE_USER
from tests.servers.clickhouse import clickhouse_server
from tests.servers.ferretdb import ferret_server
from tests.servers.file_servers import PASSWORD, USER, file_server
from tests.servers.hdfs import start_hdfs
from tests.servers.opensearch import opensearch_server
from tests.servers.seaweedfs import start_seaweedfs

__all__ = ["ENDS", "End", "rows_after", "written_job"]

Job = dict[str, Any]


@dataclass(frozen=True)
class End:
    """`marks` are put into job files; `fill` makes what a job reads, after all else was removed; `rows` are what is
    in the target. `relays` are the marks for DataX, where it reaches a server through a relay."""

    marks: Mapping[str, str]
    fill: Callable[[Job], None]
    rows: Callable[[], list[Any]]
    relays: Mapping[str, str] = field(default_factory=dict)


def _lines(folder: Path) -> list[Any]:
    texts = (path.read_text() for path in folder.rglob("*") if path.is_file())
    return sorted(line for text in texts for line in text.split("\n") if line)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


def _rows_in(data: bytes) -> list[str]:
    """The rows of a file: lines of a text, or values of ORC and Parquet."""
    if data.startswith(b"ORC"):
        table = pyarrow.orc.ORCFile(io.BytesIO(data)).read()
    elif data.startswith(b"PAR1"):
        table = pyarrow.parquet.read_table(io.BytesIO(data))
    else:
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        return [line for line in data.decode("utf-8", "backslashreplace").split("\n") if line]
    return ["|".join(map(str, row.values())) for row in table.to_pylist()]


@contextmanager
def ftp() -> Iterator[End]:
    """vsftpd, with a folder `in` to read and a folder `out` to write."""
    with file_server("vsftpd") as server:

        def fill(given: Job) -> None:
            for name in ("in", "out"):
                folder = server.home / name
                for path in sorted(folder.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
                folder.mkdir(exist_ok=True)
            for name, text in given.items():
                path = server.home / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_bytes(text))
            server.give(server.home)

        marks = {"{PORT}": str(server.port), "{HOME}": str(server.home)}
        marks |= {"{USER}": USER, "{PASSWORD}": PASSWORD}
        yield End(marks, fill, lambda: _lines(server.home / "out"))


@contextmanager
def elasticsearch() -> Iterator[End]:
    """OpenSearch, with the index `t` to write. DataX sends its requests in chunks, which the relay does not pass on."""
    with opensearch_server() as server:
        # DataX's plugin asks for the version of Elasticsearch.
        compatible = {"persistent": {"compatibility.override_main_response_version": True}}
        server.ask("PUT", "/_cluster/settings", compatible)

        def fill(given: Job) -> None:
            server.clear()
            for name, documents in given.items():
                server.put(name, documents)

        def rows() -> list[Any]:
            # An id that the server made is a long one.
            found = server.documents("t").items()
            return sorted(
                json.dumps([key if len(key) < 12 else "*", each], sort_keys=True)
                for key, each in found
            )

        yield End({"{URL}": f"http://127.0.0.1:{server.port}"}, fill, rows)


@contextmanager
def mongodb() -> Iterator[End]:
    """FerretDB, with the collection `s` to read and `t` to write."""
    with ferret_server() as server, old_driver_relay(server.port) as relay:
        database = server.client["shop"]

        def fill(given: Job) -> None:
            for name in ("s", "t"):
                database.drop_collection(name)
            for name, documents in given.items():
                server.put(name, json_util.loads(json.dumps(documents)))

        def rows() -> list[Any]:
            return sorted(_document(each) for each in server.documents("t"))

        address = "{ADDRESS}"
        yield End(
            {address: f"127.0.0.1:{server.port}"}, fill, rows, {address: f"127.0.0.1:{relay}"}
        )


def _document(found: dict[str, Any]) -> str:
    """A document as text. An id that the server or a driver made is `*`."""
    shown = json.loads(json_util.dumps(found, json_options=json_util.CANONICAL_JSON_OPTIONS))
    shown["_id"] = "*" if "$oid" in shown["_id"] else shown["_id"]
    return json.dumps(shown, sort_keys=True)


@contextmanager
def clickhouse() -> Iterator[End]:
    """ClickHouse's engine, with a table `s` to read and `t` to write. Its interface here packs no answer."""
    with clickhouse_server() as server:

        def fill(given: Job) -> None:
            for name in ("s", "t"):
                server.sql(f"DROP TABLE IF EXISTS {name}")
            for statement in given.get("sql", ()):
                server.sql(statement)

        def rows() -> list[Any]:
            return server.sql("SELECT * FROM t ORDER BY 1").split("\n")

        url = f"jdbc:clickhouse://127.0.0.1:{server.port}/default"
        login = {"{USER}": CLICKHOUSE_USER, "{PASSWORD}": CLICKHOUSE_PASSWORD}
        yield End({**login, "{URL}": url}, fill, rows, {"{URL}": f"{url}?compress=0"})


@contextmanager
def hdfs() -> Iterator[End]:
    """A NameNode and a DataNode, with a folder `/in` to read and a folder `/out` to write."""
    with start_hdfs() as port:
        address = f"hdfs://127.0.0.1:{port}"
        client = HdfsClient(address)

        def fill(given: Job) -> None:
            for folder in ("/in", "/out"):
                client.remove_tree(folder)
                client.make(folder)
            for name, text in given.items():
                client.make(name.rpartition("/")[0])
                with client.open_write(name) as file:
                    file.write(_bytes(text))

        def rows() -> list[Any]:
            texts: list[str] = []
            for entry in client.entries("/out"):
                name = entry.path.rpartition("/")[2]
                if not entry.is_folder and not name.startswith(("_", ".")):
                    with client.open_read(entry.path) as file:
                        texts += _rows_in(file.read())
            return sorted(texts)

        yield End({"{FS}": address}, fill, rows)


@contextmanager
def oss() -> Iterator[End]:
    """SeaweedFS, which speaks S3: OSS has no server for tests. A relay signs what DataX's plugin asks of it."""
    with start_seaweedfs("shop") as server, oss_relay(server) as relay:
        login = server.environment
        key, secret = login["AWS_ACCESS_KEY_ID"], login["AWS_SECRET_ACCESS_KEY"]
        store = pafs.S3FileSystem(
            access_key=key,
            secret_key=secret,
            endpoint_override=f"127.0.0.1:{server.port}",
            scheme="http",
        )

        def fill(given: Job) -> None:
            for info in store.get_file_info(pafs.FileSelector("shop", recursive=True)):
                if info.type == pafs.FileType.File:
                    store.delete_file(info.path)
            for name, text in given.items():
                with store.open_output_stream(f"shop/{name}") as stream:
                    stream.write(_bytes(text))

        def rows() -> list[Any]:
            texts: list[str] = []
            for info in store.get_file_info(pafs.FileSelector("shop", recursive=True)):
                is_row = "/_" not in info.path and info.path.startswith("shop/out")
                if info.type == pafs.FileType.File and is_row:
                    with store.open_input_stream(info.path) as stream:
                        texts += _rows_in(stream.read())
            return sorted(texts)

        marks = {"{KEY}": key, "{SECRET}": secret}
        address = "{ENDPOINT}"
        ours, theirs = f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{relay}"
        yield End({**marks, address: ours}, fill, rows, {address: theirs})


ENDS: dict[str, Callable[[], AbstractContextManager[End]]] = {
    "ftp": ftp,
    "elasticsearch": elasticsearch,
    "mongodb": mongodb,
    "clickhouse": clickhouse,
    "hdfs": hdfs,
    "oss": oss,
}


def written_job(job: Job, folder: Path, end: End, *, for_datax: bool = False) -> Path:
    """The job.json of a job, with what it reads."""
    (folder / "out").mkdir(parents=True)
    for name, text in job.get("files", {}).items():
        (folder / name).write_text(text)
    end.fill(job.get("fill", {}))
    content = {"reader": job["reader"], "writer": job["writer"]}
    whole = {"job": {"setting": {"speed": {"channel": 1}}, "content": [content]}}
    text = json.dumps(whole)
    marks = {**end.marks, **(end.relays if for_datax else {})}
    for mark, value in {"{WORK}": str(folder), **marks}.items():
        text = text.replace(mark, value)
    path = folder / "job.json"
    path.write_text(text)
    return path


def rows_after(job: Job, folder: Path, end: End) -> list[Any]:
    """What is in the target: the server, or the folder `out`."""
    is_file = job["writer"]["name"] == "txtfilewriter"
    return _lines_of(folder / "out") if is_file else end.rows()


def _lines_of(folder: Path) -> list[Any]:
    paths = [path for path in folder.glob("o__*") if path.is_file()]
    return sorted(line for path in paths for line in path.read_text().split("\n") if line)
