"""A full disk fails each step that writes rows with an error that says so, and leaves no partial write."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.errors import CommitError, TargetError
from tests.connectors.sql.one_database import run_task
from tests.connectors.sqlite.conftest import Db
from tests.small_disk import small_disk

ROWS = pa.table(
    {
        "id": range(200_000),
        "name": [f"a name that takes room {number}" for number in range(200_000)],
    }
)
FEW = ROWS.slice(0, 10)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 4) as place:
        yield place


def test_staging_that_fills_the_disk(small: Path) -> None:
    db = Db(small / "a.db")
    with pytest.raises(
        TargetError, match="No space left on device; free space on the database's disk"
    ):
        db.write(ROWS)
    assert list(small.iterdir()) == []
    db.write(FEW)
    assert db.read() == FEW


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_database_that_fills_the_disk(small: Path, commit: str) -> None:
    db = Db(small / "a.db")
    db.write(FEW)
    writer = db.writer()
    plan = writer.prepare(db.context(commit="job" if commit == "job" else "task"), ROWS.schema)
    part = ROWS.slice(0, 60_000)
    if commit == "job":
        receipt = run_task(writer, plan, 0, part)
        with pytest.raises(CommitError, match=r"the disk is full.*Nothing of this job is in"):
            writer.commit(plan, [receipt])
    else:
        attempt = writer.open(plan, 0, 0)
        for batch in part.to_batches():
            attempt.write(batch)
        with pytest.raises(TargetError, match="the disk is full"):
            attempt.close()
        attempt.rollback()
    writer.abort(plan, None)
    assert db.read() == FEW
    assert [path.name for path in small.iterdir()] == ["a.db"]


def test_a_full_disk_when_the_job_begins(small: Path) -> None:
    (small / "ballast").write_bytes(bytes(4 << 20))
    db = Db(small / "a.db")
    with pytest.raises(TargetError, match="free space"):
        db.write(FEW)
    assert [path.name for path in small.iterdir()] == ["ballast"]
