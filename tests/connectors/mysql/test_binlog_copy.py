"""A table copied by its binary log while eight writers change it, and connections and copiers are killed: equal in the
end, by key and value.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pymysql
import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import SourceError
from spark_channel.tunnel import Tunnel
from tests.behaviour.faults.test_followed_table import CONSUMER
from tests.connectors.mysql.log.test_feed import NO_LIMIT, all_after, brief, feed_of, plain, rows
from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import BINLOG, MariadbServer
from tests.tunnel.children import ADMISSION, Child, Query

WRITERS = 8
READER = "log_reader"
"""The copier's login at its source, with the rights that docs/mysql.md names."""
_PASSES = (1213, 1205, 1062)
"""Deadlocks, lock waits, and a key that another writer has taken."""


class Writer(threading.Thread):
    """Makes `changes` random changes by transactions of one to five, from a seed."""

    def __init__(self, shop: Shop, seed: int, changes: int, pause: float) -> None:
        super().__init__()
        self._shop, self._left, self._pause = shop, changes, pause
        self._random = random.Random(seed)
        self._key = 1_000_000 * (seed + 1)
        self.error: BaseException | None = None

    def run(self) -> None:
        server = self._shop.server
        try:
            with pymysql.connect(
                host="127.0.0.1",
                port=server.port,
                user=server.user,
                password=server.password,
                database=self._shop.database,
            ) as connection:
                while self._left > 0:
                    self._transaction(connection)
                    time.sleep(self._pause * self._random.random())
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: Any) -> None:
        count = min(self._left, self._random.randrange(1, 6))
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                for _ in range(count):
                    cursor.execute(self._change())
                # One in ten is undone: nothing of it may arrive.
                cursor.execute("ROLLBACK" if self._random.random() < 0.1 else "COMMIT")
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _PASSES:
                raise
            connection.rollback()
            return
        self._left -= count

    def _change(self) -> str:
        self._key += 1
        other, choice = self._random.randrange(1, 1000), self._random.random()
        text = f"'é{self._key}'" if self._random.random() < 0.8 else "NULL"
        if choice < 0.4:
            return f"INSERT INTO source VALUES ({self._key}, {text}, {self._key}.25, NOW(6), {choice > 0.2})"
        if choice < 0.75:
            return f"UPDATE source SET n = n + 1, item = {text}, at = NOW(6) WHERE id % 1000 = {other} LIMIT 3"
        if choice < 0.85:
            return f"UPDATE source SET id = {self._key} WHERE id = {other}"
        return f"DELETE FROM source WHERE id % 1000 = {other} LIMIT 2"


Copier = Callable[[Mapping[str, str], Mapping[str, str], Path, bool], Child]


def consumer(
    source: Mapping[str, str], target: Mapping[str, str], home: Path, drained: bool
) -> Child:
    store = str(home / "tunnels.db")
    tunnel = Tunnel("copy", source, store=store)
    if not tunnel.exists():
        tunnel.create(channels=2)
    arguments = [{**source, "maxRowsPerTrigger": "300"}, dict(target), store, drained]
    return Child(CONSUMER, [json.dumps(arguments)], home / "consumer.log")


def query(source: Mapping[str, str], target: Mapping[str, str], home: Path, drained: bool) -> Child:
    given = {**source, "maxRowsPerTrigger": "2000", "channels": "1"}
    return Query(given, target, home / "checkpoint", drop=["_lsn", "_commit_ts"], drained=drained)


