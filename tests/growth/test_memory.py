"""The memory of one large value: peaks of processes that copy one row, beside one that copies a small one."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.files.formats.parquet import RowGroupEncoder

pytestmark = pytest.mark.full

_MIB = 1 << 20
_JOB = (
    "import json, sys; from spark_channel import transfer; source, target = map(json.loads, sys.argv[1:]); "
    "transfer(None, source, target, channels=1); "
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


def _peak(folder: Path, form: str, size: int) -> int:
    """Bytes of a process that copies a value of `size` MiB from SQLite into files."""
    path = folder / f"{size}.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE s (id INTEGER PRIMARY KEY, v TEXT)")
        connection.execute("INSERT INTO s VALUES (1, ?)", ("x" * (size * _MIB),))
    source = {"reader": "sqlite", "path": str(path), "dbtable": "s"}
    target: dict[str, Any] = {"writer": form, "path": str(folder / f"out-{size}")}
    done = subprocess.run(
        [sys.executable, "-c", _JOB, json.dumps(source), json.dumps(target)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.splitlines()[-1]) * 1024


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_one_value_takes_at_most_four_times_its_size(tmp_path: Path, form: str) -> None:
    more = _peak(tmp_path, form, 64) - _peak(tmp_path, form, 1)
    assert more < 4 * 63 * _MIB


def test_only_columns_of_long_values_lose_their_statistics(tmp_path: Path) -> None:
    def written(text: str, rows: int) -> list[bool]:
        table = pa.table(
            {"id": pa.array(range(rows)), "v": pa.array([text] * rows), "n": pa.array([[1]] * rows)}
        )
        path = tmp_path / "x.parquet"
        with path.open("wb") as opened:
            encoder = RowGroupEncoder(opened, table.schema, 1_000, 1 << 30)
            for batch in table.to_batches():
                encoder.write(batch)
            encoder.finish()
        assert pq.read_table(path).equals(table)
        group = pq.read_metadata(path).row_group(0)
        return [group.column(number).is_stats_set for number in range(2)]

    assert written("a" * 100, 5) == [True, True]
    assert written("a" * (2 * _MIB), 1) == [True, False]
