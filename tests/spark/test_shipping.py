"""Driver, executors, and server and client of Spark Connect, which have one spark-channel, or the user is told."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import spark_channel
from spark_channel.errors import UnsupportedError
from spark_channel.spark.worker import Versioned

pytestmark = pytest.mark.spark
PACKAGE = Path(spark_channel.__file__).parent
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
"""Without this checkout on the path, which tests/conftest.py puts there for Spark's workers."""
ENVIRONMENT["SPARK_TESTING"] = "1"  # a server of Spark Connect takes a free port
CONF = """
conf = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.task.maxFailures": "1"}
"""


class Planned(Versioned):
    """What a driver pickles for its tasks."""

    def __init__(self, later: object = None) -> None:
        self.later = later


class Trap:
    """What can only be unpickled by its own version."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("/nowhere/at/all",)


def test_an_object_of_another_version_is_refused_before_its_state_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pickle.loads(pickle.dumps(Planned([1]))).later == [1]
    planned = pickle.dumps(Planned(Trap()))
    with pytest.raises(FileNotFoundError):
        pickle.loads(planned)
    monkeypatch.setattr("spark_channel.version.__version__", "0.0.9")
    with pytest.raises(
        UnsupportedError, match=r"has spark-channel 0\.0\.9, and the job was planned by"
    ):
        pickle.loads(planned)


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    assert spark_channel.__version__ == project["version"]


def test_all_that_spark_pickles_has_its_version() -> None:
    """By name, so that a new class is not forgotten."""
    sources = sorted(PACKAGE.joinpath("spark").glob("*.py"))
    found = {
        match[1]: match[2]
        for path in sources
        for match in re.finditer(
            r"^@portable\nclass (\w+)\((.*)\):", path.read_text(), re.MULTILINE
        )
    }
    assert {"ChannelDataSource", "ChannelReader", "ChannelWriter"} <= found.keys()
    bare = [name for name, bases in found.items() if "Versioned" not in bases]
    assert bare == ["AdmittingStreamReader"], "its base is a ChannelStreamReader"


def other_version(folder: Path) -> Path:
    """A folder with this package, as another version has it."""
    shutil.copytree(PACKAGE, folder / "spark_channel", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyspark_channel.py", folder)
    home = folder / "spark_channel" / "version.py"
    text = home.read_text()
    home.write_text(
        re.sub(r'^__version__ = ".*"', '__version__ = "9.8.7"', text, flags=re.MULTILINE)
    )
    return folder


def python_with(folder: Path, *paths: str) -> str:
    """A Python that finds the modules of these paths, and not those of the folder that it runs in."""
    script = folder / "python"
    # Without the files of site-packages that put this checkout on the path.
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    path = os.pathsep.join([*paths, sysconfig.get_path("purelib")])
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{path}:$PYTHONPATH" exec {base} -P "$@"\n')
    script.chmod(0o755)
    return str(script)


def run(program: str, folder: Path, workers: str = sys.executable) -> list[str]:
    python = {"PYSPARK_PYTHON": workers, "PYSPARK_DRIVER_PYTHON": workers}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**ENVIRONMENT, **python},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


CLIENT = (
    CONF
    + """
from pyspark.sql import SparkSession
import spark_channel
from spark_channel.errors import UnsupportedError

builder = SparkSession.builder.remote("local[2]")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
try:
    spark_channel.register(spark)
except UnsupportedError as error:
    print("refused:", error)
"""
)
JOBS = """
spark_channel.ship(spark)
spark_channel.register(spark)
end = {"name": "sqlite", "path": "a.db", "dbtable": "t"}
print(spark_channel.transfer(spark, {"name": "generator", "rows": "10"}, end).rows)
rows = spark.read.format("channel").option("dbtable", "t").load("a.db")
rows.write.format("channel").option("dbtable", "u").mode("append").save("a.db")
print(spark_channel.throttle(spark.read.format("channel").option("dbtable", "u").load("a.db"), "1k").count())
"""


@pytest.fixture
def needs_connect() -> None:
    pytest.importorskip("grpc", reason="Spark Connect asks for grpcio")
    pytest.importorskip("grpc_status", reason="Spark Connect asks for grpcio-status")


@pytest.mark.newest
@pytest.mark.usefixtures("needs_connect")
def test_a_connect_server_without_the_package_is_named_and_sent_it(tmp_path: Path) -> None:
    program = CLIENT + JOBS
    said = run(program, tmp_path, python_with(tmp_path))
    assert said[0].startswith(
        "refused: the server of this Spark Connect session has no spark-channel"
    )
    assert said[1:] == ["10", "10"]


@pytest.mark.newest
@pytest.mark.usefixtures("needs_connect")
def test_a_connect_server_of_another_version_is_named(tmp_path: Path) -> None:
    other = str(other_version(tmp_path / "other"))
    (said,) = run(CLIENT, tmp_path, python_with(tmp_path, other))
    assert "has a spark-channel 9.8.7, and this client has" in said


CLASSIC = (
    CONF
    + """
from pyspark.sql import SparkSession
import spark_channel

builder = SparkSession.builder.master("local[2]")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark_channel.register(spark, progress=False)
end = {"name": "discard"}
for job in (
    lambda: spark.read.format("channel").options(reader="generator", rows="10").load().count(),
    lambda: spark.range(3).write.format("channel").option("dbtable", "t").mode("append").save("a.db"),
    lambda: spark_channel.transfer(spark, {"name": "generator", "rows": "10"}, end),
    lambda: spark_channel.throttle(spark.range(3), "1k").count(),
):
    try:
        job()
        print("ran")
    except Exception as error:
        print(*(line for line in str(error).splitlines() if "9.8.7" in line))
"""
)


@pytest.mark.newest
@pytest.mark.parametrize("which", ["tasks", "planners"])
def test_a_process_of_another_version_ends_the_first_job_with_one_sentence(
    tmp_path: Path, which: str
) -> None:
    other = other_version(tmp_path / "other")
    module = "pyspark.worker" if which == "tasks" else "pyspark.sql.worker"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *{module}*) export PYTHONPATH="{other}:$PYTHONPATH";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    said = run(CLASSIC, tmp_path, str(python))
    assert len(said) == 4
    for line in said[: 4 if which == "tasks" else 2]:  # planners plan reads and writes
        assert "has spark-channel 9.8.7, and the job was planned by" in line
        assert "Traceback" not in line


@pytest.mark.newest
def test_check_asks_the_pythons_of_spark(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "spark_channel.cli",
        "check",
        "--spark",
        "--master",
        "local[2]",
    ]

    def check(python: str) -> "subprocess.CompletedProcess[str]":
        workers = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**ENVIRONMENT, **workers},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    right, wrong = check(sys.executable), check(python_with(tmp_path))
    assert right.returncode == 0, right.stdout + right.stderr
    assert f"spark-channel {spark_channel.__version__}" in right.stdout
    assert wrong.returncode == 2, wrong.stdout + wrong.stderr
    assert "No module named 'spark_channel'" in wrong.stdout
