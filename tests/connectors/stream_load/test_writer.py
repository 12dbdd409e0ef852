"""Stream Load, against servers of the tests' own (see tests/servers/stream_load.py)."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, load_writer
from spark_channel.connectors.stream_load import client as streamload_http
from spark_channel.connectors.stream_load.client import Load
from spark_channel.connectors.stream_load.options import StreamLoadOptions
from spark_channel.connectors.stream_load.writer import encoded
from spark_channel.datax import load_job
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    TargetError,
    UnsupportedError,
)
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.datax.small_jobs import make_job
from tests.servers.rogue import rogue
from tests.servers.stream_load import Loads, stream_load_servers

Servers = tuple[str, Loads]


@pytest.fixture(scope="module")
def running() -> Iterator[Servers]:
    with stream_load_servers(["id", "name", "at", "名"]) as made:
        yield made


@pytest.fixture
def servers(running: Servers) -> Servers:
    _, loads = running
    loads.labels.clear()
    loads.faults.clear()
    loads.seen.clear()
    loads.login = ""
    return running


def options(servers: Servers, **more: Any) -> dict[str, Any]:
    given = {
        "url": servers[0],
        "database": "shop",
        "dbtable": "t",
        "user": "ann",
        "password": "s3cret",
    }
    return {**given, "retryTimeout": "5", **more}


def write(
    servers: Servers, rows: pa.Table, *, attempts: int = 1, dirty: Any = None, **more: Any
) -> Receipt:
    context = WriteContext("job", overwrite=bool(more.pop("overwrite", False)))
    writer, _ = load_writer({"writer": "streamload", **options(servers, **more)})
    plan = writer.prepare(context, rows.schema)
    for attempt in range(attempts):
        task = writer.open(plan, 3, attempt)
        if dirty is not None:
            task.tolerant, task.refused = (
                True,
                lambda row, why: dirty.append((row.to_pylist()[0], why)),
            )
        try:
            for batch in rows.to_batches():
                task.write(batch)
            receipt = task.close()
        except BaseException:
            task.rollback()
            raise
    writer.commit(plan, [receipt])
    return receipt


ROWS = pa.table({"id": [1, 2], "name": ['ä\n"b', None]})


def test_rows_arrive_as_they_are(servers: Servers) -> None:
    at = datetime(2024, 1, 31, 8, 30, tzinfo=UTC)
    rows = pa.table({"id": [True], "name": [Decimal("1.50")], "at": [at]})
    write(servers, rows, timeZone="Asia/Shanghai")
    assert servers[1].rows == [["1", "1.50", "2024-01-31 16:30:00.000000"]]
    servers[1].labels.clear()
    write(
        servers,
        ROWS,
        headers='{"partial_update": "true", "file.type": "x"}',
        url=f"{servers[0]},http://127.0.0.1:1",
    )
    assert servers[1].rows == [["1", 'ä\n"b'], ["2", None]]
    server, path, headers = servers[1].seen[-1]
    assert (server, path) == ("be", "/api/shop/t/_stream_load")
    assert (headers["columns"], headers["partial_update"], headers["strict_mode"]) == (
        "`id`,`name`",
        "true",
        "true",
    )
    servers[1].labels.clear()
    write(servers, pa.table({"名": [1]}))
    assert servers[1].seen[-1][2]["columns"].encode("latin-1").decode() == "`名`"


@pytest.mark.parametrize("fault", ["lost", "cut", "busy", "slow"])
def test_a_load_that_is_sent_again_counts_once(servers: Servers, fault: str) -> None:
    servers[1].faults.append(fault)
    write(servers, ROWS, attempts=2)  # two attempts of one task, as Spark makes them
    assert len(servers[1].labels) == 1
    assert servers[1].rows == [["1", 'ä\n"b'], ["2", None]]


def test_a_label_that_is_being_loaded_is_waited_for(servers: Servers) -> None:
    write(servers, ROWS)
    servers[1].faults += ["running", "running"]
    write(servers, ROWS)
    assert len(servers[1].rows) == 2
    servers[1].faults += ["running"] * 50
    with pytest.raises(TargetError, match=r"a load with label \w+ is RUNNING.*the same label"):
        write(servers, ROWS, retryTimeout="0.3")


def test_what_the_server_refuses_ends_the_task(servers: Servers) -> None:
    with pytest.raises(
        TargetError, match=r"Fail: too many filtered rows; 1 rows do not fit.*http://be/e"
    ):
        write(servers, pa.table({"id": [1, 2], "name": ["unfit", "b"]}))
    assert servers[1].rows == []
    refused: list[Any] = []
    rows = pa.table({"id": [1, 2, 3, 4], "name": ["a\x01", r"\N", "c", None]})
    receipt = write(servers, rows, dirty=refused)
    assert (receipt.rows, [row["id"] for row, _ in refused]) == (2, [1, 2])
    assert servers[1].rows == [["3", "c"], ["4", None]]
    with pytest.raises(TargetError, match=r"2 of 4 rows cannot be loaded.*column 'name'"):
        write(servers, rows)
    with pytest.raises(SchemaError, match="no column 'x'; it has id, name, at, 名"):
        write(servers, pa.table({"x": [1]}))
    with pytest.raises(SchemaError, match="cannot be named in a load"):
        write(servers, pa.table({"i\nd": [1]}))
    with pytest.raises(SchemaError, match="cast it to a string"):
        write(servers, pa.table({"id": [b"x"]}))
    with pytest.raises(TargetError, match="No such table: missing; check 'dbtable'"):
        write(servers, ROWS, dbtable="missing")


def test_an_empty_line_is_refused() -> None:
    """The servers leave empty lines out, and count them nowhere."""
    data, refused = encoded(pa.record_batch({"name": pa.array(["a", "", None])}), "UTC")
    assert (data, [number for number, _ in refused]) == (b"a\x02\\N\x02", [1])
    two = encoded(pa.record_batch({"name": pa.array([""]), "id": pa.array([""])}), "UTC")
    assert two == (b"\x01\x02", [])


def test_a_batch_of_a_stream_that_is_cut_otherwise_loses_no_row(servers: Servers) -> None:
    """A query that is started again may run its batch with other tasks, of which none has another's label."""
    writer, _ = load_writer({"writer": "streamload", **options(servers)})
    context = WriteContext("stream-q-5", commit="job", stream=("q", 5))

    def run(*ids: int) -> None:
        rows = pa.table({"id": ids, "name": ["x"] * len(ids)})
        task = writer.open(writer.prepare(context, rows.schema), 0, 0)
        for batch in rows.to_batches(max_chunksize=1):
            task.write(batch)
        task.close()

    run(1, 2)
    run(2, 1)
    assert [row[0] for row in servers[1].rows] == ["1", "2"]
    run(1, 2, 3)
    assert "3" in [row[0] for row in servers[1].rows]
    with pytest.raises(UnsupportedError, match="output mode complete"):
        writer.prepare(WriteContext("stream-q-6", overwrite=True, stream=("q", 6)), ROWS.schema)


