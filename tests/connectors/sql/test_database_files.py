"""The file of a database is opened by the database's own library alone.

POSIX locks belong to a process, and end when the process closes any descriptor of the file: a look at its first bytes
would leave the program's own connection without the lock that keeps other processes out.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from spark_channel.connectors import load_reader
from spark_channel.errors import SourceError

_RUN = """
import os, sys
import pyarrow as pa

path, kind = sys.argv[1:]
opened = []


def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        if os.path.abspath(os.fsdecode(arguments[0])).startswith(path):
            opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(hook)
import spark_channel
from spark_channel.connectors import WriteContext, load_reader, load_writer

rows = pa.table({"id": pa.array(range(100), pa.int64())})
for table in ("t", "u"):
    writer, _ = load_writer({"url": f"{kind}:{path}", "dbtable": table})
    plan = writer.prepare(WriteContext(f"job-{table}"), rows.schema)
    task = writer.open(plan, 0, 0)
    for batch in rows.to_batches():
        task.write(batch)
    writer.commit(plan, [task.close()])
reader, _ = load_reader({"url": f"{kind}:{path}", "dbtable": "t"})
reader.schema()
assert sum(batch.num_rows for split in reader.split(3) for batch in reader.read(split)) == 100
end = {"name": kind, "url": f"{kind}:{path}"}
report = spark_channel.verify(None, {**end, "dbtable": "t"}, {**end, "dbtable": "u"})
assert report.equal, report
print(opened)
"""


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_no_step_opens_the_file_beside_the_library(kind: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "shop.db"), kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().splitlines()[-1] == "[]"


_OTHER = """
import duckdb, sys
try:
    duckdb.connect(sys.argv[1]).execute("INSERT INTO t VALUES (2)")
except duckdb.IOException as error:
    print(error)
"""


def test_a_look_leaves_the_lock_of_the_programs_own_connection(tmp_path: Path) -> None:
    path = tmp_path / "marts.db"
    with duckdb.connect(str(path)) as own:
        own.execute("CREATE TABLE t (a INT)")
        reader, _ = load_reader({"url": f"duckdb:{path}", "dbtable": "t", "locktimeout": "0.1"})
        with pytest.raises(SourceError, match="different configuration"):
            reader.schema()
        other = [sys.executable, "-c", _OTHER, str(path)]
        ran = subprocess.run(other, capture_output=True, text=True, check=True)
        assert "Could not set lock" in ran.stdout


def test_a_file_that_another_thread_is_closing_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB 1.4 refuses it for a moment."""
    path, real, refused = tmp_path / "marts.db", duckdb.connect, ["once"]
    with real(str(path)) as own:
        own.execute("CREATE TABLE t AS SELECT 1 AS a")

    def connect(*given: Any, **more: Any) -> duckdb.DuckDBPyConnection:
        if refused:
            refused.clear()
            raise duckdb.BinderException("Unique file handle conflict: Cannot attach 'marts'")
        return real(*given, **more)

    monkeypatch.setattr(duckdb, "connect", connect)
    reader, _ = load_reader({"url": f"duckdb:{path}", "dbtable": "t"})
    assert reader.schema().names == ["a"]
    assert refused == []


@pytest.mark.parametrize("content", [b"", b"id,name\n" * 1000, b"SQLite format 3\0" + bytes(4080)])
def test_a_file_that_is_no_database_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "marts.db"
    path.write_bytes(content)
    reader, _ = load_reader({"url": f"duckdb:{path}", "dbtable": "t"})
    with pytest.raises(SourceError, match="is not a DuckDB database, or it is encrypted"):
        reader.schema()
