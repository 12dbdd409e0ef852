"""A tunnel's clients whose replication connection stays open: killed, suspended, overtaken."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.tunnel import Tunnel
from tests.servers.postgres import PostgresServer
from tests.tunnel.changes import StreamedSource
from tests.tunnel.children import Child

CLIENT = (
    StreamedSource.first
    + """
import json, sys, threading
from spark_channel.tunnel import Tunnel

source, store, held = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    found = [number for batch in delivery.batches for number in batch.column("id").to_pylist()]
    for number in found:
        sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    if held in found:
        threading.Event().wait()

Tunnel("watched", source, store=store).consume(process, threads=1)
"""
)


@pytest.fixture
def source(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    postgres_server.psql(
        "CREATE TABLE watched (id int PRIMARY KEY); CREATE PUBLICATION watched FOR TABLE watched"
    )
    yield {
        **postgres_server.login,
        "dbtable": "watched",
        "slot": "watched",
        "publication": "watched",
        "tunnelType": "stream",
        "heartbeatInterval": "5",
        "heartbeatTimeout": "20",
    }
    postgres_server.psql("DROP PUBLICATION watched; DROP TABLE watched")


def streams(server: PostgresServer) -> list[str]:
    query = "SELECT pid FROM pg_stat_replication WHERE application_name = 'spark-channel stream'"
    return server.psql(query).split()


def await_stream(server: PostgresServer) -> str:
    until = time.monotonic() + 60
    while not (found := streams(server)):
        assert time.monotonic() < until, "no client has opened one"
        time.sleep(0.1)
    return found[0]


@pytest.mark.timeout(300)
def test_what_a_killed_or_overtaken_client_did_not_confirm_comes_again(
    postgres_server: PostgresServer, source: dict[str, str], tmp_path: Path
) -> None:
    store = str(tmp_path / "tunnels.db")
    tunnel = Tunnel("watched", source, store=store)
    tunnel.create()
    children: list[Child] = []

    def client(held: int) -> Child:
        arguments = json.dumps([source, store, held])
        children.append(Child(CLIENT, [arguments], tmp_path / "client.log"))
        children[-1].go()
        return children[-1]

    def insert(*numbers: int) -> None:
        rows = ", ".join(f"({number})" for number in numbers)
        postgres_server.psql(f"INSERT INTO watched VALUES {rows}")

    try:
        first = client(held=3)
        insert(1)
        assert first.next() == 1
        await_stream(postgres_server)
        insert(2, 3)
        assert [first.next(), first.next()] == [2, 3]
        first.kill()
        second = client(held=5)
        assert [second.next(), second.next()] == [2, 3], "delivered, and not confirmed"
        insert(4)
        assert second.next() == 4
        stream = await_stream(postgres_server)
        second.send(signal.SIGSTOP)
        third = client(held=0)
        insert(5)
        assert third.next() in (4, 5), "the stream of a process that stands still is ended"
        insert(6)
        while third.next() != 6:
            pass
        assert stream not in streams(postgres_server)
        second.send(signal.SIGCONT)
        insert(7)
        assert third.next() == 7, "one that wakes up has lost its channel"
        third.send(signal.SIGTERM)
        began = time.monotonic()
        third.wait()
        assert time.monotonic() - began < 30
    finally:
        for child in children:
            child.send(signal.SIGCONT)
            child.kill()
        tunnel.delete()