def test_a_large_task_is_several_loads(servers: Servers) -> None:
    rows = pa.table({"id": range(100), "name": ["x" * 100] * 100})
    receipt = write(servers, rows, maxBytesPerLoad="4KB", batchSize="10")
    assert receipt.details["loads"] == len(servers[1].labels) > 1
    assert len(servers[1].rows) == 100


def test_the_login_goes_to_no_host_that_is_not_allowed(servers: Servers) -> None:
    _, loads = servers
    token = base64.b64encode(b"ann:s3cret").decode()
    loads.login = f"Basic {token}"
    write(servers, ROWS)
    kept = loads.redirect
    try:
        cases: tuple[tuple[str, dict[str, Any], str], ...] = (
            ("http://8.8.8.8:1", {}, "http://8.8.8.8, which option 'backends' does not name"),
            (
                kept,
                {"backends": "be1,*.example.com"},
                "http://127.0.0.1, which option 'backends' does not name",
            ),
            ("ftp://127.0.0.1", {}, "which is not a url of a server"),
        )
        for target, more, why in cases:
            loads.redirect = target
            with pytest.raises(TargetError, match=why) as met:
                write(servers, ROWS, **more)
            assert token not in str(met.value)
            assert "s3cret" not in str(met.value)
    finally:
        loads.redirect = kept
    with pytest.raises(TargetError, match=r"HTTP 401.*check 'user', 'password'") as met:
        write(servers, ROWS, password="wr0ng")
    assert "wr0ng" not in str(met.value)


