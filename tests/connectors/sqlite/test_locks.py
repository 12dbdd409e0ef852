"""A program that has the file open by Python's `sqlite3`: its locks hold, whatever we do on the file meanwhile."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext

import pyarrow as pa
import pytest

from spark_channel.errors import ChannelError
from spark_channel.tunnel import Tunnel
from tests.connectors.sqlite.conftest import Db

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
SHORT = {"lockTimeout": "0.2"}
OTHER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    sys.exit(3 if "locked" in str(error) else 4)
connection.execute("INSERT INTO t VALUES (?, 'other')", (int(sys.argv[2]),))
connection.execute("COMMIT")
"""


def another_process_writes(db: Db, id_: int) -> bool:
    """False = it is locked out."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(db.path), str(id_)], check=False, timeout=60
    )
    assert done.returncode in (0, 3), done.returncode
    return done.returncode == 0


@contextmanager
def own_connection(db: Db) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(db.path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture(params=["DELETE", "WAL"])
def shop(db: Db, request: pytest.FixtureRequest) -> Db:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    db.sql(f"PRAGMA journal_mode = {request.param}")
    db.many("INSERT INTO t VALUES (?, 'before')", [(number,) for number in range(100, 3100)])
    return db


def _tunnel(db: Db) -> Tunnel:
    options = {"path": str(db.path), "dbtable": "t", "cursorColumn": "id"}
    return Tunnel("orders", options, store=str(db.path))


def _prepare(db: Db) -> None:
    db.writer(**SHORT).prepare(db.context(commit="job"), ROWS.schema)


WORK: dict[str, Callable[[Db], object]] = {
    "schema": lambda db: db.reader().schema(),
    "read": lambda db: db.read(),
    "exists": lambda db: db.writer(**SHORT).exists(),
    "prepare": _prepare,
    "check": lambda db: db.writer(**SHORT).check(db.context()),
}


@pytest.mark.parametrize("work", WORK)
def test_a_transaction_of_the_program_keeps_its_lock(shop: Db, work: str) -> None:
    with own_connection(shop) as own:
        own.execute("BEGIN IMMEDIATE")
        own.execute("INSERT INTO t VALUES (1, 'own')")
        refused = pytest.raises(ChannelError, match="another connection of this program")
        with refused if work == "prepare" else nullcontext():
            WORK[work](shop)
        assert not another_process_writes(shop, 2), "the lock of the open transaction was dropped"
        own.execute("COMMIT")
    assert another_process_writes(shop, 2)
    assert shop.sql("SELECT id, name FROM t WHERE id < 100") == [(1, "own"), (2, "other")]
    assert shop.sql("PRAGMA integrity_check") == [("ok",)]


def test_a_described_tunnel_leaves_the_lock(shop: Db) -> None:
    store = shop.path.with_name("tunnels.db")
    options = {"path": str(shop.path), "dbtable": "t", "cursorColumn": "id"}
    tunnel = Tunnel("orders", options, store=str(store))
    tunnel.create(channels=2)
    with (
        own_connection(shop) as own,
        closing(sqlite3.connect(store, isolation_level=None)) as beside,
    ):
        own.execute("BEGIN IMMEDIATE")
        own.execute("INSERT INTO t VALUES (1, 'own')")
        beside.execute("SELECT count(*) FROM spark_channel_tunnels").fetchall()
        assert tunnel.describe().channels
        assert not another_process_writes(shop, 2)
        own.execute("COMMIT")
    assert shop.sql("PRAGMA integrity_check") == [("ok",)]


def test_rows_of_everybody_are_there_beside_an_open_connection(shop: Db) -> None:
    """The connection of the program lives through a create, a write and a read, and writes in between."""
    with own_connection(shop) as own:
        assert own.execute("SELECT count(*) FROM t").fetchone() == (3000,)
        _tunnel(shop).create(channels=2)
        own.execute("INSERT INTO t VALUES (10, 'own')")
        assert another_process_writes(shop, 11)
        shop.write(ROWS, commit="job")
        own.execute("INSERT INTO t VALUES (12, 'own')")
        assert another_process_writes(shop, 13)
        assert shop.read().num_rows == 3007
        assert _tunnel(shop).describe().channels
        assert own.execute("SELECT count(*) FROM t").fetchone() == (3007,)
    assert shop.sql("SELECT id FROM t WHERE id < 100 ORDER BY id") == [
        (n,) for n in (1, 2, 3, 10, 11, 12, 13)
    ]
    assert shop.sql("PRAGMA integrity_check") == [("ok",)]


def test_a_transaction_that_begins_while_we_read(shop: Db) -> None:
    """A look before the read would find nothing."""
    reader = shop.reader(fetchsize="10")
    reader.schema()
    batches = reader.read(reader.split(1)[0])
    next(batches)
    with own_connection(shop) as own:
        own.execute("BEGIN IMMEDIATE")
        batches.close()  # type: ignore[attr-defined] # a generator
        assert not another_process_writes(shop, 2)
        own.execute("COMMIT")


def test_threads_of_the_program(shop: Db) -> None:
    """One writes through us; the other has its own transactions."""
    troubles: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(5):
                shop.write(pa.table({"id": [10 + number], "name": ["ours"]}), commit="job")
        except BaseException as error:
            troubles.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    with own_connection(shop) as own:
        own.execute("PRAGMA busy_timeout = 30000")
        for number in range(5):
            own.execute("BEGIN IMMEDIATE")
            own.execute("INSERT INTO t VALUES (?, 'own')", (20 + number,))
            assert not another_process_writes(shop, 30 + number)
            own.execute("COMMIT")
    thread.join(120)
    assert not thread.is_alive()
    assert troubles == []
    assert shop.sql("SELECT count(*) FROM t WHERE id < 100") == [(10,)]
    assert shop.sql("PRAGMA integrity_check") == [("ok",)]
