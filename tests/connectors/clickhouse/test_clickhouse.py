"""ClickHouse, against its engine (chdb) behind an HTTP server of the tests (see tests/servers/clickhouse.py)."""

import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("chdb")
pytest.importorskip("clickhouse_connect")

from spark_channel.connectors import FetchSize, WriteContext, load_reader, load_writer
from spark_channel.connectors.base.contract import Reader
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError, TargetError
from spark_channel.testing import reader_conformance
from tests.datax.moved import move
from tests.datax.small_jobs import make_job
from tests.servers.clickhouse import PASSWORD, USER, ClickhouseServer, clickhouse_server


@pytest.fixture(scope="module")
def running() -> Iterator[ClickhouseServer]:
    with clickhouse_server() as server:
        yield server


@pytest.fixture
def server(running: ClickhouseServer) -> ClickhouseServer:
    for name in running.sql("SHOW TABLES").split():
        running.sql(f"DROP TABLE {name}")
    return running


def options(server: ClickhouseServer, **more: Any) -> dict[str, Any]:
    return {"url": server.url, "user": USER, "password": PASSWORD, "dbtable": "t", **more}


def reader(server: ClickhouseServer, **more: Any) -> Reader:
    return load_reader({"reader": "clickhouse", **options(server, **more)})[0]


def read(found: Reader, advice: int = 3) -> pa.Table:
    schema = found.schema()
    return pa.Table.from_batches(
        [batch for split in found.split(advice) for batch in found.read(split)], schema
    )


def write(server: ClickhouseServer, rows: pa.Table, *, dirty: Any = None, **more: Any) -> None:
    context = WriteContext(
        "job", overwrite=bool(more.pop("overwrite", False)), stream=more.pop("stream", None)
    )
    writer, _ = load_writer({"writer": "clickhouse", **options(server, **more)})
    writer.begin()
    plan = writer.prepare(context, rows.schema)
    task = writer.open(plan, 0, 0)
    if dirty is not None:
        task.tolerant, task.refused = True, lambda row, why: dirty.append((row.to_pylist()[0], why))
    try:
        for batch in rows.to_batches():
            task.write(batch)
        receipt = task.close()
    except BaseException:
        task.rollback()
        raise
    writer.commit(plan, [receipt])


def test_the_reader_keeps_its_promises(server: ClickhouseServer) -> None:
    server.sql("CREATE TABLE t (id UInt32, name String) ENGINE = MergeTree ORDER BY id")
    server.sql("INSERT INTO t SELECT number, concat('ä', toString(number)) FROM numbers(200)")
    expected = pa.table(
        {"id": pa.array(range(200), pa.uint32()), "name": [f"ä{n}" for n in range(200)]}
    )
    reader_conformance(lambda: reader(server), expected=expected, advice=4)
    assert len(reader(server).split(4)) == 4


@pytest.mark.lowest
def test_values_of_every_type(server: ClickhouseServer) -> None:
    server.sql(
        "CREATE TABLE t (d Date, m DateTime('Asia/Shanghai'), f DateTime64(3), n Nullable(Int8), x Decimal(10, 2), "
        "l LowCardinality(String), u UUID, e Enum('a' = 1, 'b' = 2), a Array(Int8), w UInt256, b Bool, g Float32) "
        "ENGINE = MergeTree ORDER BY d"
    )
    server.sql(
        "INSERT INTO t VALUES ('2024-01-31', '2024-01-31 16:30:00', '2024-01-31 08:30:00.125', NULL, 1.5, 'low', "
        "'61f0c404-5cb3-11e7-907b-a6006ad3dba0', 'b', [1, 2], 7, true, 1.5)"
    )
    (row,) = read(reader(server)).to_pylist()
    moment = datetime(2024, 1, 31, 8, 30, tzinfo=UTC)
    assert row == {
        "d": date(2024, 1, 31),
        "m": moment,
        "f": row["f"],
        "n": None,
        "x": Decimal("1.50"),
        "l": "low",
        "u": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
        "e": "b",
        "a": "[1,2]",
        "w": "7",
        "b": True,
        "g": 1.5,
    }
    assert row["f"].microsecond == 125_000
    (local,) = read(reader(server, timestampsAs="local", columns="m")).to_pylist()
    assert local == {"m": datetime(2024, 1, 31, 16, 30)}


