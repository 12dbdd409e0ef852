"""A store that breaks off at any statement: the call leaves nothing, and the next heartbeat continues from there."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ClientExpiredError, TunnelError, TunnelStoreError
from spark_channel.tunnel.records import (
    ChannelState,
    ChannelStatus,
    Client,
    TunnelRecord,
    TunnelState,
    TunnelType,
)
from spark_channel.tunnel.store import SqliteStore, SqlStore, Statements
from tests.servers.postgres import PostgresServer
from tests.tunnel.world import channels

ROOT = Path(__file__).resolve().parents[2]
ORDERS = TunnelRecord(
    "orders", "id-1", TunnelType.BASE_AND_STREAM, "sqlite shop.db#orders", "id: int64", 0.0
)
ITEMS = replace(ORDERS, name="items", id="id-2")
AGAIN = replace(ORDERS, id="id-3")
CALLS = (
    "connect",
    "heartbeat",
    "hand_out",
    "checkpoint",
    "disconnect",
    "create",
    "reset",
    "delete",
)

COMMIT = -1
Break = Callable[[Statements], None]


class CrashError(Exception):
    """The process ends here."""


def raises(statements: Statements) -> None:
    raise CrashError


class Breaking:
    """Calls `how` before statement number `at` of a store, or before its COMMIT; not at all while `at` is 0."""

    def __init__(self, store: SqlStore, how: Break) -> None:
        self.at, self.count, self.how = 0, 0, how
        plain = store._transaction

        @contextmanager
        def transaction(*, make: bool = False) -> Iterator[Statements]:
            with plain(make=make) as statements:
                counted = _Counted(self, statements)
                yield counted
                if counted.writes:  # a look at what is there has nothing to commit
                    self.step(statements, last=True)

        store._transaction = transaction  # type: ignore[method-assign] # replaced for a while

    def step(self, statements: Statements, *, last: bool = False) -> None:
        self.count += 1
        if self.at == (COMMIT if last else self.count):
            self.how(statements)


class _Counted:
    def __init__(self, owner: Breaking, inner: Statements) -> None:
        self.owner, self.inner, self.writes = owner, inner, False

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.writes = self.writes or not sql.startswith("SELECT")
        self.owner.step(self.inner)
        return self.inner.rows(sql, parameters)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.rows(sql, parameters)


def prepared(store: SqlStore) -> dict[str, Callable[[], object]]:
    """A tunnel with two clients, the first of which holds channels; and each call that changes it."""
    store.create(ORDERS, list(channels(base=3, stream=1).values()))
    for name in ("a", "b"):
        store.connect("orders", Client(name))
    mine = store.heartbeat("orders", "a", ())
    store.hand_out("orders", "a", mine[0].id, 0, {"at": 3})
    report = [ChannelStatus(mine[1].id, mine[1].version + 1, ChannelState.TERMINATED)]
    return {
        "connect": lambda: store.connect("orders", Client("c")),
        "heartbeat": lambda: store.heartbeat("orders", "a", report),
        "hand_out": lambda: store.hand_out("orders", "a", mine[1].id, 0, {"at": 2}),
        "checkpoint": lambda: store.checkpoint("orders", "a", mine[0].id, 0, {"at": 3}),
        "disconnect": lambda: store.disconnect("orders", "a"),
        "create": lambda: store.create(ITEMS, list(channels(base=2, stream=1).values())),
        "reset": lambda: store.reset("orders", AGAIN, list(channels(base=2, stream=1).values())),
        "delete": lambda: store.delete("orders"),
    }


def kept(store: SqlStore) -> dict[str, tuple[TunnelRecord, TunnelState]]:
    return {record.name: (record, store.state(record.name)) for record in store.all()}


def repaired(store: SqlStore) -> None:
    """Heartbeats of those clients that the store knows share out whatever there is."""
    for name, (_, state) in kept(store).items():
        clients = list(state.clients)
        if not clients:
            store.connect(name, Client("new"))
            clients = ["new"]
        for client in clients * 3:
            given = [
                ChannelStatus(each.id, each.version + 1, ChannelState.CLOSED)
                for each in store.heartbeat(name, client, ())
                if each.state is ChannelState.CLOSING
            ]
            if given:
                store.heartbeat(name, client, given)
        found = store.state(name).channels.values()
        counts = [sum(channel.client == client for channel in found) for client in clients]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) >= 1


def broken_everywhere(
    store: SqlStore,
    calls: Mapping[str, Callable[[], object]],
    call: str,
    how: Break,
    error: type[Exception],
) -> None:
    """Break `call` off at each of its statements in turn, see that it leaves nothing, and let it be done."""
    before = kept(store)
    breaking = Breaking(store, how)
    breaking.at = COMMIT
    with pytest.raises(error):
        calls[call]()
    statements = breaking.count
    assert statements >= 3
    for number in range(1, statements):
        breaking.at, breaking.count = number, 0
        with pytest.raises(error):
            calls[call]()
    breaking.at = 0
    assert kept(store) == before
    calls[call]()
    assert kept(store) != before
    repaired(store)


@pytest.mark.parametrize("call", CALLS)
def test_a_crash_at_any_statement_leaves_what_was_there(
    make_store: Callable[[], SqlStore], call: str
) -> None:
    """And the same call again does what it would have done."""
    store = make_store()
    broken_everywhere(store, prepared(store), call, raises, CrashError)
    errors: dict[str, tuple[type[Exception], str]] = {
        "reset": (ClientExpiredError, "not known"),
        "delete": (TunnelError, "tunnel 'orders' does not exist"),
    }
    if call in errors:
        kind, text = errors[call]
        with pytest.raises(kind, match=text):
            store.heartbeat("orders", "a", ())


@pytest.mark.parametrize("call", ["heartbeat", "reset"])
@pytest.mark.parametrize("make_store", ["postgresql"], indirect=True)
def test_a_session_that_the_server_ends_at_any_statement_leaves_what_was_there(
    make_store: Callable[[], SqlStore], postgres_server: PostgresServer, call: str
) -> None:
    def ended(statements: Statements) -> None:
        ((pid,),) = statements.rows("SELECT pg_backend_pid()")
        postgres_server.psql(f"SELECT pg_terminate_backend({pid}, 10000)")

    store = make_store()
    broken_everywhere(store, prepared(store), call, ended, TunnelStoreError)


_KILLED = """
import os, signal, sys
from pathlib import Path
from spark_channel.tunnel.store import SqliteStore
from tests.tunnel.test_store_crash import Breaking, kept, prepared

def killed(statements):
    os.kill(os.getpid(), signal.SIGKILL)

for call in sys.argv[2:]:
    path = Path(sys.argv[1]) / f"{call}.db"
    store = SqliteStore(path, wall=lambda: 1000.0)
    calls = prepared(store)
    before, statements = kept(store), 0
    while True:
        child = os.fork()
        if not child:
            Breaking(store, killed).at = statements + 1
            calls[call]()
            os._exit(0)
        if not os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            break
        statements += 1
        assert kept(store) == before, (call, statements)
    assert kept(store) != before
    print(call, statements)
"""


def test_a_process_that_is_killed_at_any_statement_leaves_what_was_there(tmp_path: Path) -> None:
    """SQLite's journal is hot then: whoever opens the file next rolls it back."""
    calls = ["heartbeat", "create", "reset"]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), *calls],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = {call: int(number) for call, number in map(str.split, done.stdout.splitlines())}
    assert list(counts) == calls
    assert min(counts.values()) >= 3
    repaired(SqliteStore(tmp_path / "reset.db"))
