"""A table copied by logical replication while it changes and its copier is killed: equal in the end, key by key."""

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.source import StreamSource
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import ADMISSION, Child, Query

CONSUMER = """
import json, random, sys
from spark_channel.connectors import WriteContext, load_writer
from spark_channel.tunnel import Tunnel

source, target, store, drained = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    writer, _ = load_writer(target)
    plan, rows = None, 0
    for batch in delivery.batches:
        rows += batch.num_rows
        batch = batch.drop_columns(["_lsn", "_commit_ts"])
        if plan is None:
            context = WriteContext(f"copy-{delivery.channel}-{delivery.sequence}", commit="job")
            plan = writer.prepare(context, batch.schema)
            task = writer.open(plan, 0, random.randrange(1, 1 << 30))
        task.write(batch)
    if plan is not None:
        writer.commit(plan, [task.close()])
    sys.stdout.write(f"{rows}\\n")  # in one piece: two threads write
    sys.stdout.flush()

Tunnel("copy", source, store=store).consume(process, threads=2, drained=drained)
"""


class Writer(threading.Thread):
    """Inserts, updates and deletes, until `stop` is called: 2 000 a second when it is `busy`, else 200."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server
        self.over = threading.Event()
        self.busy = False
        self.changes = 0
        self.random = random.Random(7)

    def run(self) -> None:
        key = 10_000
        while not self.over.is_set():
            began = time.monotonic()
            statements = ["BEGIN"]
            for _ in range(200):
                key += 1
                other = self.random.randrange(1, key)
                choice = self.random.random()
                if choice < 0.5:
                    statements.append(f"INSERT INTO source VALUES ({key}, 'new', {key})")
                elif choice < 0.8:
                    statements.append(
                        f"UPDATE source SET n = n + 1, item = 'changed {key}' WHERE id = {other}"
                    )
                elif choice < 0.9:
                    statements.append(f"UPDATE source SET id = {key} WHERE id = {other}")
                else:
                    statements.append(f"DELETE FROM source WHERE id = {other}")
            self.server.psql(";".join([*statements, "COMMIT"]))
            self.changes += 200
            self.over.wait(max(0.0, began + (0.1 if self.busy else 1.0) - time.monotonic()))


Copier = Callable[[Mapping[str, str], Mapping[str, str], Path, bool], Child]
"""A copier of a source into a target, which waits for `go`; the last: whether it ends when it has caught up."""


def consumer(
    source: Mapping[str, str], target: Mapping[str, str], home: Path, drained: bool
) -> Child:
    """A tunnel's client, without Spark."""
    store = str(home / "tunnels.db")
    tunnel = Tunnel("copy", source, store=store)
    if not tunnel.exists():
        tunnel.create(channels=4)
    arguments = [{**source, "maxRowsPerTrigger": "2000"}, dict(target), store, drained]
    return Child(CONSUMER, [json.dumps(arguments)], home / "consumer.log")


def query(source: Mapping[str, str], target: Mapping[str, str], home: Path, drained: bool) -> Child:
    """A streaming query, which keeps its place in Spark's checkpoint directory."""
    given = {**source, "maxRowsPerTrigger": "20000", "channels": "1"}
    return Query(given, target, home / "checkpoint", drop=["_lsn", "_commit_ts"], drained=drained)


def copy_under_kills(server: PostgresServer, home: Path, kills: int, begin: Copier) -> None:
    server.psql(
        "CREATE TABLE source (id int PRIMARY KEY, item text, n int);"
        "CREATE TABLE target (id int PRIMARY KEY, item text, n int);"
        "INSERT INTO source SELECT i, 'old', i FROM generate_series(1, 10000) i;"
        "CREATE PUBLICATION copied FOR TABLE source"
    )
    source = {**server.login, "dbtable": "source", "slot": "copier", "publication": "copied"}
    target = {**server.login, "dbtable": "target", "writeMode": "apply", "keyColumns": "id"}
    chance = random.Random(11)
    writer = Writer(server)
    children: list[Child] = []
    try:
        writer.start()
        children.append(begin(source, target, home, False))
        for number in range(kills):
            current = children[-1]
            current.go()
            # The next one starts meanwhile, as far as it can.
            children.append(begin(source, target, home, number + 1 == kills))
            for _ in range(chance.randrange(1, 4)):
                current.next()
                writer.busy = True
            time.sleep(2 * chance.random())  # anywhere: within a batch, or between two
            current.kill()
            writer.busy = (
                False  # rows that come while no client copies only make the next start longer
            )
        writer.over.set()
        writer.join()
        children[-1].go()
        children[-1].finish()
        different = server.psql(
            "SELECT count(*) FROM source s FULL JOIN target t USING (id) "
            "WHERE s.id IS NULL OR t.id IS NULL OR (s.item, s.n) IS DISTINCT FROM (t.item, t.n)"
        )
        assert int(different) == 0
        assert int(server.psql("SELECT count(*) FROM target")) > 10_000
        assert writer.changes >= 1000
    finally:
        writer.over.set()
        writer.join()
        for child in children:
            child.kill()
        StreamSource(source).feed.close()
        server.psql("DROP PUBLICATION copied; DROP TABLE source; DROP TABLE target")


@pytest.mark.soak  # test_changes.py kills copiers, their connections and the server
@pytest.mark.timeout(600)
def test_a_copy_whose_copier_is_killed_five_times_is_equal(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    copy_under_kills(postgres_server, tmp_path, 5, consumer)


needs_admission = pytest.mark.skipif(
    not ADMISSION, reason="base_and_stream without a tunnel needs Spark 4.2"
)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_admission
def test_a_copy_whose_query_is_killed_twice_is_equal(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Each query starts a JVM."""
    copy_under_kills(postgres_server, tmp_path, 2, query)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", [consumer, query])
def test_a_copy_whose_copier_is_killed_twenty_times_is_equal(
    postgres_server: PostgresServer, tmp_path: Path, begin: Copier
) -> None:
    copy_under_kills(postgres_server, tmp_path, 20, begin)
