"""What Spark's planner asks of the data source, each step in its own process, as Spark makes it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Step", "plan_in_a_process"]

ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """
import json, pickle, sys, time
import pyarrow
import pyspark_channel
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructType
before, began = set(sys.modules), time.process_time()
step, options = sys.argv[1], CaseInsensitiveDict(json.loads(sys.argv[2]))
source = cloudpickle.loads(cloudpickle.dumps(pyspark_channel.ChannelDataSource))(options)
rows = StructType().add("id", LongType()).add("name", StringType())
if step == "schema":
    assert source.schema() == rows
elif step == "read":
    reader = source.reader(schema=rows)
    assert pickle.loads(cloudpickle.dumps(reader)) and cloudpickle.dumps(reader.partitions())
elif step == "stream":
    reader = source.streamReader(schema=rows)
    start = reader.initialOffset()
    assert cloudpickle.dumps(reader) and cloudpickle.dumps(reader.partitions(start, start)) and start
elif step == "write":
    writer = source.writer(rows, False)
    pickle.loads(cloudpickle.dumps(writer)).commit([])
elif step == "stream write":
    assert cloudpickle.dumps(source.streamWriter(schema=rows, overwrite=False))
print(json.dumps([sorted(set(sys.modules) - before), began, time.process_time()]))
"""


@dataclass(frozen=True, slots=True)
class Step:
    """Modules that one step imported beyond those of Spark's process, and CPU seconds before and after the step."""

    modules: frozenset[str]
    before: float
    after: float


def plan_in_a_process(step: str, options: Mapping[str, str]) -> Step:
    """`step` is schema, read, stream, write or stream write; the rows are `id BIGINT, name STRING`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, step, json.dumps(options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules, before, after = json.loads(done.stdout.splitlines()[-1])
    return Step(frozenset(modules), before, after)
