"""One Spark session for all Spark-facing tests."""

import gc
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import MissingPackageError
from tests import sets
from tests.spark.archive import java_options

# Machines are noisy: how long an example took says nothing about the code. `make test` tries the same examples each
# time, so that a change is judged by what it changed; HYPOTHESIS_PROFILE=search, as in `make soak`, looks for new ones,
# and for more of them.
hypothesis.settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = ["tests.servers.fixtures", "tests.datax.small_jobs"]

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())
# A shell has what it starts in the background ignore Ctrl-C, and so would the commands that tests interrupt.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Workers import the package, and the tests' own classes, from this tree.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

# Separate processes are forked from one that has imported what they need: 2 s of CPU less for each.
multiprocessing.set_forkserver_preload(["tests.behaviour.exactly_once.preload"])

_SPARK_ALONE = re.compile(r"^pytestmark = \[?pytest\.mark\.spark\b", re.MULTILINE)
_SPARK = re.compile(r"\bmark\.spark\b")
_SERVER = re.compile(r"\btests\.servers\b|\b(postgres|mariadb|logging|firebird)_server\b")
_OF_TESTS = re.compile(r"^(?:from|import) (tests(?:\.\w+)+)", re.MULTILINE)


@cache
def has_spark(file: Path) -> bool:
    return bool(_SPARK.search(file.read_text("utf-8")))


@cache
def _has_server(file: Path) -> bool:
    """Whether tests of `file` may start a server's program: `make quick` runs where none is installed.

    They may if the file names a server's fixture, or imports `tests.servers`, itself or by another module of the tests.
    """
    text = file.read_text("utf-8")
    if _SERVER.search(text):
        return True
    named = (ROOT / module.replace(".", "/") for module in _OF_TESTS.findall(text))
    imported = (path.with_suffix(".py") for path in named)
    return any(path != file and path.is_file() and _has_server(path) for path in imported)


