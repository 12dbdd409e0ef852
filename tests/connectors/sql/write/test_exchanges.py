"""How many exchanges with the server each step of a write has: a server may be 20 ms away, and each waits for it."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, load_writer
from spark_channel.options import CommitMode
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

_ROWS = pa.table({"id": pa.array(range(20), pa.int32()), "note": ["a row"] * 20})
_COLUMNS = "(id INT PRIMARY KEY, note TEXT)"
_MODES: dict[str, tuple[CommitMode, bool, bool, dict[str, str]]] = {
    "append by job": ("job", True, False, {}),
    "append by task": ("task", True, False, {}),
    "overwrite": ("job", True, True, {}),
    "first write": ("job", False, False, {}),
    "upsert": ("job", True, False, {"writemode": "upsert", "keycolumns": "id"}),
}
"""`commit`, whether the table is there, whether it is overwritten, and options."""
_COUNTS = {
    ("postgresql", "append by job"): (20, 22, 14),
    ("postgresql", "append by task"): (24, 28, 13),
    ("postgresql", "overwrite"): (20, 22, 19),
    ("postgresql", "first write"): (22, 22, 12),
    ("postgresql", "upsert"): (20, 22, 16),
    ("mysql", "append by job"): (28, 32, 35),
    ("mysql", "append by task"): (44, 44, 20),
    ("mysql", "overwrite"): (28, 32, 39),
    ("mysql", "first write"): (26, 32, 34),
    ("mysql", "upsert"): (28, 32, 42),
}
"""Exchanges of (`prepare`, two tasks, `commit`), logins included. They may become fewer, not more.

A task of MySQL looks at its table in a separate exchange, since its server takes one statement at a time.
"""


class CountingRelay:
    """Passes bytes on to a server, and counts exchanges: how often the server answers what a client has said."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sides: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._lock = threading.Lock()
        self._count = 0
        self._threads[0].start()

    def taken(self) -> int:
        """The exchanges since the last call."""
        with self._lock:
            count, self._count = self._count, 0
        return count

    def end(self) -> None:
        for side in (self._listening, *self._sides):
            _shut(side)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        for side in (self._listening, *self._sides):
            side.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._sides += (near, far)
            spoken: list[socket.socket] = []  # who spoke last
            for source, sink in ((near, far), (far, near)):
                begun = threading.Thread(target=self._carry, args=(source, sink, near, spoken))
                self._threads.append(begun)
                begun.start()

    def _carry(
        self, source: socket.socket, sink: socket.socket, near: socket.socket, spoken: list[Any]
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    if source is not near and spoken == [near]:
                        self._count += 1
                    spoken[:] = [source]
                sink.sendall(data)
        except OSError:
            pass  # one of them is gone
        _shut(sink)


def _shut(side: socket.socket) -> None:
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is shut already


@dataclass
class Counted:
    """A schema of a server behind a relay."""

    options: dict[str, Any]
    run: Callable[[str], object]
    relay: CountingRelay

    def write(self, mode: str, table: str) -> tuple[int, int, int]:
        commit, is_there, overwrite, options = _MODES[mode]
        if is_there:
            self.run(f"CREATE TABLE {table} {_COLUMNS}")
        writer, _ = load_writer({**self.options, **options, "dbtable": table})
        self.relay.taken()
        context = WriteContext(f"job-{table}", commit, overwrite=overwrite)
        plan = writer.prepare(context, _ROWS.schema)
        prepared = self.relay.taken()
        receipts = [
            self._task(writer.open(plan, number, 0), _ROWS.slice(number * 10, 10))
            for number in range(2)
        ]
        written = self.relay.taken()
        writer.commit(plan, receipts)
        return prepared, written, self.relay.taken()

    def _task(self, task: Any, rows: pa.Table) -> Receipt:
        for batch in rows.to_batches():
            task.write(batch)
        receipt: Receipt = task.close()
        return receipt


@pytest.fixture(params=["postgresql", "mysql"])
def counted(request: pytest.FixtureRequest) -> Iterator[Counted]:
    server: PostgresServer | MariadbServer
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        url, begun = "postgresql://127.0.0.1:{}/postgres", "SET search_path = counted; "
    else:
        server = request.getfixturevalue("mariadb_server")
        url, begun = "mysql://127.0.0.1:{}/counted", "USE counted; "
    run = server.psql if isinstance(server, PostgresServer) else server.sql
    relay = CountingRelay(server.port)
    run("CREATE SCHEMA counted")
    try:
        options = {**server.login, "url": url.format(relay.port)}
        if isinstance(server, PostgresServer):
            options |= {"currentschema": "counted", "sslmode": "disable"}
        made = Counted(options, lambda sql: run(begun + sql), relay)
        made.write("append by job", "first")  # makes the tables of claims
        yield made
    finally:
        is_pg = isinstance(server, PostgresServer)
        run(f"DROP SCHEMA counted{' CASCADE' if is_pg else ''}")
        relay.end()


@pytest.mark.full
@pytest.mark.parametrize("mode", list(_MODES))
def test_a_write_has_no_more_exchanges_than_before(
    counted: Counted, mode: str, request: pytest.FixtureRequest
) -> None:
    system = request.node.callspec.params["counted"]
    counts = counted.write(mode, "t")
    assert counts == _COUNTS[system, mode]
    assert counted.run("SELECT COUNT(*) FROM t") == "20"