def test_a_login_in_the_url_is_decoded_and_not_shown(servers: Servers) -> None:
    given = {"url": "http://a%40n:p%2Fw%25@fe:8030", "database": "d", "dbtable": "t"}
    assert StreamLoadOptions.parse(given)[0].login == ("a@n", "p/w%")
    for url in ("http://ann:s3cret\u2100x@fe:8030", "http://ann:s3cret@fe:80300"):
        with pytest.raises(OptionError, match="option 'url'") as met:
            StreamLoadOptions.parse({**given, "url": url})
        assert "s3cret" not in str(met.value)
    _, loads = servers
    kept = loads.redirect
    try:
        loads.redirect = "http://ann:s3cret@be:x"
        with pytest.raises(TargetError, match="not a url") as refused:
            write(servers, ROWS)
        assert "s3cret" not in str(refused.value)
    finally:
        loads.redirect = kept


def test_a_public_address_in_the_form_of_ipv6_is_public() -> None:
    given = {"url": "http://fe:8030", "database": "d", "dbtable": "t"}
    load = Load(StreamLoadOptions.parse(given)[0])
    assert load._is_allowed("::ffff:10.0.0.1")
    assert not load._is_allowed("::ffff:8.8.8.8")


def test_an_answer_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamload_http, "_LONGEST", 1 << 16)

    def speak(client: Any) -> None:
        client.recv(1 << 16)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10_000):
            client.sendall(b" " * (1 << 16))

    with rogue(speak) as port:
        given = {"url": f"http://ann:s3cret@127.0.0.1:{port}", "database": "d", "dbtable": "t"}
        load = Load(StreamLoadOptions.parse(given)[0])
        with pytest.raises(streamload_http.Busy, match="an answer has more than"):
            load.ask("GET", "/", {})
    header = load.login.headers["Authorization"]
    assert load.login.shown(f"denied for ann, s3cret, {header}") == "denied for ann, ***, Basic ***"


def test_a_server_that_repeats_the_login_in_a_broken_answer_does_not_have_it_shown() -> None:
    def speak(client: Any) -> None:
        heard = client.recv(1 << 16).split(b"\r\n")
        client.sendall(next(line for line in heard if line.startswith(b"Authorization")) + b"\r\n")

    with rogue(speak) as port:
        given = {"url": f"http://ann:s3cret@127.0.0.1:{port}", "database": "d", "dbtable": "t"}
        load = Load(StreamLoadOptions.parse(given)[0])
        with pytest.raises(
            streamload_http.Busy, match=r"no server answers: BadStatusLine .*Basic \*\*\*"
        ):
            load.ask("GET", "/", {})


