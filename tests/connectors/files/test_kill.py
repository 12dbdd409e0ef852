"""SIGKILL of a real process while it publishes."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.files.helpers import leftovers, numbers, visible, write

WRITE = """
import sys
import pyarrow as pa
from spark_channel.connectors import WriteContext, load_writer
target, job, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
writer, _ = load_writer({"writer": "csv", "path": target})
schema = pa.schema([("n", pa.int64())])
plan = writer.prepare(WriteContext(job, overwrite=True), schema)
receipts = []
for task in range(40):
    opened = writer.open(plan, task, task)
    opened.write(pa.record_batch([pa.array([first + task])], schema=schema))
    receipts.append(opened.close())
print("staged", flush=True)
writer.commit(plan, receipts)
print("committed", flush=True)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_commit_shows_old_or_new(tmp_path: Path, seed: int) -> None:
    target = tmp_path / "out"
    write("csv", target, *[numbers(n) for n in range(3)], job="old")
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(target), "new", "100"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "staged\n"
        try:
            process.wait(random.Random(seed).uniform(0.0, 0.08))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait(30)
        committed = process.stdout.read() == "committed\n"
    finally:
        process.kill()
        process.stdout.close()
    old, new = [0, 1, 2], list(range(100, 140))
    seen = visible("csv", target)
    assert seen in (old, new)
    if committed:
        assert seen == new
    write("csv", target, numbers(7), job="next", retention="0")
    assert visible("csv", target) == sorted([*seen, 7])
    assert leftovers(target) == []
    assert len(list(target.glob("part-*"))) == len(seen) + 1
