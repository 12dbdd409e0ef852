"""What a plan says of an overwrite in every database: how many rows go that no job of spark-channel has claimed."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target

ROWS = pa.table({"id": pa.array([7], pa.int64())})


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    yield from open_target(request.param, request, tmp_path)


def test_rows_of_a_table_without_a_claim_are_counted(target: Target) -> None:
    target.reset(True)
    assert target.writer().foreign_content(ROWS.schema) == ""
    target.sql(f"INSERT INTO {target.schema}t VALUES (1)")
    target.sql(f"INSERT INTO {target.schema}t VALUES (2)")
    said = "2 rows of a table that no job of spark-channel has claimed"
    assert target.writer().foreign_content(ROWS.schema) == said
    other = pa.schema([("n", pa.int64())])
    lost = target.writer().foreign_content(other).lower()
    assert lost == f"{said}, which has columns that the rows lack: id"
    writer = target.writer()
    plan = writer.prepare(WriteContext("a", overwrite=True), ROWS.schema)
    task = writer.open(plan, 0, 0)
    task.write(ROWS.to_batches()[0])
    writer.commit(plan, [task.close()])
    assert writer.foreign_content(ROWS.schema) == ""
    assert set(target.seen()) == {7}
