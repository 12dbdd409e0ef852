"""ClickHouse's engine (chdb) behind a small HTTP server that speaks ClickHouse's interface: real SQL and formats.

It runs as a separate process: `python -m tests.servers.clickhouse` prints its port, and ends with its input.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import Request, urlopen

from tests.servers.installed import installed
from tests.servers.ports import free_port

USER, PASSWORD = "tester", "s3cret of/tester:%"
_INSERT = re.compile(rb"\s*INSERT\s+INTO\s+(.*?)\s+FORMAT\s+(\w+)\s(.*)", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"\s+FORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_START_SECONDS = 60.0
_NOT_SETTINGS = frozenset(
    {
        "query",
        "database",
        "user",
        "password",
        "default_format",
        "compress",
        "session_id",
        "query_id",
        "session_timeout",
    }
)


@dataclass
class ClickhouseServer:
    """`sql` is the witness: the engine's own answer, as text."""

    port: int

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}/default"

    def sql(self, statement: str) -> str:
        request = Request(
            f"http://127.0.0.1:{self.port}/?default_format=TabSeparated",
            statement.encode(),
            {"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD},
        )
        with urlopen(request, timeout=60) as answer:
            return str(answer.read().decode()).rstrip("\n")


@contextmanager
def clickhouse_server() -> Iterator[ClickhouseServer]:
    directory = tempfile.mkdtemp(prefix="clickhouse-")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.clickhouse", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield ClickhouseServer(int(process.stdout.readline()))
    finally:
        process.communicate(timeout=30)
        shutil.rmtree(directory, ignore_errors=True)


_OLD = """<yandex><logger><console>1</console><level>warning</level></logger>
<http_port>{port}</http_port><listen_host>127.0.0.1</listen_host><timezone>UTC</timezone>
<path>{directory}/data/</path><tmp_path>{directory}/tmp/</tmp_path><mark_cache_size>1000000</mark_cache_size>
<users_config>{users}</users_config><default_profile>default</default_profile>
<default_database>default</default_database></yandex>"""


@contextmanager
def old_clickhouse_server() -> Iterator[ClickhouseServer]:
    """ClickHouse 18.16 of Debian 12, whose user `default` has no password."""
    root = installed("clickhouse-old", "clickhouse-server of Debian")
    with tempfile.TemporaryDirectory(prefix="clickhouse-old-") as directory:
        port, folder = free_port(), Path(directory)
        users = root / "etc" / "clickhouse-server" / "users.xml"
        (folder / "config.xml").write_text(_OLD.format(port=port, directory=directory, users=users))
        libraries = [str(each) for top in ("usr/lib", "lib") for each in root.glob(f"{top}/*-gnu")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [root / "usr/sbin/clickhouse-server", f"--config-file={folder}/config.xml"],
                cwd=folder,
                env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
                stdout=log,
                stderr=log,
            )
        try:
            _wait(port, process, folder / "log")
            yield ClickhouseServer(port)
        finally:
            process.kill()
            process.wait(10)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(errors="replace")[-2000:]) from None
            time.sleep(0.05)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer is one packet, which no other waits for
    disable_nagle_algorithm = True
    engine: Any
    lock = threading.Lock()
    files: Path

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._run(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            self._run(self._chunks())
        else:
            self._run(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _run(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.path == "/ping":
            self._answer(200, b"Ok.\n")
            return
        if not self._is_known(given):
            self._answer(
                403,
                b"Code: 516. DB::Exception: tester: Authentication failed. (AUTHENTICATION_FAILED)",
            )
            return
        # As in ClickHouse, the query continues in the body, and rows to insert follow it.
        query = given["query"].encode() + b"\n" + body if "query" in given else body
        try:
            data = self._asked(query, given)
        except Exception as error:
            self._answer(500, str(error).encode())
        else:
            self._answer(200, data)

    def _is_known(self, given: dict[str, str]) -> bool:
        import base64

        sent = (self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key"))
        login = self.headers.get("Authorization", "")
        if login.startswith("Basic "):
            user, _, password = base64.b64decode(login[6:]).decode().partition(":")
            sent = (user, password)
        elif "user" in given:
            sent = (given["user"], given.get("password"))
        return sent == (USER, PASSWORD)

    def _asked(self, query: bytes, given: dict[str, str]) -> bytes:
        settings = {name: value for name, value in given.items() if name not in _NOT_SETTINGS}
        insert = _INSERT.fullmatch(query)
        with self.lock:
            self.engine.query(f"USE `{given.get('database') or 'default'}`")
            for name, value in settings.items():
                try:
                    self.engine.query(f"SET {name} = '{value}'")
                except Exception:
                    continue  # a setting of the HTTP interface
            if insert is not None:
                target, form = insert[1].decode(), insert[2].decode()
                with tempfile.NamedTemporaryFile(dir=self.files) as file:
                    file.write(insert[3])
                    file.flush()
                    self.engine.query(
                        f"INSERT INTO {target} SELECT * FROM file('{file.name}', '{form}')"
                    )
                return b""
            text = query.decode()
            named = _FORMAT.search(text)
            form = named[1] if named else given.get("default_format", "TabSeparated")
            found = self.engine.query(
                text[: named.start() if named else None].strip().rstrip(";"), form
            )
            return bytes(found.bytes() or b"")

    def _answer(self, status: int, data: bytes) -> None:
        """In chunks, as ClickHouse answers: clickhouse-connect reads nothing else before version 1."""
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-ClickHouse-Summary", "{}")
        self.end_headers()
        chunks = [data] if data else []
        self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*chunks, b""]))


def main(directory: str) -> None:
    from chdb import session

    opened: Any = session.Session
    _Handler.engine, _Handler.files = opened(f"{directory}/data"), Path(directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()
    server.server_close()
    _Handler.engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
