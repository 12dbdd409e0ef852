"""Modules of libraries that wait until something of them is used."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

DEFERRED = """
import sys, threading
from spark_channel.deferred import defer
defer("pyarrow.dataset")
import pyarrow.dataset
import pyarrow.dataset as early
import inspect
inspect.getmodule(threading.Thread)
assert "pyarrow._dataset" not in sys.modules
{use}
import pyarrow.dataset as ds
assert type(sys.modules["pyarrow.dataset"]) is type(sys) and sys.modules["pyarrow.dataset"] is pyarrow.dataset is ds
assert early.Dataset is ds.Dataset
defer("pyarrow.dataset")
assert sys.modules["pyarrow.dataset"] is ds
"""

USES = {
    "an attribute": "assert pyarrow.dataset.Dataset",
    "a name of the import": "assert early.Dataset",
    "from": "from pyarrow.dataset import Dataset; assert Dataset",
    "a library": "import pyarrow.parquet as pq; f = pyarrow.BufferOutputStream()\n"
    "pq.write_table(pyarrow.table({'a': [1]}), f)\n"
    "assert pq.read_table(pyarrow.BufferReader(f.getvalue())).num_rows == 1",
    "a pickled function": "import pickle; from pyspark import cloudpickle\n"
    "sent = cloudpickle.dumps(lambda: early.Dataset)\n"
    "assert pickle.loads(sent)() is pyarrow.dataset.Dataset",
    "many threads": "found = []; begin = threading.Barrier(8)\n"
    "def use():\n    begin.wait(); found.append(early.Dataset)\n"
    "threads = [threading.Thread(target=use) for _ in range(8)]\n"
    "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
    "assert len(found) == 8 and len(set(found)) == 1",
}


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_deferred_module_makes_way_when_it_is_used(use: str) -> None:
    run(DEFERRED.format(use=use))


def test_a_module_that_is_not_there_is_not_deferred() -> None:
    run(
        "import sys; from spark_channel.deferred import defer; defer('pyarrow.nothing_of_the_kind')\n"
        "assert 'pyarrow.nothing_of_the_kind' not in sys.modules"
    )


def test_adbc_ingests_a_dataset_all_the_same() -> None:
    run(
        "import spark_channel.connectors.sqlite.session, adbc_driver_sqlite.dbapi as dbapi, pyarrow as pa, sys\n"
        "assert 'pandas' not in sys.modules\n"
        "import pyarrow.dataset as ds\n"
        "with dbapi.connect() as connection, connection.cursor() as cursor:\n"
        "    cursor.adbc_ingest('t', ds.dataset(pa.table({'a': [1, 2]})))\n"
        "    cursor.adbc_ingest('t', [pa.record_batch({'a': [3]})], mode='append')\n"
        "    cursor.execute('SELECT count(*) FROM t')\n"
        "    assert cursor.fetchone() == (3,)\n"
        "    connection.commit()"
    )