_LONG_FILES = (
    "notebooks/test_notebooks.py",
    "behaviour/exactly_once/test_storm.py",
    "connectors/sql/read/test_reader.py",
    "behaviour/exactly_once/test_targets.py",
    "connectors/files/test_interleavings.py",
    "behaviour/differential/test_databases.py",
    "connectors/adbc/test_database.py",
    "connectors/duckdb/test_contract.py",
    "connectors/mysql/test_contract.py",
    "connectors/postgresql/test_conformance.py",
    "connectors/sql/read/test_short_statements.py",
    "connectors/base/test_health.py",
    "behaviour/limits/test_oldest_transaction.py",
    "connectors/sql/read/test_keyset_statements.py",
    "tunnel/test_tunnel_tables.py",
    "tunnel/test_tunnel_tables_gone.py",
    "behaviour/faults/test_changes.py",
    "tunnel/test_channel.py",
    "tunnel/test_worker_drained.py",
    "connectors/sql/feed/test_cursor_feed_databases.py",
    "behaviour/hosts/test_hosts.py",
    "behaviour/faults/test_spark.py",
    "behaviour/limits/test_job_limits.py",
    "behaviour/faults/test_service_lifetime.py",
    "behaviour/faults/test_sigterm.py",
    "behaviour/faults/test_cancel.py",
    "cli/test_run.py",
    "spark/test_stream_write.py",
    "spark/test_transfer.py",
    "test_docs.py",
    "behaviour/deployments/test_artefact.py",
    "spark/test_source_lake.py",
    "cli/test_demo.py",
    "spark/test_stream_read.py",
    "behaviour/faults/test_speculation.py",
    "behaviour/faults/test_database_faults.py",
    "test_first_five_minutes.py",
    "behaviour/attacks/test_passwords.py",
    "behaviour/deployments/test_pipelines.py",
    "behaviour/reports/test_refused_rows.py",
    "spark/test_write.py",
    "behaviour/deployments/test_connect.py",
    "behaviour/faults/test_random.py",
    "behaviour/differential/test_itself.py",
)
"""A worker that is given one of these last would work alone in the end. First those without Spark."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--begin-with-spark",
        type=int,
        default=0,
        help="how many processes of -n run files with Spark first",
    )
    parser.addoption("--times", help="a file that gets a line for each test: CPU and wall seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Temporary files of a run are in one directory, which goes with the run.

    Servers, JVMs and Spark leave some, above all those that tests kill. What `tmp_path` gives stays where pytest keeps
    it for the runs that failed.
    """
    if hasattr(config, "workerinput"):
        return  # a process of -n has the variables of the one that started it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="sc-")  # sockets of servers are in it, whose paths are short
    Path(folder).chmod(0o1777)  # servers run as other users
    # Behind multiprocessing's own files, which are removed at the end of the program, with priority -100.
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-200)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ["JDK_JAVA_OPTIONS"] += f" -Djava.io.tmpdir={folder}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.spread import Spread

    return Spread(
        config,
        log,
        has_spark=lambda name: has_spark(ROOT / name),
        begin_with_spark=config.getoption("begin_with_spark"),
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Each worker imports what it collects: a run of some tests leaves out what it would not run."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    chosen = str(config.option.markexpr)
    if "not server" in chosen and _has_server(collection_path):
        return True
    file = collection_path.relative_to(ROOT).as_posix()
    if "not full" in chosen and "lowest" not in chosen:
        return True if file in sets.full_files() else None
    if chosen.startswith("full and "):
        return None if sets.has_full(file) else True
    if chosen.startswith("spark and "):
        return True if not has_spark(collection_path) else None
    if chosen.startswith("not spark and "):
        return True if _SPARK_ALONE.search(collection_path.read_text("utf-8")) else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported then stays: neither the imports nor tests that collect garbage need to look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """On the lowest versions (`make test-oldest`) a test ends well by a sentence that names a newer one."""
    try:
        return (yield)
    except MissingPackageError as error:
        if "OLDEST_VERSIONS" in os.environ and " or newer" in str(error):
            pytest.skip(str(error))
        raise


def pytest_unconfigure() -> None:
    """Libraries that look for leaks at the end of the program find none."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {ROOT / "tests" / name: number for number, name in enumerate(_LONG_FILES)}
    # Spark's session keeps its own threads, which tests of threads must not meet: in one process it comes last.
    items.sort(key=lambda item: (has_spark(item.path), order.get(item.path, len(order))))
    for item in items:
        if _has_server(item.path):
            item.add_marker(pytest.mark.server)
        if sets.set_of(item.nodeid) == "full":
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("real_time") and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.flaky(reruns=2))


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


_TIMES = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test's CPU seconds, with those of its ended processes, go to the report of its last phase."""
    cpu, began = _cpu_seconds(), time.monotonic()
    item.stash[_TIMES] = cpu, began
    try:
        return (yield)
    finally:
        if file := item.config.getoption("times"):
            seconds = f"{_cpu_seconds() - cpu:.3f}\t{time.monotonic() - began:.3f}"
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(f"{item.nodeid}\t{seconds}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        report.user_properties.append(("cpu", _cpu_seconds() - item.stash[_TIMES][0]))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How many passed in which set, and which tests have become slow without naming a set."""
    passed = [
        report for report in terminalreporter.stats.get("passed", []) if report.when == "call"
    ]
    full = sum("full" in report.keywords for report in passed)
    line = f"quick set: {len(passed) - full} passed; full set: {full} passed"
    if "not full" in str(config.option.markexpr):
        line += f"; `make test-all` adds {sets.more_tests()}"
    terminalreporter.write_line(line)
    slow = [
        (dict(report.user_properties).get("cpu", 0.0), report.nodeid)
        for report in passed
        if not sets.set_of(report.nodeid)
    ]
    slow = sorted((cpu, name) for cpu, name in slow if cpu > sets.SLOW_SECONDS)
    if slow and len(passed) > _MANY:
        terminalreporter.write_line(
            f"{len(slow)} tests took over {sets.SLOW_SECONDS} CPU seconds and name no set in tests/sets.tsv:"
        )
        for cpu, name in slow[-10:]:
            terminalreporter.write_line(f"  {cpu:.1f} s  {name}")


_MANY = 1_000
"""A run of fewer tests is of one change."""


@pytest.fixture(scope="session", autouse=True)
def _limits_of_this_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A host serves a limit's name once: tests that run at the same time do not share theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores in which `format("channel")` is registered."""
    session = (
        SparkSession.builder.master("local[2,2]")  # two cores, and a failed task is tried once more
        .appName("spark-channel tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .config("spark.python.daemon.module", "tests.spark.preloaded")
        .getOrCreate()
    )
    spark_channel.register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_service_for_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer of a tunnel that runs for a second starts a service, which would outlast its test."""
    monkeypatch.setattr("spark_channel.tunnel.job._SERVE_SECONDS", math.inf)