def copy_under_kills(
    shop: Shop, home: Path, begin: Copier, *, changes: int, kills: int, pause: float
) -> None:
    columns = (
        "id BIGINT PRIMARY KEY, item VARCHAR(40), n DECIMAL(12,2), at DATETIME(6), flag TINYINT(1)"
    )
    shop.sql(
        f"CREATE TABLE source ({columns}); CREATE TABLE target LIKE source; "
        "INSERT INTO source SELECT seq, 'old', seq, NOW(6), 0 FROM seq_1_to_1000; "
        f"CREATE OR REPLACE USER {READER}@'127.0.0.1' IDENTIFIED BY 'p'; "
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {READER}@'127.0.0.1'; "
        f"GRANT SELECT ON {shop.database}.source TO {READER}@'127.0.0.1'"
    )
    source = {**shop.login, "user": READER, "password": "p", "dbtable": "source", "binlog": "true"}
    target = {**shop.login, "dbtable": "target", "writeMode": "apply", "keyColumns": "id"}
    writers = [Writer(shop, seed, changes // WRITERS, pause) for seed in range(WRITERS)]
    children: list[Child] = []
    try:
        children.append(begin(source, target, home, False))
        for writer in writers:
            writer.start()
        children[-1].go()
        for number in range(kills):
            children.append(begin(source, target, home, number + 1 == kills))
            children[-2].next()
            kill_connections(shop)
            children[-2].next()
            children[-2].kill()
            if number + 1 < kills:
                children[-1].go()
        for writer in writers:
            writer.join()
            assert writer.error is None
        children[-1].go()
        children[-1].finish()
        ours = shop.sql("SELECT * FROM source ORDER BY id")
        assert ours.count("\n") > 500
        assert shop.sql("SELECT * FROM target ORDER BY id") == ours
    finally:
        for writer in writers:
            if writer.ident is not None:
                writer.join()
        for child in children:
            child.kill()


def kill_connections(shop: Shop) -> None:
    """One that the copier has to its source, at a moment when it has any."""
    server = shop.server
    login = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "password": server.password,
    }
    until = time.monotonic() + 60
    with pymysql.connect(**login) as connection, connection.cursor() as cursor:
        while True:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE user = %s", [READER]
            )
            found = cursor.fetchall()
            try:
                for row in found:
                    cursor.execute(f"KILL {row[0]}")
                    return
            except pymysql.err.OperationalError as error:
                if error.args[0] != 1094:  # it has ended meanwhile
                    raise
            assert time.monotonic() < until, "the copier asked the server nothing for 60 s"


@pytest.mark.timeout(300)
def test_a_copy_whose_connections_and_copier_are_killed_is_equal(
    logged: Shop, tmp_path: Path
) -> None:
    copy_under_kills(logged, tmp_path, consumer, changes=2_000, kills=1, pause=0.1)


needs_admission = pytest.mark.skipif(
    not ADMISSION, reason="base_and_stream without a tunnel needs Spark 4.2"
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", [consumer, pytest.param(query, marks=needs_admission)])
def test_a_copy_whose_connections_and_copier_are_killed_ten_times_is_equal(
    logged: Shop, tmp_path: Path, begin: Copier
) -> None:
    copy_under_kills(logged, tmp_path, begin, changes=100_000, kills=10, pause=0.01)


@pytest.mark.soak
def test_another_server_of_the_topology_continues_the_stream() -> None:
    """The primary dies, its replica takes over, and the same position is read from there."""
    primary = MariadbServer.create(**BINLOG)
    replica = None
    try:
        replica = MariadbServer.create(**{**BINLOG, "server_id": "2"})
        begin = primary.sql("SELECT @@gtid_binlog_pos")
        replica.sql(
            f"RESET MASTER; SET GLOBAL gtid_slave_pos = '{begin}'; "
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, "
            f"MASTER_USER = '{primary.user}', MASTER_PASSWORD = '{primary.password}', "
            "MASTER_USE_GTID = slave_pos; START SLAVE"
        )
        before, after = Shop(primary, "shop"), Shop(replica, "shop")
        plain(before)
        feed = feed_of(before)
        (start,) = feed.now()
        before.sql("INSERT INTO t VALUES (1, 'a', 0); INSERT INTO t VALUES (2, 'b', 0)")
        middle = feed.latest(start, FeedLimit(rows=1))
        replica.sql(f"SELECT MASTER_GTID_WAIT('{primary.sql('SELECT @@gtid_binlog_pos')}', 30)")
        state = after.state()
        before.sql("UPDATE t SET n = 0; ANALYZE TABLE t")
        replica.sql(f"SELECT MASTER_GTID_WAIT('{primary.sql('SELECT @@gtid_binlog_pos')}', 30)")
        assert after.state() == state
        primary.stop(crash=True)
        replica.sql("STOP SLAVE; RESET SLAVE ALL")
        with pytest.raises(SourceError) as raised:
            feed.latest(middle, NO_LIMIT)
        assert feed.is_passing(raised.value)
        after.sql("INSERT INTO t VALUES (3, 'c', 0)")
        other = feed_of(after)
        assert brief(all_after(other, middle)) == [("insert", 2, "b"), ("insert", 3, "c")]
        assert brief(rows(other, start, middle)) == [("insert", 1, "a")]
    finally:
        primary.close()
        if replica is not None:
            replica.close()