def test_tls_is_not_left() -> None:
    from urllib.parse import urlsplit

    load = Load(
        StreamLoadOptions.parse({"url": "https://fe:8443", "database": "d", "dbtable": "t"})[0]
    )
    with pytest.raises(TargetError, match="without TLS, and the login would be readable"):
        load._check_redirect(urlsplit("https://fe:8443/x"), urlsplit("http://fe:8040/x"))
    load._check_redirect(urlsplit("https://fe:8443/x"), urlsplit("https://fe:8043/x"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"url": "fe:8030"}, "option 'url' .*http://fe:8030"),
        ({"sslrootcert": "ca.pem"}, "'sslrootcert' is for TLS, and 'url' asks for none"),
        ({"dbtable": "a/b"}, "option 'dbtable' got 'a/b'"),
        (
            {"headers": '{"label": "x"}'},
            "option 'headers' .*headers that the connector does not set itself",
        ),
        ({"headers": '{"a": "b\\nc"}'}, "option 'headers'"),
        ({"headers": '{"a b": "c"}'}, "option 'headers'"),
        (
            {"headers": '{"Skip_Lines": "1"}'},
            "option 'headers' .*headers that the connector does not set itself",
        ),
        ({"startSql": "SELECT 1"}, "need 'queryServer'"),
        ({"overwrite": True}, "an overwrite empties the table by SQL"),
        ({"commit": "job"}, "option 'commit' got 'job'"),
    ],
)
def test_options_are_refused_by_name(servers: Servers, more: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write(servers, ROWS, **more)


def job(servers: Servers, plugin: str, **more: Any) -> Any:
    writes = {
        "loadUrl": [servers[0].removeprefix("http://")],
        "username": "ann",
        "password": "s3cret",
        "column": ["id", "name"],
        "connection": [
            {"jdbcUrl": "jdbc:mysql://fe:9030/", "selectedDatabase": "shop", "table": ["t"]}
        ],
        "loadProps": {
            "format": "json",
            "strip_outer_array": True,
            "merge_type": "APPEND",
            "file.type": "csv",
        },
        **more,
    }
    reads = {
        "column": [
            {"value": "7", "type": "long"},
            {"value": "2024-01-31 10:00:05", "type": "date"},
        ],
        "sliceRecordCount": 2,
    }
    return make_job("streamreader", reads, plugin, writes)


@pytest.mark.parametrize("plugin", ["starrockswriter", "doriswriter", "selectdbwriter"])
def test_a_datax_job_loads_rows(servers: Servers, plugin: str) -> None:
    loaded = load_job(job(servers, plugin))
    assert carry_out(loaded.spec) == []
    assert servers[1].rows == [["7", "2024-01-31 10:00:05"]] * 2
    assert servers[1].seen[-1][2]["merge_type"] == "APPEND"
    assert any("loadProps.format" in text for text in loaded.warnings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loadUrl": []}, r"loadUrl is missing"),
        ({"loadUrl": ["ann:x@fe:8030"]}, r"loadUrl got"),
        ({"connection": [{"table": ["t"]}]}, r"database is missing"),
        ({"connection": [{"selectedDatabase": "s", "table": ["t", "u"]}]}, "one table"),
        (
            {
                "preSql": ["truncate table t"],
                "connection": [{"selectedDatabase": "s", "table": ["t"]}],
            },
            "jdbcUrl is missing",
        ),
    ],
)
def test_what_a_job_cannot_ask(servers: Servers, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ChannelError, match=message):
        load_job(job(servers, "doriswriter", **changed))


def test_sql_runs_where_it_is_asked(servers: Servers, mariadb_server: Any) -> None:
    """These databases speak MySQL's protocol; a MariaDB answers here."""
    mariadb_server.sql("CREATE OR REPLACE TABLE shop.t (id INT); INSERT INTO shop.t VALUES (1)")
    server = {
        "queryServer": f"127.0.0.1:{mariadb_server.port}",
        "user": mariadb_server.user,
        "password": mariadb_server.password,
        "endSql": '["INSERT INTO t VALUES (7)"]',
    }
    write(servers, ROWS, overwrite=True, **server)
    assert mariadb_server.sql("SELECT id FROM shop.t") == "7"
    writer, _ = load_writer(
        {
            "writer": "streamload",
            **options(servers, **server, startSql="INSERT INTO nothing VALUES (1)"),
        }
    )
    with pytest.raises(TargetError, match=r"INSERT INTO nothing.*doesn't exist"):
        writer.begin()
