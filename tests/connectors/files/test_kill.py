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
        [sys.executable, "-c", WRITE, str(target), "new", "100"], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
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
    write("csv", target, numbers(7), job="next")
    assert visible("csv", target) == sorted([*seen, 7])
    assert leftovers(target) == []
    assert len(list(target.glob("part-*"))) == len(seen) + 1


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = """
import sys
from spark_channel.connectors.files.paths import locate
from spark_channel.connectors.files.publish import Target
from spark_channel.connectors.files.store import store_of
place = locate(sys.argv[1])
with Target(store_of(place), place.path, "csv", 5.0).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "locked\n"
        process.kill()
        process.wait(30)
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
    write("csv", tmp_path, numbers(1), lockTimeout="0")
    assert visible("csv", tmp_path) == [1]
