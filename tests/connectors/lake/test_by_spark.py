"""Tables that Spark made with each feature of Delta Lake and Iceberg: read equal, or refused by name before any row.

And Spark reads all that the connectors write into them. See `.ci/lakes`.
"""

import json

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from spark_channel.connectors import WriteContext, load_writer
from tests.connectors.lake.by_spark import check
from tests.connectors.lake.deltas import DELTAS, Made
from tests.connectors.lake.icebergs import ICEBERGS
from tests.servers.lake_spark import LakeSpark

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(600)]


@pytest.mark.parametrize("made", DELTAS, ids=lambda made: made.name)
def test_a_delta_table(lakes: LakeSpark, made: Made) -> None:
    path = lakes.folder / made.name
    names = {"t": made.name, "path": str(path)}
    lakes.sql(*(statement.format(**names) for statement in made.sql))
    check(lakes, made, made.query.format(**names), {"path": f"{path}{made.suffix}"})


@pytest.mark.parametrize("made", ICEBERGS, ids=lambda made: made.name)
def test_an_iceberg_table(lakes: LakeSpark, made: Made) -> None:
    table = f"shop.{made.name}"
    names = {"t": f"lake.{table}"}
    lakes.sql(*(statement.format(**names) for statement in made.sql))
    if made.default is not None:
        lakes.add_column_with_default(f"lake.{table}", "n", made.default)
    options = {
        "dbtable": f"{table}{made.suffix}",
        "catalog": "lake",
        "catalogProperties": json.dumps(lakes.properties),
    }
    check(lakes, made, made.query.format(**names), options)


_NUMBERS = (
    {"id": 1, "d": float("nan"), "n": {"f": float("nan")}},
    {"id": 2, "d": -0.0, "n": {"f": -0.0}},
    {"id": 3, "d": 0.5, "n": {"f": 0.5}},
    {"id": 4, "d": None, "n": None},
)


@pytest.mark.parametrize("system", ["delta", "iceberg"])
def test_a_filter_of_spark_finds_each_number(lakes: LakeSpark, system: str) -> None:
    """Bounds leave out NaN, which is the greatest number to Spark; a dictionary has one of 0.0 and -0.0."""
    fields = pa.struct([("f", pa.float32())])
    schema = pa.schema([("id", pa.int64()), ("d", pa.float64()), ("n", fields)])
    rows = pa.RecordBatch.from_pylist(list(_NUMBERS), schema)
    path = lakes.folder / "numbers"
    table, options = (
        (f"delta.`{path}`", {"path": str(path)})
        if system == "delta"
        else (
            "lake.shop.numbers",
            {
                "dbtable": "shop.numbers",
                "catalog": "lake",
                "catalogProperties": json.dumps(lakes.properties),
            },
        )
    )
    out = load_writer({"writer": system, **options})[0]
    plan = out.prepare(WriteContext(f"numbers-{system}"), schema)
    task = out.open(plan, 0, 0)
    task.write(rows)
    out.commit(plan, [task.close()])
    for condition, ids in (
        ("d = double('NaN')", [1]),
        ("d > 1d", [1]),
        ("d = 0d", [2]),
        ("n.f >= float(0.5)", [1, 3]),
        ("n.f = float(0)", [2]),
    ):
        found = lakes.rows(f"SELECT id FROM {table} WHERE {condition} ORDER BY id")
        assert found.column("id").to_pylist() == ids, condition
