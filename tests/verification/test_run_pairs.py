"""Pairs of engines with random columns and rows: each difference is found, and nothing else."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spark_channel
from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

MAKE = Callable[[Path], dict[str, Any]]
EMBEDDED: dict[str, MAKE] = {
    "sqlite": lambda path: {"name": "sqlite", "path": f"{path}.db", "dbtable": "t"},
    "duckdb": lambda path: {"name": "duckdb", "path": f"{path}.duckdb", "dbtable": "t"},
    "parquet": lambda path: {"name": "parquet", "path": str(path)},
    "delta": lambda path: {"name": "delta", "path": str(path)},
}
TEXT = st.text("abzäß \\'\"%,\n\U0001f600", max_size=6)
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.decimal128(12, 3): st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3)),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    pa.string(): TEXT,
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1800, 1, 1), date(2200, 1, 1)),
    pa.timestamp("us"): st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    pa.timestamp("us", "UTC"): st.datetimes(
        datetime(1971, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)
    ),
    pa.binary(): st.binary(max_size=9),
}
NESTING = ("delta", "duckdb", "parquet")
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float32(): st.floats(-1e6, 1e6, width=32),
    pa.list_(pa.int64()): st.lists(st.integers(-9, 9) | st.none(), max_size=3),
    pa.list_(pa.list_(pa.string())): st.lists(st.lists(TEXT, max_size=2), max_size=2),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.integers(-9, 9) | st.none(), "b": TEXT | st.none()}
    ),
    pa.list_(pa.struct([("d", pa.date32())])): st.lists(
        st.fixed_dictionaries({"d": st.dates(date(1800, 1, 1), date(2200, 1, 1))}), max_size=2
    ),
}


def other(value: Any, kind: pa.DataType) -> Any:
    """Another value of the type, as near as it has one."""
    if value is None:
        return pa.scalar(0, pa.int32()).cast(kind).as_py() if pa.types.is_integer(kind) else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return value * 2 + 1
    if isinstance(value, Decimal):
        return value + Decimal("0.001") if value < 0 else value - Decimal("0.001")
    if isinstance(value, datetime):
        return value + timedelta(microseconds=1)
    if isinstance(value, date):
        return value + timedelta(days=1)
    if isinstance(value, list):
        return [*value, None]
    if isinstance(value, dict):
        return {**value, "a": None if value["a"] is not None else 0}
    return value + (b"\0" if isinstance(value, bytes) else "a")


def check(
    data: st.DataObject,
    path: Path,
    engines: dict[str, MAKE],
    columns: dict[pa.DataType, st.SearchStrategy[Any]] = COLUMNS,
) -> None:
    """Write rows to one engine, and with some changes to another; compare, and compare the finding with the changes."""
    kinds = data.draw(st.lists(st.sampled_from(list(columns)), min_size=1, max_size=4))
    names = [f"c{number}" for number in range(len(kinds))]
    keys = data.draw(st.lists(st.integers(-(2**40), 2**40), unique=True, max_size=12))
    rows = {key: [data.draw(columns[kind] | st.none()) for kind in kinds] for key in sorted(keys)}
    changed = {key: list(row) for key, row in rows.items()}
    expected: dict[int, tuple[str, tuple[str, ...]]] = {}
    for key in rows:
        what = data.draw(st.sampled_from(["same", "same", "gone", "other"]))
        if what == "gone":
            del changed[key]
            expected[key] = ("missing", ())
        elif what == "other":
            place = data.draw(st.integers(0, len(kinds) - 1))
            value = other(rows[key][place], kinds[place])
            if value != rows[key][place]:
                changed[key][place] = value
                expected[key] = ("different", (names[place],))
    pair = []
    for number, part in enumerate((rows, changed)):
        table = pa.table(
            {
                "id": pa.array(part, pa.int64()),
                **{
                    name: pa.array([row[place] for row in part.values()], kind)
                    for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
                },
            }
        )
        pq.write_table(table, path / f"{number}.parquet")
        engine = data.draw(st.sampled_from(sorted(engines)))
        pair.append(engines[engine](path / f"side{number}"))
        spark_channel.transfer(
            None, {"name": "parquet", "path": str(path / f"{number}.parquet")}, pair[-1]
        )
    report = spark_channel.verify(None, *pair, key=["id"], confirm=0)
    found = {each.key["id"]: (each.kind, tuple(each.columns)) for each in report.differences}
    assert found == expected, (pair, report)
    assert report.equal == len(rows) - len(expected)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_rows_of_two_embedded_engines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check(data, tmp_path_factory.mktemp("pair"), EMBEDDED)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_random_nested_values_of_two_engines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    engines = {name: EMBEDDED[name] for name in NESTING}
    check(data, tmp_path_factory.mktemp("pair"), engines, NESTED)


@pytest.mark.soak
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_random_rows_of_any_two_engines(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
    mariadb_server: MariadbServer,
    data: st.DataObject,
) -> None:
    mariadb_server.sql("CREATE DATABASE IF NOT EXISTS pairs CHARACTER SET utf8mb4")
    login = Shop(mariadb_server, "pairs").login

    def named(path: Path) -> str:
        return f"pair_{path.name}"

    for name in ("side0", "side1"):
        postgres_server.psql(f"DROP TABLE IF EXISTS pair_{name}")
        mariadb_server.sql(f"DROP TABLE IF EXISTS pairs.pair_{name}")
    servers: dict[str, MAKE] = {
        "postgresql": lambda path: {**postgres_server.login, "dbtable": named(path)},
        "mariadb": lambda path: {**login, "dbtable": named(path)},
    }
    check(data, tmp_path_factory.mktemp("pair"), {**EMBEDDED, **servers})
