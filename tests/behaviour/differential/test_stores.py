"""Lake tables, ADBC drivers, web services and Redis, as spark-channel reads and writes them, and as others do."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_channel
from spark_channel.errors import SchemaError
from tests.behaviour.differential import inputs, judges
from tests.behaviour.differential.inputs import PLAIN, Kind, maybe
from tests.behaviour.differential.lengths import either_length, examples
from tests.behaviour.differential.tables import Found, difference, from_arrow, of_rows
from tests.behaviour.differential.tables import number as number_of
from tests.servers.redis import PASSWORD, RedisServer, redis_server
from tests.servers.web import as_json, web_server

OF_SQLITE: tuple[Kind, ...] = (
    (pa.int64(), inputs.ints(64)),
    (pa.float64(), st.floats(allow_nan=False).filter(lambda value: value != 0.0)),
    (pa.string(), inputs.texts),
    (pa.binary(), st.binary(min_size=1, max_size=6)),
)
"""The values that SQLite keeps unchanged: it makes a NaN a NULL, and -0.0 a 0."""
OF_JSON: tuple[Kind, ...] = (
    (pa.string(), inputs.texts),
    (pa.int64(), inputs.ints(64)),
    (pa.bool_(), st.booleans()),
)
NAMES = ("a", "B", "é", "c d", "x,y")


def assert_equal(ours: Found, theirs: Found) -> None:
    found = difference(ours, theirs, ordered=False)
    assert found is None, found


def moved(table: pa.Table, target: dict[str, Any], folder: Path, number: int) -> None:
    """Write the table by a transfer in two tasks."""
    source = folder / f"{number}.arrow"
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    report = spark_channel.transfer(
        None, {"name": "arrow", "path": str(source)}, target, channels=2
    )
    assert report.rows == table.num_rows


@either_length
def test_iceberg_is_what_its_data_files_hold(tmp_path: Path, length: str) -> None:
    load_catalog = pytest.importorskip("pyiceberg.catalog").load_catalog
    pytest.importorskip("sqlalchemy")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    load_catalog("tests", **properties).create_namespace("shop")
    catalog = {"catalog": "tests", "catalogProperties": json.dumps(properties)}
    number = 0

    @examples(length, quick=4)
    @given(inputs.tables([*_wide(PLAIN), inputs.CLOCK], deep=True, names=NAMES))
    def check(table: pa.Table) -> None:
        nonlocal number
        number += 1
        options = {"dbtable": f"shop.t{number}", **catalog}
        moved(table, {"writer": "iceberg", **options}, tmp_path, number)
        files = [str(each) for each in tmp_path.glob(f"warehouse/**/t{number}/data/**/*.parquet")]
        found = judges.channel({"reader": "iceberg", **options}, splits=3)
        assert_equal(found, from_arrow(table))
        if table.num_rows:
            assert_equal(from_arrow(table), judges.duckdb_query(f"FROM read_parquet({files})"))

    check()


def _wide(kinds: tuple[Kind, ...]) -> list[Kind]:
    """Without the short integers, which Iceberg has not."""
    return [each for each in kinds if each[0] not in (pa.int8(), pa.int16())]


@either_length
def test_delta_is_what_its_log_and_data_files_hold(tmp_path: Path, length: str) -> None:
    number = 0

    @examples(length, quick=4)
    @given(inputs.tables([*PLAIN, inputs.BINARY], deep=True, names=NAMES))
    def check(table: pa.Table) -> None:
        nonlocal number
        number += 1
        path = tmp_path / f"t{number}"
        try:
            moved(table, {"writer": "delta", "path": str(path)}, tmp_path, number)
        except SchemaError as error:
            assert "timestampNtz" in str(error)  # noqa: PT017 - most tables are written
            return
        found = judges.channel({"reader": "delta", "path": str(path)}, splits=3)
        assert_equal(found, from_arrow(table))
        if table.num_rows:
            assert_equal(found, judges.delta_log(path))

    check()


@either_length
def test_adbc_is_read_and_written_as_sqlite_has_it(tmp_path: Path, length: str) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    number = 0

    @examples(length)
    @given(inputs.tables(OF_SQLITE, names=NAMES))
    def check(table: pa.Table) -> None:
        nonlocal number
        number += 1
        path = tmp_path / f"{number}.db"
        options = {"driver": "sqlite", "uri": f"file:{path}", "dbtable": "t"}
        moved(table, {"writer": "adbc", **options}, tmp_path, number)
        kinds = [column.kind for column in from_arrow(table).columns]
        with closing(sqlite3.connect(path)) as connection:
            rows = [
                [number_of(value) if isinstance(value, float) else value for value in row]
                for row in connection.execute("SELECT * FROM t")
            ]
        theirs = of_rows(table.column_names, kinds, rows)
        assert_equal(from_arrow(table), theirs)
        if all(column.null_count < len(column) for column in table.columns):
            assert_equal(judges.channel({"reader": "adbc", **options}, splits=3), theirs)

    check()


@either_length
def test_http_is_read_as_json_reads_it(length: str) -> None:
    @examples(length)
    @given(inputs.tables(OF_JSON, names=NAMES), st.integers(1, 9))
    def check(table: pa.Table, size: int) -> None:
        rows = table.to_pylist()
        body = json.dumps(rows, ensure_ascii=False)
        server.answer = lambda asked: as_json(
            [
                each
                for place, each in enumerate(json.loads(body))
                if place // size + 1 == int(asked.query.get("page", 1))
            ]
        )
        kept = [name for name in table.column_names if table[name].null_count < len(rows)]
        if len(kept) < len(table.column_names):
            return  # a column of NULLs has no type in JSON
        options = {
            "reader": "http",
            "url": server.url,
            "pageParam": "page",
            "pageSizeParam": "size",
            "pageSize": str(size),
        }
        found = judges.channel(options, schema=table.schema)
        assert_equal(found, from_arrow(table))

    with web_server() as server:
        check()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with redis_server() as server:
        yield server


@pytest.mark.real_server("Redis", "redis")
@either_length
def test_hashes_of_redis_are_what_its_client_shows(
    redis: RedisServer, tmp_path: Path, length: str
) -> None:
    number = 0

    @examples(length)
    @given(
        st.dictionaries(st.integers(0, 99), st.tuples(maybe(inputs.texts), maybe(inputs.ints(64))))
    )
    def check(rows: dict[int, tuple[str | None, int | None]]) -> None:
        nonlocal number
        number += 1
        redis.client.flushall()
        table = pa.table(
            {
                "k": pa.array(rows, pa.int64()),
                "s": pa.array([text for text, _ in rows.values()], pa.string()),
                "n": pa.array([whole for _, whole in rows.values()], pa.int64()),
            }
        )
        target = {
            "writer": "redis",
            "url": redis.url,
            "password": PASSWORD,
            "keyColumns": "k",
            "keyPrefix": "t:",
            "valueType": "hash",
        }
        moved(table, target, tmp_path, number)
        found = {key: redis.client.hgetall(key) for key in redis.client.scan_iter("t:*")}
        wanted = {
            f"t:{key}": {
                name: str(value)
                for name, value in zip(("s", "n"), values, strict=True)
                if value is not None
            }
            for key, values in rows.items()
        }
        assert {key: value for key, value in found.items() if value} == {
            key: value for key, value in wanted.items() if value
        }

    check()
