"""How a session reaches a server that loses it again and again."""

import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession, is_away
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import OptionError, SourceError
from spark_channel.options import CommitMode
from spark_channel.testing import VirtualClock
from tests.connectors.files.helpers import read_all
from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import MariadbServer

ODD = "a/b?#@:&=%41 +é'\""


def test_a_database_and_a_user_of_any_name_are_reached(mariadb_server: MariadbServer) -> None:
    """Also with a password beyond Latin-1; the neighbour whose name is that name decoded is not read."""
    password = f"{ODD}密码"
    for name in (ODD, unquote(ODD)):
        mariadb_server.sql(f"CREATE DATABASE `{name}`")
        mariadb_server.sql("CREATE TABLE t (name TEXT CHARACTER SET utf8mb4)", database=name)
        mariadb_server.sql(
            f"INSERT INTO t VALUES ('{name.replace(chr(39), chr(39) * 2)}')", database=name
        )
    own, secret = (text.replace("'", "''") for text in (ODD, password))
    mariadb_server.sql(
        f"CREATE USER '{own}'@'%' IDENTIFIED BY '{secret}'; GRANT SELECT ON *.* TO '{own}'@'%'"
    )
    place = f"127.0.0.1:{mariadb_server.port}/{quote(ODD, safe='')}"
    login = f"{quote(ODD, safe='')}:{quote(password, safe='')}"
    try:
        for options in (
            {"url": f"mysql://{login}@{place}"},
            {"url": f"jdbc:mariadb://{place}?user={quote(ODD, safe='')}", "password": password},
            {"url": f"jdbc:mysql://{place}", "user": ODD, "password": password},
        ):
            reader, _ = load_reader({**options, "dbtable": "t"})
            assert read_all(reader).column("name").to_pylist() == [ODD], options
        with pytest.raises(OptionError, match=r"'url' holds '#'.* write %23"):
            load_reader({"url": f"mysql://127.0.0.1:{mariadb_server.port}/a#b", "dbtable": "t"})
    finally:
        mariadb_server.sql(f"DROP USER '{own}'@'%'")
        for name in (ODD, unquote(ODD)):
            mariadb_server.sql(f"DROP DATABASE `{name}`")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_rows_are_written_to_a_database_whose_name_has_a_percent_sign(
    mariadb_server: MariadbServer, commit: CommitMode
) -> None:
    """The claims are there as well, and a statement about one has values: `%s` in a name is not a mark for them."""
    name, rows = f"{ODD}%s", pa.table({"n": [1, 2]})
    shop = Shop(mariadb_server, quote(name, safe=""))
    mariadb_server.sql(f"CREATE DATABASE `{name}`")
    try:
        for overwrite in (False, True, False):
            shop.write(rows, dbtable="t%s", overwrite=overwrite, commit=commit)
        assert sorted(shop.read("t%s").column("n").to_pylist()) == [1, 1, 2, 2]
    finally:
        mariadb_server.sql(f"DROP DATABASE `{name}`")


class Losing:
    """Passes bytes to a server and back, and cuts a connection when it is sent `text`; counts the connections."""

    def __init__(self, port: int, text: bytes) -> None:
        self.to, self.text, self.connections = ("127.0.0.1", port), text, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with near, socket.create_connection(self.to) as far:
                back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
                back.start()
                self._carry(near, far)
                back.join(20)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while (data := source.recv(1 << 16)) and self.text not in data:
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.fixture(params=[b"SET NAMES", b"group_concat_max_len"], ids=["connecting", "made ready"])
def losing(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Losing]:
    relay = Losing(shop.server.port, request.param)
    yield relay
    relay.end()


@pytest.mark.parametrize("seconds", [60, 0])
def test_a_session_that_is_lost_at_once_is_begun_again_with_pauses(
    shop: Shop, losing: Losing, seconds: int
) -> None:
    """There was no pause between sessions that connect and are lost by their first statement: 770 680 in a second."""
    clock = VirtualClock()
    login = {
        **shop.login,
        "url": f"mysql://127.0.0.1:{losing.port}/{shop.database}",
        "dbtable": "t",
        "sslMode": "disable",  # the relay reads the statements
    }
    options, _ = MysqlReadOptions.parse({**login, "retryTimeout": str(seconds)})
    begin = clock.now()
    with pytest.raises(SourceError, match=rf"127\.0\.0\.1:{losing.port}"):
        MysqlSession(options, SourceError, clock=clock)
    assert clock.now() - begin == pytest.approx(seconds)
    assert losing.connections == 1 if seconds == 0 else 12 < losing.connections < 40


def test_a_server_that_vanished_is_noticed(shop: Shop) -> None:
    """Within a minute by keepalives; after `socketTimeout` when it says nothing, which passes."""
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    url = f"{shop.login['url']}?socketTimeout=400"
    options = MysqlReadOptions.parse({**shop.login, "url": url, "dbtable": "t"})[0]
    assert options.socket_timeout == 0.4
    with MysqlSession(options, SourceError) as session:
        held = session.connection._sock
        times = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
        assert [held.getsockopt(socket.IPPROTO_TCP, each) for each in times] == [30, 10, 3]
        assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        with pytest.raises(
            SourceError, match="the server said nothing for 'socketTimeout'"
        ) as caught:
            list(session.stream("SELECT SLEEP(5)", BatchSize(1, 1)))
        assert is_away(caught.value)


def test_a_reader_of_one_long_statement_may_pause_for_ten_minutes(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT)")
    with shop.reader().connect("read") as session:
        assert session.value("SELECT @@net_write_timeout") == 600
    longer = shop.reader(sessionInitStatement="SET net_write_timeout = 900")
    with longer.connect("read") as session:
        assert session.value("SELECT @@net_write_timeout") == 900
