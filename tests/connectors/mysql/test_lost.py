"""Each call to the server that can lose its connection says so in one way, however the connection ends."""

import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.mysql.log.dump import dumped
from spark_channel.connectors.mysql.log.position import MariadbGtids
from spark_channel.connectors.mysql.options import MysqlReadOptions, MysqlWriteOptions
from spark_channel.connectors.mysql.session import (
    LostConnectionError,
    MysqlSession,
    MysqlWriteSession,
    is_away,
)
from spark_channel.connectors.mysql.session.guarded_connection import GuardedConnection
from spark_channel.connectors.mysql.write.load_data import RowSender
from spark_channel.connectors.sql.catalog import Column, WriteColumn
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import BatchRefusedError, ChannelError, SourceError, TargetError
from tests.connectors.mysql.shop import Shop

ROWS = pa.record_batch({"id": range(20_000), "name": ["x" * 50] * 20_000})
COLUMNS = [
    WriteColumn("id", Column("id", "bigint"), pa.int64()),
    WriteColumn("name", Column("name", "varchar(99)"), pa.string()),
]


class Relay:
    """Between a client and a server, until `fault`."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._shop.server.port))
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._carry, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if not self._silent:
                    sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def fault(self, kind: str) -> None:
        if kind == "silence":
            self._silent = True
        elif kind == "kill":
            for (number,) in self._shop.rows(
                f"SELECT id FROM information_schema.processlist WHERE db = '{self._shop.database}' AND user <> 'root'"
            ):
                self._shop.sql(f"KILL {number}")
        else:
            pairs, self._pairs = self._pairs, []
            for client, server in pairs:
                if kind == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for each in (client, server):
                    try:
                        each.shutdown(socket.SHUT_RD if kind == "reset" else socket.SHUT_RDWR)
                    except OSError:
                        pass
                client.close()
                server.close()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs:
            for each in pair:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self._threads:
            thread.join(30)
        for pair in self._pairs:
            for each in pair:
                each.close()


@pytest.fixture
def relay(logged: Shop) -> Iterator[Relay]:
    made = Relay(logged)
    yield made
    made.end()


Fault = Callable[[], None]


def statement(session: MysqlWriteSession, fault: Fault) -> None:
    fault()
    session.rows("SELECT 1")


def counted(session: MysqlWriteSession, fault: Fault) -> None:
    fault()
    session.affected("DO 1")


def described(session: MysqlWriteSession, fault: Fault) -> None:
    fault()
    session.fields("SELECT 1")


def streamed(session: MysqlWriteSession, fault: Fault) -> None:
    fault()
    list(session.stream("SELECT 1", BatchSize(10, 1000)))


def streaming(session: MysqlWriteSession, fault: Fault) -> None:
    batches = session.stream("SELECT seq FROM seq_1_to_9000000", BatchSize(10, 1000))
    next(batches)
    fault()
    for _ in batches:
        pass


def loading(session: MysqlWriteSession, fault: Fault) -> None:
    """In the middle of the file of a LOAD DATA."""
    real, sent = GuardedConnection.write_packet, 0

    def write(self: GuardedConnection, payload: bytes) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            fault()
        real(self, payload)

    session.execute("CREATE TABLE l (id BIGINT, name VARCHAR(99))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuardedConnection, "write_packet", write)
        RowSender(session, "`l`", COLUMNS, True, cost=None).load(ROWS)


def loaded(session: MysqlWriteSession, fault: Fault) -> None:
    """Before the answer to a LOAD DATA."""
    real = GuardedConnection.write_packet

    def write(self: GuardedConnection, payload: bytes) -> None:
        if not payload:
            fault()
        real(self, payload)

    session.execute("CREATE TABLE l (id BIGINT, name VARCHAR(99))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuardedConnection, "write_packet", write)
        RowSender(session, "`l`", COLUMNS, True, cost=None).load(ROWS)


PLACES = [statement, counted, described, streamed, streaming, loading, loaded]
FAULTS = ["kill", "reset", "close", "silence"]


def login(shop: Shop, relay: Relay) -> dict[str, Any]:
    url = f"mysql://127.0.0.1:{relay.port}/{shop.database}?socketTimeout=500"
    return {**shop.login, "url": url, "dbtable": "t"}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_connection_that_ends_is_lost(
    logged: Shop, relay: Relay, place: Callable[..., None], kind: str
) -> None:
    options = MysqlWriteOptions.parse(login(logged, relay))[0]
    session = MysqlWriteSession(options, TargetError, local_infile=True)
    with session, pytest.raises((LostConnectionError, ChannelError)) as caught:
        place(session, lambda: relay.fault(kind))
    assert is_away(caught.value), repr(caught.value)
    assert f"127.0.0.1:{relay.port}" in str(caught.value)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_log_whose_connection_ends_is_lost(logged: Shop, relay: Relay, kind: str) -> None:
    logged.sql("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    ((start,),) = logged.rows("SELECT @@gtid_binlog_pos")  # earlier logs may have been purged
    logged.sql("INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_20000")
    options = MysqlReadOptions.parse(login(logged, relay))[0]

    def read() -> None:
        with dumped(options, MariadbGtids.parse(start)) as log:
            next(log)
            relay.fault(kind)
            for _ in log:
                pass

    with pytest.raises((LostConnectionError, ChannelError)) as caught:
        read()
    assert is_away(caught.value), repr(caught.value)


@pytest.mark.parametrize("kind", ["kill", "reset", "close"])
def test_a_session_that_is_lost_while_it_is_idle_answers_no_more(
    logged: Shop, relay: Relay, kind: str
) -> None:
    options = MysqlReadOptions.parse(login(logged, relay))[0]
    with MysqlSession(options, SourceError) as session:
        relay.fault(kind)
        for _ in range(2):  # PyMySQL has closed it by the second time
            with pytest.raises((LostConnectionError, ChannelError)) as caught:
                session.ping()
            assert is_away(caught.value), repr(caught.value)


def test_a_server_that_takes_small_packets_loads_rows(shop: Shop) -> None:
    shop.sql("SET GLOBAL max_allowed_packet = 16384; CREATE TABLE t (id BIGINT, name TEXT)")
    try:
        for local in ("true", "false"):
            shop.write(pa.table(ROWS), localInfile=local, overwrite=True)
            assert shop.rows("SELECT COUNT(*), MIN(LENGTH(name)) FROM t") == [("20000", "50")]
        wide = pa.table({"id": [1], "name": ["x" * 40_000]})
        shop.write(wide, overwrite=True)
        assert shop.rows("SELECT LENGTH(name) FROM t") == [("40000",)]
        with pytest.raises(ChannelError, match="a row is longer than the server's max_allowed_pac"):
            shop.write(wide, localInfile="false")
    finally:
        shop.sql("SET GLOBAL max_allowed_packet = DEFAULT")


def test_what_the_server_refuses_of_a_loaded_file_is_its_own_message(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id TINYINT, name VARCHAR(99))")
    rows = pa.table({"id": pa.array([1, 2], pa.int8()), "name": ["x", "y" * 200]})
    with pytest.raises(
        BatchRefusedError,
        match=r"Data truncated for column 'name'.* run ALTER TABLE .* MODIFY COLUMN `name` text ",
    ):
        shop.write(rows)


@pytest.mark.parametrize("kind", ["kill", "reset", "close"])
def test_a_limited_read_goes_on_when_its_session_ends_between_two_splits(
    logged: Shop, relay: Relay, kind: str
) -> None:
    """Under `retryTimeout`, with the session that splits of one worker share."""
    logged.sql("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    logged.sql("INSERT INTO t SELECT seq, REPEAT('x', 100) FROM seq_1_to_12000")
    reader, _ = load_reader({**login(logged, relay), "rowspersecond": "1M"})
    reader.schema()
    splits, ids = reader.split(3), list[int]()
    assert len(splits) > 1
    reader.fetch_size = FetchSize(rows=1000)
    with pickle.loads(pickle.dumps(reader)).reading() as read:
        for split in splits:
            for batch in read(split):
                ids += batch["id"].to_pylist()
            relay.fault(kind)
    assert sorted(ids) == list(range(1, 12_001))
