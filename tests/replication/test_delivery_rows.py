"""The changes of one delivery until they are written: in memory, or in a file."""

import os
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from spark_channel.errors import ChannelError, SchemaError
from spark_channel.replication import delivery_rows
from spark_channel.replication.delivery_rows import GatheredRows

NOW = datetime(2024, 5, 1, tzinfo=UTC)


def batch(first: int, count: int, *said: str, **more: Any) -> pa.RecordBatch:
    operations = [*said, *["insert"] * (count - len(said))]
    times = pa.array([NOW] * count, pa.timestamp("us", "UTC"))
    columns = {"id": list(range(first, first + count)), **more}
    return pa.record_batch({**columns, "_commit_ts": times, "_op": operations})


@pytest.fixture(params=["memory", "file"])
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """The temporary files that were made; none where all rows fit into memory."""
    made: list[IO[bytes]] = []
    if request.param == "file":
        monkeypatch.setattr(delivery_rows, "_IN_MEMORY", 1_000)
        monkeypatch.setattr(delivery_rows, "_PIECE_ROWS", 64)
    opened = tempfile.TemporaryFile

    def noted(**given: Any) -> IO[bytes]:
        made.append(opened(**given))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    return made


def test_rows_are_read_as_they_were_added_any_number_of_times(files: list[IO[bytes]]) -> None:
    with GatheredRows() as held:
        for first in range(0, 500, 50):
            held.add(batch(first, 50))
        rows = held.rows()
        assert rows.num_rows == 500
        for _ in range(2):
            assert rows.table()["id"].to_pylist() == list(range(500))
        assert rows.without("_commit_ts").table().schema.names == ["id", "_op"]
        for file in files:
            found = os.fstat(file.fileno())
            assert (stat.S_IMODE(found.st_mode), found.st_nlink) == (0o600, 0)
    assert all(file.closed for file in files)


def test_rows_of_several_shapes_have_the_columns_of_all(files: list[IO[bytes]]) -> None:
    with GatheredRows() as held:
        held.add(batch(0, 40))
        held.add(batch(40, 40, new=["x"] * 40))
        held.add(batch(80, 40))
        assert held.rows().table().select(["id", "new"]).to_pylist() == [
            {"id": n, "new": "x" if 40 <= n < 80 else None} for n in range(120)
        ]
        held.add(batch(120, 40, new=[1.5] * 40))
        with pytest.raises(SchemaError, match=r"'new' \(string, double\)"):
            held.rows()


def test_what_is_before_the_last_truncate_is_left_out(files: list[IO[bytes]]) -> None:
    with GatheredRows() as held:
        held.add(batch(0, 100, "insert", "TRUNCATE"))
        assert held.rows().after_truncate(NOW)[1] == NOW
        held.add(batch(100, 100, *["insert"] * 30, "truncate"))
        held.add(batch(200, 100))
        left, at = held.rows().after_truncate(NOW)
        assert (left.num_rows, at) == (169, NOW)
        assert left.table()["id"].to_pylist() == list(range(131, 300))


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_rows, "_IN_MEMORY", 1_000)
    full = Path("/dev/full").open("r+b")  # noqa: SIM115 - what is held closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    held = GatheredRows()
    held.add(batch(0, 10))
    with pytest.raises(ChannelError, match=r"the disk of .* is full.*set TMPDIR to a folder"), held:
        held.add(batch(10, 10_000))
    assert full.closed
