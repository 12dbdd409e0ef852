"""FerretDB for the tests: another team's server for MongoDB's wire protocol, over SQLite, in its own directory."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure

from tests.servers.installed import installed
from tests.servers.ports import free_port

__all__ = ["FerretServer", "ferret_server"]

_START_SECONDS = 30.0


@dataclass
class FerretServer:
    """`client` is the witness: MongoDB's own driver."""

    port: int
    client: MongoClient[dict[str, Any]]

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/shop"

    def put(self, collection: str, documents: list[dict[str, Any]]) -> None:
        self.client["shop"][collection].insert_many(documents)

    def documents(self, collection: str) -> list[dict[str, Any]]:
        return list(self.client["shop"][collection].find().sort("_id", 1))


@contextmanager
def ferret_server() -> Iterator[FerretServer]:
    program = installed("ferretdb", "github.com/FerretDB/FerretDB, a module of Go") / "ferretdb"
    folder, port = tempfile.mkdtemp(prefix="ferretdb-"), free_port()
    options = {
        "handler": "sqlite",
        "sqlite-url": f"file:{folder}/",
        "state-dir": folder,
        "listen-addr": f"127.0.0.1:{port}",
        "debug-addr": "-",
        "telemetry": "disable",
        "log-level": "error",
    }
    log = Path(folder) / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *(f"--{name}={value}" for name, value in options.items())],
            stdout=out,
            stderr=out,
        )
    client: MongoClient[dict[str, Any]] = MongoClient(
        f"mongodb://127.0.0.1:{port}", serverSelectionTimeoutMS=500, tz_aware=True
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                client.admin.command("ping")
                break
            except ConnectionFailure:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"FerretDB does not start: {log.read_text()}") from None
        yield FerretServer(port, client)
    finally:
        client.close()
        process.kill()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
