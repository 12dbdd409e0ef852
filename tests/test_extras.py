"""Each extra brings all that its jobs import: a job runs where only the libraries of one extra are found.

The lowest versions of all extras are in one environment (`make test-lowest`). An environment for each would have the
same versions of what pyproject.toml names, and differ in what is absent: that is what this test takes away.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.lowest]

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NAME = re.compile(r"[\w.-]+")

BEGIN = """
import importlib.abc, json, sys

class Hidden(importlib.abc.MetaPathFinder):
    names = set(json.loads(sys.argv[1]))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import spark_channel
from spark_channel.errors import SourceError, TargetError

made = {"name": "generator", "rows": "10", "schema": "id BIGINT, v BIGINT"}

def copy(reader, writer, **more):
    assert spark_channel.transfer(None, reader=reader, writer=writer, **more).rows == 10

def refused(reader={}, writer={}, **both):
    # nothing listens at port 1: the driver was found, and says so
    source, target = {**both, **reader}, {**both, **writer}
    for half in ({"reader": source, "writer": {"name": "discard"}}, {"reader": made, "writer": target}):
        try:
            spark_channel.transfer(None, **half)
        except (SourceError, TargetError) as error:
            print(error)
        else:
            raise AssertionError("a server answered")
"""
JOBS = {
    "postgresql": """
refused(url='postgresql://me:x@127.0.0.1:1/shop', dbtable='t')
import pyarrow
from spark_channel.connectors.postgresql.copy.encoding import copy_rows
copy_rows(pyarrow.record_batch({"n": [1, None], "x": [1.5, None], "s": ["a", None]}))
""",
    "mysql": "refused(url='mysql://me:x@127.0.0.1:1/shop', dbtable='t')",
    "duckdb": """
duck = {"name": "duckdb", "path": "a.duckdb", "dbtable": "t"}
copy(made, {**duck, "createTable": "true"})
copy(duck, {"name": "sqlite", "path": "a.db", "dbtable": "t", "createTable": "true"})
""",
    "mongodb": "refused(url='mongodb://127.0.0.1:1/d', collection='c', connectTimeout='1')",
    "redis": """
reader = {"keys": "u:*", "schema": "_key STRING, v BIGINT"}
refused(url="redis://127.0.0.1:1/0", reader=reader, writer={"keyColumns": "id", "keyPrefix": "t:"})
""",
    "clickhouse": "refused(url='clickhouse://127.0.0.1:1/d', dbtable='t')",
    "kafka": "refused(name='kafka', bootstrapServers='127.0.0.1:1', topic='t', valueFormat='json', timeout='1')",
    "objects": "import obstore.store, spark_channel.connectors.files.conditional_put",
    "hdfs": "import hdfs_native, spark_channel.connectors.hdfs",
    "delta": """
lake = {"name": "delta", "path": "d"}
copy(made, lake)
copy(made, {**lake, "writeMode": "upsert", "keyColumns": "id"})
copy(lake, {"name": "sqlite", "path": "a.db", "dbtable": "t", "createTable": "true"})
""",
    "iceberg": """
from spark_channel.connectors import load_reader
load_reader({"reader": "iceberg", "catalogProperties": '{"uri": "http://127.0.0.1:1"}', "dbtable": "a.t"})
import pyiceberg.catalog.rest, pyiceberg.io.pyarrow, spark_channel.connectors.iceberg.writer
""",
    "sftp": 'refused(path=\'sftp://127.0.0.1:1/t\', name=\'csv\', storageOptions=\'{"user": "me", "password": "x"}\')',
    "verify": """
for name in "ab":
    copy(made, {"name": "sqlite", "path": f"{name}.db", "dbtable": "t", "createTable": "true"})
ends = [{"name": "sqlite", "path": f"{name}.db", "dbtable": "t"} for name in "ab"]
assert spark_channel.verify(None, *ends, key=["id"], confirm=0).outcome == "equal"
""",
}


def needed(requirements: list[str], found: set[str]) -> set[str]:
    """The distributions that these requirements install, in lower case."""
    for requirement in requirements:
        rest, _, marker = requirement.partition(";")
        name = NAME.match(rest)
        if name is None or "extra ==" in marker or canonical(name[0]) in found:
            continue
        found.add(canonical(name[0]))
        try:
            needed(list(distribution(name[0]).requires or ()), found)
        except PackageNotFoundError:
            continue
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden(extra: str) -> Iterator[str]:
    """The modules of this environment that only other extras install."""
    kept = needed([*PROJECT["dependencies"], *EXTRAS[extra]], {"spark-channel"})
    for module, owners in packages_distributions().items():
        if not kept & {canonical(owner) for owner in owners}:
            yield module


def test_each_extra_that_a_connector_uses_has_a_job() -> None:
    from spark_channel.requirements import EXTRAS as USED

    assert JOBS.keys() == USED.keys()


@pytest.mark.parametrize("extra", JOBS)
def test_a_job_needs_no_library_of_another_extra(extra: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + JOBS[extra], json.dumps([*hidden(extra)])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
