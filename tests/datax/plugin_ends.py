"""Servers that plugins of DataX and of spark-channel both reached, for the jobs of plugins.json."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.file_servers import PASSWORD, USER, file_server
from tests.servers.opensearch import opensearch_server

__all__ = ["ENDS", "End", "read_jobs", "rows_after", "written_job"]

Job = dict[str, Any]


def read_jobs() -> list[Job]:
    """The jobs, as they are written."""
    jobs: list[Job] = json.loads(Path(__file__).with_name("plugins.json").read_text("utf-8"))
    return jobs


@dataclass(frozen=True)
class End:
    """`marks` are put into job files; `fill` makes what a job reads, after all else was removed; `rows` are what is
    in the target."""

    marks: dict[str, str]
    fill: Callable[[Job], None]
    rows: Callable[[], list[Any]]


def _lines(folder: Path) -> list[Any]:
    texts = (path.read_text() for path in folder.rglob("*") if path.is_file())
    return sorted(line for text in texts for line in text.split("\n") if line)


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
                is_hex = text.startswith("hex:")
                path.write_bytes(bytes.fromhex(text[4:]) if is_hex else text.encode())
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


ENDS: dict[str, Callable[[], AbstractContextManager[End]]] = {
    "ftp": ftp,
    "elasticsearch": elasticsearch,
}


def written_job(job: Job, folder: Path, end: End) -> Path:
    """The job.json of a job, with what it reads."""
    (folder / "out").mkdir(parents=True)
    for name, text in job.get("files", {}).items():
        (folder / name).write_text(text)
    end.fill(job.get("fill", {}))
    content = {"reader": job["reader"], "writer": job["writer"]}
    whole = {"job": {"setting": {"speed": {"channel": 1}}, "content": [content]}}
    text = json.dumps(whole)
    for mark, value in {"{WORK}": str(folder), **end.marks}.items():
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