def test_times_of_a_zone_and_floats_as_the_server_shows_them(server: ClickhouseServer) -> None:
    """What a job of DataX's plugin asks for: the zone of its machine, in texts and in tables."""
    server.sql(
        "CREATE TABLE t (m DateTime, z DateTime('America/New_York'), g Float64) ENGINE = MergeTree ORDER BY tuple()"
    )
    local = datetime(2024, 1, 31, 10, 0, 5)
    rows = pa.table({"m": [local], "z": [local], "g": [1e20]})
    write(server, rows, sessionTimeZone="Asia/Shanghai")
    instants = "SELECT toUnixTimestamp(m), toUnixTimestamp(z) FROM t"
    seconds = int(datetime(2024, 1, 31, 2, 0, 5, tzinfo=UTC).timestamp())
    assert server.sql(instants) == f"{seconds}\t{seconds}"
    shown = reader(server, sessionTimeZone="Asia/Shanghai", timestampsAs="local", floatsAs="text")
    assert read(shown).to_pylist() == [{"m": local, "z": local, "g": "1" + "0" * 20}]


def test_conditions_queries_and_bounds(server: ClickhouseServer) -> None:
    server.sql("CREATE TABLE t (k Date, v Nullable(Int32), s String) ENGINE = MergeTree ORDER BY k")
    server.sql(
        "INSERT INTO t SELECT toDate('2024-01-01') + number, if(number % 10 = 0, NULL, number), concat('it\\'s \\\\', "
        "toString(number)) FROM numbers(100)"
    )
    by_date = reader(server)
    assert len(by_date.split(4)) == 4
    assert read(by_date, 4).num_rows == 100
    assert read(reader(server, partitionColumn="v"), 3).num_rows == 100
    assert read(reader(server, partitionColumn="s"), 3).num_rows == 100
    assert read(reader(server, where="v > 95 and s like 'it%'")).num_rows == 4
    assert read(reader(server, where="s = 'it''s \\\\7'", columns="v")).to_pylist() == [{"v": 7}]
    found = reader(server, dbtable=None, query="SELECT max(v) AS m, count() AS n FROM t")
    assert read(found).to_pylist() == [{"m": 99, "n": 100}]
    small = reader(server)
    small.fetch_size = FetchSize(rows=7)
    (split, *_) = small.split(1)
    assert max(batch.num_rows for batch in small.read(split)) <= 7
    with pytest.raises(SourceError, match=r"missing.*t"):
        reader(server, dbtable="missing").schema()


