"""Tables that Spark made with each feature of Delta Lake and Iceberg: read equal, or refused by name before any row.

And Spark reads all that the connectors write into them. See `.ci/lakes`.
"""

import json

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

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
