"""A full disk fails each step that writes rows with an error that says so, and leaves no partial write."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.errors import CommitError, TargetError
from tests.connectors.duckdb.conftest import Duck
from tests.connectors.sql.one_database import run_task
from tests.small_disk import small_disk

NAMES = [f"{number * 7919 % 104729:x} takes room {number}" for number in range(120_000)]
ROWS = pa.table({"id": range(120_000), "name": NAMES})
FEW = ROWS.slice(0, 10)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 8) as place:
        yield place


def test_staging_that_fills_the_disk(small: Path) -> None:
    duck = Duck(small / "a.duckdb")
    with pytest.raises(
        TargetError, match="No space left on device; free space on the database's disk"
    ):
        duck.write(*[ROWS] * 4)
    assert list(small.iterdir()) == []
    duck.write(FEW)
    assert duck.read() == FEW


def test_a_database_that_fills_the_disk(small: Path) -> None:
    duck = Duck(small / "a.duckdb")
    duck.write(FEW)
    writer = duck.writer()
    plan = writer.prepare(duck.context(), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS)]
    ballast = small / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - (64 << 10))
    with pytest.raises(CommitError, match=r"the disk is full.*Nothing of this job is in"):
        writer.commit(plan, receipts)
    ballast.unlink()
    writer.abort(plan, None)
    assert duck.read() == FEW
    assert duck.staged() == []
    duck.write(FEW)
    assert duck.read().num_rows == 20


def test_a_full_disk_when_the_job_begins(small: Path) -> None:
    (small / "ballast").write_bytes(bytes(8 << 20))
    duck = Duck(small / "a.duckdb")
    with pytest.raises(TargetError, match="free space"):
        duck.write(FEW)
    assert [path.name for path in small.iterdir()] == ["ballast"]
