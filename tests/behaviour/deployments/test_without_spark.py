"""`transfer(None, ...)` and `run(None, ...)`: this process does the work, without pyspark and without a JVM."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import spark_channel
from spark_channel.errors import (
    ChannelError,
    DirtyRowsError,
    JobFileError,
    OptionError,
    SourceError,
)
from spark_channel.local import run as local
from tests.cli.typed import into_sqlite, made_up, write_job
from tests.test_install import ROOT, WITHOUT_PYSPARK, without_pyspark

FROM_CSV_TO_CSV = """
import os, sys
from pathlib import Path
import pyarrow.csv as csv, pyarrow.parquet as pq
import spark_channel
os.chdir(sys.argv[1])
Path("a.csv").write_text("n,name\\n" + "".join(f"{n},x{n}\\n" for n in range(1000)))
table = {"name": "sqlite", "path": "t.db", "dbtable": "t"}
reports = [
    spark_channel.transfer(None, reader={"path": "a.csv"}, writer=table, rows_per_second="100k"),
    spark_channel.transfer(None, table, {"name": "parquet", "path": "b"}, channels=2, channels_per_task=2),
    spark_channel.transfer(None, {"name": "parquet", "path": "b"}, [{"name": "csv", "path": "c"}, table]),
]
assert [report.rows for report in reports] == [1000] * 3
assert [report.phase for report in reports] == ["done"] * 3
assert sorted(pq.read_table("b").column("n").to_pylist()) == list(range(1000))
assert sum(csv.read_csv(part).num_rows for part in Path("c").glob("*.csv")) == 1000
assert not [name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")]
"""
DATAX = {
    "job": {
        "setting": {"speed": {"channel": 1}},
        "content": [{"reader": made_up(10, "${who}"), "writer": {"name": "streamwriter"}}],
    }
}


def table(path: Path, definition: str) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE t ({definition})")
    return {"name": "sqlite", "path": str(path), "dbtable": "t"}


def rows_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT * FROM t"))


def numbers(rows: int) -> dict[str, Any]:
    return {"name": "generator", "rows": rows, "schema": "id BIGINT"}


def test_it_copies_where_pyspark_cannot_be_imported(tmp_path: Path) -> None:
    done = without_pyspark(f"import sys; sys.argv = ['-', {str(tmp_path)!r}]\n{FROM_CSV_TO_CSV}")
    assert done.returncode == 0, done.stderr
    assert "copied 1 000 rows" in done.stderr, "the progress of a command"
    assert "limit 100k rows/s for the whole job" in done.stderr


def test_a_job_of_datax_runs_where_pyspark_cannot_be_imported(tmp_path: Path) -> None:
    table(tmp_path / "t.db", "id INTEGER, name TEXT")
    file = write_job(tmp_path / "job.json", made_up(10, "${who}"), into_sqlite(tmp_path / "t.db"))
    done = without_pyspark(
        f"import spark_channel\nprint(spark_channel.run(None, {file!r}, variables={{'who': 'ada'}}).rows)"
    )
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr
    assert {name for _, name in rows_of(tmp_path / "t.db")} == {"ada"}


def test_the_arguments_are_those_with_a_session(tmp_path: Path) -> None:
    source = table(tmp_path / "source.db", "n INTEGER")
    with closing(sqlite3.connect(source["path"])) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(100)])
    target = table(tmp_path / "target.db", "n INTEGER CHECK (n <> 7)")
    report = spark_channel.transfer(
        None,
        reader=source,
        writer=target,
        transformers=[lambda batch: batch.filter(pc.less(batch["n"], 50))],
        mode="overwrite",
        channels=2,
        channels_per_task=2,
        rows_per_second="1m",
        bytes_per_second="1g",
        max_connections=2,
        max_dirty_rows=1,
        max_dirty_fraction=0.5,
        dirty_rows_path=str(tmp_path / "dirty"),
        commit="task",
        job_id="nightly",
    )
    assert rows_of(tmp_path / "target.db") == [(n,) for n in range(50) if n != 7]
    assert (report.rows, report.rows_dirty, report.commit) == (49, 1, "task")
    assert report.job.startswith("nightly-")
    assert pq.read_table(tmp_path / "dirty").num_rows == 1


def test_a_job_may_be_its_data() -> None:
    report = spark_channel.run(None, DATAX, {"who": "ada"})
    assert (report.rows, report.phase) == (10, "done")
    with pytest.raises(JobFileError, match="who"):
        spark_channel.run(None, DATAX)


SPARK_FORMAT = {"format": "jdbc", "url": "jdbc:x:y", "dbtable": "t"}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (SPARK_FORMAT, {"name": "discard"}),
        (numbers(1), SPARK_FORMAT),
        (numbers(1), [{"name": "discard"}, SPARK_FORMAT]),
    ],
)
def test_a_format_of_spark_asks_for_a_session(reader: Any, writer: Any) -> None:
    with pytest.raises(OptionError, match=r"'jdbc' is a format of Spark.*pass a SparkSession"):
        spark_channel.transfer(None, reader, writer)


def test_a_text_in_place_of_options_is_named() -> None:
    with pytest.raises(OptionError, match=r"the reader is str; it takes a dict of options"):
        spark_channel.transfer(None, "orders.csv", {"name": "discard"})  # type: ignore[arg-type] # wrong on purpose


def test_errors_are_those_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        spark_channel.transfer(None, {"path": str(tmp_path / "a.csv")}, {"name": "discard"})
    target = table(tmp_path / "t.db", "id INTEGER CHECK (id < 0)")
    with pytest.raises(DirtyRowsError):
        spark_channel.transfer(None, numbers(5), target)
    assert rows_of(tmp_path / "t.db") == []

    def broken(*_: object) -> None:
        raise RuntimeError("a library failed\nat length")

    monkeypatch.setattr(local, "carry_out", broken)
    with pytest.raises(ChannelError, match=r"^RuntimeError: a library failed$"):
        spark_channel.transfer(None, numbers(5), {"name": "discard"})


def test_the_handler_of_sigterm_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    spark_channel.transfer(None, numbers(5), {"name": "discard"})
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_and_leaves_nothing(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    work = (
        "import sys, spark_channel\n"
        f"spark_channel.transfer(None, {numbers(1_000_000)!r}, "
        "{'name': 'parquet', 'path': sys.argv[1]}, rows_per_second=1000)\nprint('went on')"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_PYSPARK + work, str(tmp_path / "out")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stderr is not None
        for line in program.stderr:
            if "limit 1k rows/s" in line:
                break
        program.send_signal(sent)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert (program.returncode, out) == (code, ""), err
    assert "failed after" in err
    assert list(tmp_path.rglob("*.parquet")) == []
