"""Spark with Delta Lake's and Iceberg's own code: it makes tables, and says what it reads in ours. See `.ci/lakes`."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.servers.installed import EVERY, installed
from tests.servers.lake_spark_program import ANSWER

__all__ = ["LakeSpark", "lake_spark"]


@dataclass
class LakeSpark:
    """Spark in a process of its own. Tables `lake.NAMESPACE.NAME` are Iceberg's, in the SQLite catalog `properties`."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def properties(self) -> dict[str, str]:
        """Spark's catalog `lake`, as pyiceberg opens it. Its name there is `lake`, too."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def sql(self, *statements: str) -> None:
        self._carry_out({"sql": statements})

    def add_column_with_default(self, table: str, column: str, value: int) -> None:
        """A whole number. Iceberg fills older files up with it."""
        self._carry_out({"default": {"table": table, "column": column, "value": value}})

    def rows(self, query: str) -> pa.Table:
        """What Spark finds, in Arrow's types."""
        to = self.folder / "answer"
        self._carry_out({"query": query, "to": str(to)})
        found = [pq.read_table(file) for file in sorted(to.glob("*.parquet"))]
        shutil.rmtree(to)
        return pa.concat_tables(found)

    def _carry_out(self, wanted: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(wanted)}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                error = json.loads(line.removeprefix(ANSWER))
                if error is not None:
                    raise RuntimeError(f"{wanted}: {error[:3000]}")
                return
        raise RuntimeError(f"Spark has ended: {(self.folder / 'log').read_text()[-3000:]}")


@contextmanager
def lake_spark(folder: Path) -> Iterator[LakeSpark]:
    home = installed("lakes", "pyspark of PyPI, io.delta:delta-spark of Maven", by=EVERY)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_HOME", "PYTHONPATH"))
    }
    program = Path(__file__).with_name("lake_spark_program.py")
    command = [str(home / "python/bin/python"), str(program), str(home / "jars"), str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    try:
        yield LakeSpark(folder, process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
