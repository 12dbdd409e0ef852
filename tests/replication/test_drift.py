"""`contract.data_type`: values that the target's column does not hold, whatever its Arrow type says."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import spark_channel
from spark_channel.replication import ReplicationReport
from spark_channel.replication.drift import FitTypes
from tests.replication.test_changes import Followed, followed
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["followed"]

POLICIES = ("discard_row", "discard_value")


def replicated(
    source: Any, target: Any, policy: str, streams: Any, prefix: str = "", **options: Any
) -> ReplicationReport:
    file = {
        "source": dict(source),
        "target": dict(target),
        "defaults": {"object": prefix + "{table}", "contract": {"data_type": policy}, **options},
        "streams": streams,
    }
    report = spark_channel.replicate(None, file)
    assert report.exit_code == 0, [(each.stream, each.why) for each in report.parked]
    return report


@pytest.mark.parametrize(
    ("values", "given", "wanted", "kept"),
    [
        ([0.5, 1e300, 16777217.0, math.nan], pa.float64(), pa.float32(), [0, 3]),
        ([1, 2, 0], pa.int32(), pa.bool_(), [0, 2]),
        ([1.0, 1.5, 1e300], pa.float64(), pa.int32(), [0]),
        (
            [Decimal("1.55"), Decimal("1.555"), Decimal("1e20")],
            pa.decimal128(38, 3),
            pa.decimal128(6, 2),
            [0],
        ),
        ([1.5, 1.555], pa.float64(), pa.decimal128(6, 2), [0]),
        (["12", "012", "1e2", "x", " "], pa.string(), pa.int32(), [0]),
        (["1.50", "1.555", "1e1000"], pa.string(), pa.decimal128(6, 2), [0]),
        (["0.5", "0.1", "1e300"], pa.string(), pa.float32(), [0]),
        (["2026-01-01", "2026-01-32"], pa.string(), pa.date32(), [0]),
        ([[1, 2], [2**40], None], pa.list_(pa.int64()), pa.list_(pa.int32()), [0, 2]),
        ([2**53, 2**53 + 1], pa.int64(), pa.float64(), [0]),
        ([0, 86_400_000_000, 1], pa.timestamp("us"), pa.date32(), [0, 1]),
    ],
)
def test_a_value_fits_where_it_stays_equal(
    values: list[Any], given: pa.DataType, wanted: pa.DataType, kept: list[int]
) -> None:
    batch = pa.record_batch({"n": pa.array(range(len(values))), "v": pa.array(values, given)})
    rows = FitTypes((("v", wanted),), drops_rows=True).apply(batch).batch
    assert rows.column("n").to_pylist() == kept
    assert rows.schema.field("v").type == wanted
    nulls = FitTypes((("v", wanted),)).apply(batch).batch
    bad = [n for n in range(len(values)) if n not in kept]
    assert all(nulls.column("v")[n].as_py() is None for n in bad)
    assert nulls.num_rows == len(values)


@pytest.mark.parametrize("policy", POLICIES)
def test_numbers_that_a_duckdb_column_would_change_are_left_out(
    tmp_path: Path, policy: str
) -> None:
    with duckdb.connect(str(tmp_path / "s.duckdb")) as db:
        db.execute(
            "CREATE TABLE m (id int, f double, b int, e varchar); "
            "INSERT INTO m VALUES (1, 0.5, 1, 'ok'), (2, 1e300, 0, 'ok'), (3, 16777217, NULL, NULL), (4, NULL, 2, 'x')"
        )
    with duckdb.connect(str(tmp_path / "t.duckdb")) as db:
        db.execute("CREATE TABLE m (id int, f float, b boolean, e ENUM ('ok', 'it''s'))")
    replicated(
        {"url": f"duckdb:{tmp_path}/s.duckdb"},
        {"url": f"duckdb:{tmp_path}/t.duckdb"},
        policy,
        {"*": None},
    )
    with duckdb.connect(str(tmp_path / "t.duckdb"), read_only=True) as db:
        found = db.execute("SELECT id, f::double, b, e::varchar FROM m ORDER BY id").fetchall()
    kept = [(1, 0.5, True, "ok")]
    others = [(2, None, False, "ok"), (3, None, None, None), (4, None, None, None)]
    assert found == (kept if policy == "discard_row" else kept + others)


PG_ENDS = """
DROP SCHEMA IF EXISTS con CASCADE; DROP SCHEMA IF EXISTS con_dw CASCADE; CREATE SCHEMA con; CREATE SCHEMA con_dw;
CREATE TYPE con_dw.mood AS ENUM ('ok', 'sad');
CREATE TABLE con.m (id int PRIMARY KEY, v varchar(20), moment timestamp, e text, a bigint[]);
CREATE TABLE con_dw.m (id int PRIMARY KEY, v varchar(5), moment timestamp(0), e con_dw.mood, a int[]);
INSERT INTO con.m VALUES (1, 'short', '2026-01-01 00:00:01', 'ok', '{1}'), (2, 'longer', NULL, NULL, NULL),
  (3, NULL, '2026-01-01 00:00:01.5', NULL, NULL), (4, NULL, NULL, 'glad', NULL), (5, NULL, NULL, NULL, '{5000000000}');
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_postgresql_column_does_not_hold_is_left_out(
    postgres_server: PostgresServer, policy: str
) -> None:
    postgres_server.psql(PG_ENDS)
    try:
        target = {**postgres_server.login, "currentSchema": "con_dw"}
        replicated(postgres_server.login, target, policy, {"con.m": None})
        found = postgres_server.rows("SELECT id, v, moment, e, a FROM con_dw.m ORDER BY id")
    finally:
        postgres_server.psql("DROP SCHEMA con CASCADE; DROP SCHEMA con_dw CASCADE")
    kept = [("1", "short", "2026-01-01 00:00:01", "ok", "{1}")]
    others = [(str(n), *["\\N"] * 4) for n in range(2, 6)]
    assert found == (kept if policy == "discard_row" else kept + others)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_mariadb_column_does_not_hold_is_left_out(
    mariadb_server: MariadbServer, tmp_path: Path, policy: str
) -> None:
    with duckdb.connect(str(tmp_path / "s.duckdb")) as db:
        db.execute(
            "CREATE TABLE con_m (id int, v varchar, e varchar, t varchar, n bigint, moment timestamp);"
            "INSERT INTO con_m VALUES (1, 'short', 'ok', 'x', 7, '2026-01-01 00:00:01'), "
            "(2, 'longer', NULL, NULL, NULL, NULL), (3, NULL, 'OK', NULL, NULL, NULL), "
            "(4, NULL, NULL, repeat('x', 256), NULL, NULL), (5, NULL, NULL, NULL, 5000000000, NULL), "
            "(6, NULL, NULL, NULL, NULL, '2026-01-01 00:00:01.5')"
        )
    mariadb_server.sql(
        "DROP TABLE IF EXISTS con_m; CREATE TABLE con_m (id INT PRIMARY KEY, v VARCHAR(5), e ENUM ('ok', 'sad'), "
        "t TINYTEXT, n INT, moment DATETIME)",
        database="shop",
    )
    replicated({"url": f"duckdb:{tmp_path}/s.duckdb"}, mariadb_server.login, policy, {"*": None})
    query = "SELECT CONCAT_WS(',', id, v, e, t, n, moment) FROM con_m ORDER BY id"
    found = mariadb_server.sql(query, database="shop").split("\n")
    mariadb_server.sql("DROP TABLE con_m", database="shop")
    kept = ["1,short,ok,x,7,2026-01-01 00:00:01"]
    assert [each for each in found if each] == (
        kept if policy == "discard_row" else [*kept, "2", "3", "4", "5", "6"]
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize("policy", [*POLICIES, "evolve"])
def test_a_followed_text_that_is_too_long(followed: Followed, policy: str) -> None:
    followed.more["contract"] = {"data_type": policy}
    followed.sql(
        "CREATE TABLE fol_dw.t_a (id int PRIMARY KEY, n int, s varchar(5)); INSERT INTO fol.a VALUES (1, 1, 'short')"
    )
    followed.run()
    followed.sql(
        "INSERT INTO fol.a VALUES (2, 2, 'longer'), (3, 3, 'x'); DELETE FROM fol.a WHERE id = 1"
    )
    followed.run()
    followed.sql(
        "UPDATE fol.a SET s = 'longer too' WHERE id = 3; INSERT INTO fol.a VALUES (4, 4, 'y')"
    )
    followed.run()
    rows = {
        "evolve": [(2, 2, "longer"), (3, 3, "longer too"), (4, 4, "y")],
        "discard_value": [(2, 2, None), (3, 3, None), (4, 4, "y")],
        "discard_row": [(3, 3, "x"), (4, 4, "y")],
    }
    assert followed.rows("a", "id, n, s") == rows[policy]