def test_an_answer_that_is_cut_is_an_error(
    server: ClickhouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes the end of the bytes for the end of the stream."""
    from clickhouse_connect.driver.httpclient import HttpClient

    server.sql("CREATE TABLE t (id UInt32) ENGINE = MergeTree ORDER BY id")
    server.sql("INSERT INTO t SELECT number FROM numbers(1000)")
    found = reader(server)
    (split,) = found.split(1)
    original = HttpClient.raw_stream

    def cut(self: Any, *values: Any, **named: Any) -> Any:
        import io

        return io.BytesIO(original(self, *values, **named).read()[:-8])

    monkeypatch.setattr(HttpClient, "raw_stream", cut)
    with pytest.raises(SourceError, match="ended the answer early"):
        list(found.read(split))


@pytest.mark.lowest
def test_rows_are_inserted_and_replaced(server: ClickhouseServer) -> None:
    server.sql(
        "CREATE TABLE t (id UInt8, name Nullable(String), at DateTime64(6, 'UTC'), x Decimal(10, 2), d UInt8 DEFAULT 9"
        ") ENGINE = MergeTree ORDER BY id"
    )
    at = datetime(2024, 1, 31, 8, 30, 0, 250_000, tzinfo=UTC)
    rows = pa.table(
        {"id": [1, 2], "name": ["ä", None], "at": [at, at], "x": [Decimal("1.5"), Decimal(2)]}
    )
    write(server, rows)
    write(server, rows, batchSize="1")
    assert (
        server.sql("SELECT count(), sum(d), any(at) FROM t") == "4\t36\t2024-01-31 08:30:00.250000"
    )
    sql = {
        "startSql": "CREATE TABLE IF NOT EXISTS log (n Int8) ENGINE = Log",
        "postSql": "INSERT INTO log VALUES (7)",
    }
    writer, _ = load_writer({"writer": "clickhouse", **options(server)})
    assert writer.foreign_content(rows.schema) == "4 rows of table default.t, whoever wrote them"
    write(server, rows.slice(0, 1), overwrite=True, **sql)
    assert server.sql("SELECT id, name, x, d FROM t") == "1\tä\t1.5\t9"
    assert server.sql("SELECT n FROM log") == "7"


def test_a_local_time_is_one_of_the_columns_zone(server: ClickhouseServer) -> None:
    server.sql(
        "CREATE TABLE t (a DateTime('Asia/Shanghai'), b DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY a"
    )
    local = pa.array([datetime(2024, 1, 31, 8, 30)], pa.timestamp("us"))
    write(server, pa.table({"a": local, "b": local}))
    assert (
        server.sql("SELECT toUnixTimestamp(a), a, b FROM t")
        == "1706661000\t2024-01-31 08:30:00\t2024-01-31 08:30:00.000"
    )


def test_refused_rows_are_told_and_the_others_written(server: ClickhouseServer) -> None:
    server.sql(
        "CREATE TABLE t (id UInt8, CONSTRAINT small CHECK id < 100) ENGINE = MergeTree ORDER BY id"
    )
    refused: list[Any] = []
    write(server, pa.table({"id": [1, 300, 2, 150, 3]}), dirty=refused)
    assert [row["id"] for row, _ in refused] == [300, 150]
    assert "VIOLATED_CONSTRAINT" in refused[1][1]
    assert server.sql("SELECT id FROM t ORDER BY id").split() == ["1", "2", "3"]
    with pytest.raises(TargetError, match="refused 1 of 2 rows"):
        write(server, pa.table({"id": [1, -1]}))
    with pytest.raises(OptionError, match="option 'preSql' would run in each task"):
        write(server, pa.table({"id": [1]}), preSql="TRUNCATE TABLE t", stream=("query", 1))
    with pytest.raises(SchemaError, match="has no column 'x'"):
        write(server, pa.table({"x": [1]}))
    with pytest.raises(SchemaError, match=r"column 'id' is string.*'convert' to lenient"):
        write(server, pa.table({"id": ["1"]}))
    with pytest.raises(TargetError, match=r"does not exist.*create it first"):
        write(server, pa.table({"id": [1]}), dbtable="missing")


def test_values_that_the_server_would_change_are_refused(server: ClickhouseServer) -> None:
    server.sql(
        "CREATE TABLE t (id UInt8, n Nullable(UInt8), d Date, m DateTime('UTC')) ENGINE = MergeTree ORDER BY id"
    )
    day, at = date(2024, 1, 31), datetime(2024, 1, 31, tzinfo=UTC)
    rows = pa.table(
        {
            "id": pa.array([1, None, 3, 4, 5]),
            "n": pa.array([None] * 5, pa.int64()),
            "d": [day, day, date(1969, 12, 31), day, day],
            "m": [at, at, at, at.replace(year=2200), at.replace(year=2106, day=1)],
        }
    )
    refused: list[Any] = []
    write(server, rows, dirty=refused)
    assert [why for _, why in refused] == [
        "column 'id': a NULL, and its type is UInt8",
        "column 'd': a time that Date does not hold",
        "column 'm': a time that DateTime('UTC') does not hold",
    ]
    assert server.sql("SELECT id, n FROM t ORDER BY id") == "1\t\\N\n5\t\\N"
    server.sql("CREATE TABLE u (f Float32) ENGINE = MergeTree ORDER BY tuple()")
    with pytest.raises(SchemaError, match=r"column 'f' is double.*'convert' to lenient"):
        write(server, pa.table({"f": [1e300]}), dbtable="u")


def test_a_block_that_a_view_refuses_is_not_sent_again(server: ClickhouseServer) -> None:
    """The table has its rows by then: each half would be added to them."""
    server.sql("CREATE TABLE t (s String) ENGINE = MergeTree ORDER BY s")
    server.sql("CREATE TABLE u (n Int32) ENGINE = MergeTree ORDER BY n")
    server.sql("CREATE MATERIALIZED VIEW v TO u AS SELECT toInt32(s) AS n FROM t")
    refused: list[Any] = []
    with pytest.raises(
        TargetError, match=r"while pushing to view.*the 4 rows of this INSERT is not known"
    ):
        write(server, pa.table({"s": ["1", "2", "x", "3"]}), dirty=refused)
    assert int(server.sql("SELECT count() FROM t")) <= 4
    assert refused == []
    server.sql("DROP VIEW v")


def test_a_block_is_stored_once_and_not_taken_for_an_equal_one(
    server: ClickhouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicated tables drop a block whose rows, or whose token, they have; asynchronous inserts may be lost."""
    from clickhouse_connect.driver.httpclient import HttpClient

    server.sql("CREATE TABLE t (id UInt8) ENGINE = MergeTree ORDER BY id")
    sent: list[dict[str, Any]] = []
    original = HttpClient.raw_insert

    def noted(self: Any, *values: Any, **named: Any) -> Any:
        sent.append(named["settings"])
        return original(self, *values, **named)

    monkeypatch.setattr(HttpClient, "raw_insert", noted)
    write(server, pa.table({"id": [1, 1]}), batchSize="1")
    assert [each["async_insert"] for each in sent] == [0, 0]
    assert len({each["insert_deduplication_token"] for each in sent}) == 2


def test_keys_of_any_bytes_are_split_without_overlap(server: ClickhouseServer) -> None:
    server.sql("CREATE TABLE t (k String, n UInt32) ENGINE = MergeTree ORDER BY k")
    server.sql(
        "INSERT INTO t SELECT if(number % 2 = 0, unhex(hex(MD5(toString(number)))), toString(number)), number "
        "FROM numbers(400)"
    )
    found = read(reader(server, columns="n", partitionColumn="k"), 8).column("n").to_pylist()
    assert sorted(found) == list(range(400))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"url": "clickhouse:///x"}, "option 'url' names no server"),
        ({"sslrootcert": "ca.pem"}, "'sslrootcert' is for TLS, and 'url' asks for none"),
        ({"commit": "job"}, "option 'commit' got 'job'"),
        ({"writeMode": "upsert"}, "option 'writeMode' got 'upsert'.*ReplacingMergeTree"),
        ({"createTable": "true"}, "option 'createTable' got 'true'"),
        (
            {"txnAppId": "a", "txnVersion": "1"},
            "'txn' is not supported by ClickHouse",
        ),
    ],
)
def test_options_are_refused_by_name(
    server: ClickhouseServer, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write(server, pa.table({"id": [1]}), **more)


def test_the_login_is_not_shown(server: ClickhouseServer) -> None:
    with pytest.raises(ChannelError, match="Authentication failed") as met:
        reader(server, password="wr0ng").schema()
    assert "wr0ng" not in str(met.value)
    with pytest.raises(ChannelError):
        reader(server, url="clickhouse://127.0.0.1:1/x").schema()


@pytest.mark.parametrize("prefix", ["jdbc:clickhouse://", "jdbc:clickhouse:http://"])
def test_a_datax_job_copies_a_table(
    server: ClickhouseServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")  # in which DataX shows times
    server.sql(
        "CREATE TABLE t (id Int64, name String, at DateTime('Asia/Tokyo')) ENGINE = MergeTree ORDER BY id"
    )
    server.sql("CREATE TABLE u (id UInt8, name String, at String) ENGINE = MergeTree ORDER BY id")
    server.sql(
        "INSERT INTO t VALUES (1, 'a', '2024-01-31 10:00:05'), (300, 'b', '2024-01-31 10:00:05')"
    )
    url = f"{prefix}127.0.0.1:{server.port}/default"
    login = {"username": USER, "password": PASSWORD, "column": ["id", "name", "at"]}
    reads = {**login, "splitPk": "id", "connection": [{"jdbcUrl": [url], "table": ["t"]}]}
    writes = {
        **login,
        "preSql": ["truncate table u"],
        "connection": [{"jdbcUrl": url, "table": ["u"]}],
    }
    job = make_job("clickhousereader", reads, "clickhousewriter", writes)
    for _ in range(2):
        refused = move(job)
        assert [each.rows.to_pylist()[0]["id"] for each in refused] == [300]
    assert server.sql("SELECT * FROM u") == "1\ta\t2024-01-31 09:00:05"


def test_a_profile_that_cuts_results_cuts_no_read(server: ClickhouseServer) -> None:
    server.sql("CREATE TABLE t (id Int64) ENGINE = MergeTree ORDER BY id")
    server.sql("INSERT INTO t SELECT number FROM numbers(300000)")
    server.sql("SET max_rows_to_read = 100000, read_overflow_mode = 'break'")
    try:
        assert int(server.sql("SELECT count() FROM (SELECT id FROM t WHERE id % 2 = 0)")) < 150_000
        with pytest.raises(SourceError, match="TOO_MANY_ROWS"):
            read(reader(server, where="id % 2 = 0"), advice=1)
    finally:
        server.sql("SET max_rows_to_read = 0, read_overflow_mode = 'throw'")


def test_a_profile_that_shows_deleted_rows_changes_no_read(server: ClickhouseServer) -> None:
    server.sql("CREATE TABLE t (id Int64) ENGINE = MergeTree ORDER BY id")
    server.sql("INSERT INTO t SELECT number FROM numbers(100)")
    server.sql("DELETE FROM t WHERE id < 40")
    server.sql("SET apply_deleted_mask = 0")
    try:
        assert server.sql("SELECT count(id) FROM t WHERE id >= 0") == "100"
        assert read(reader(server), advice=1).num_rows == 60
    finally:
        server.sql("SET apply_deleted_mask = 1")


@pytest.mark.parametrize("hides", ["false", "true"])
def test_an_error_quotes_no_value_where_it_may_not(server: ClickhouseServer, hides: str) -> None:
    server.sql("CREATE TABLE t (v String) ENGINE = Memory")
    server.sql("INSERT INTO t VALUES ('card-4711')")
    query = {"query": "SELECT toInt32(v) AS n FROM t", "dbtable": None, "hideValues": hides}
    with pytest.raises(SourceError) as caught:
        read(reader(server, **query))
    said = "".join(traceback.format_exception(caught.value))
    assert ("card-4711" in said) == (hides == "false")
    assert ("may quote a value, and are hidden" in said) == (hides == "true")
