"""A disk of the server that is full: an error, and nothing half written; the table is on its own file system."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.errors import CommitError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop
from tests.small_disk import small_disk

ROWS = pa.table(
    {"id": range(20_000), "name": [f"{number} {'x' * 900}" for number in range(20_000)]}
)
FEW = ROWS.slice(0, 10)


@pytest.fixture
def small() -> Iterator[Path]:
    """Where the server's user may go: its directories are open to all."""
    folder = Path(tempfile.mkdtemp(prefix="spark-channel-disk-"))
    folder.chmod(0o755)
    try:
        with small_disk(folder / "small", 16, owner="mysql") as place:
            yield place
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_table_that_fills_its_disk(shop: Shop, small: Path, commit: CommitMode) -> None:
    shop.sql(
        f"CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(2000)) DATA DIRECTORY = '{small}'"
    )
    try:
        shop.write(FEW, commit=commit)
        message = "the server's disk or table space is full; free space"
        if commit == "job":
            message += ".*Nothing of this job is in table"
        with pytest.raises(CommitError if commit == "job" else TargetError, match=message):
            shop.write(ROWS.slice(10), commit=commit)
        assert shop.rows("SELECT COUNT(*), MAX(id) FROM t") == [("10", "9")]
        assert shop.staged() == []
        shop.write(ROWS.slice(10, 10), commit=commit)
        assert shop.rows("SELECT COUNT(*), MAX(id) FROM t") == [("20", "19")]
    finally:
        shop.sql("DROP TABLE t")
