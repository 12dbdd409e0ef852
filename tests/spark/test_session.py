"""`register` on a session that it knows."""

import os
import re
import sys
import urllib.request
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import spark_channel
import spark_channel.progress.report as shown_module
import spark_channel.spark.session as session_module
from spark_channel.connectors import Connector
from spark_channel.connectors.base import registry
from spark_channel.progress import Counters, JobProgress, JobSpec, Phase
from spark_channel.service import ServiceServer
from spark_channel.spark.session import session_slots, slots_of
from spark_channel.testing import VirtualClock

HIDDEN = (
    "(?i)^(apiKey|body|catalogProperties|clientProperties|driver|driverOptions|headers|params|password|"
    "proxy|sharedLimitToken|sslpassword|storageOptions|token|tunnelStore|uri|url)$"
    # a login or a secret parameter in a path: Spark holds the pattern against values, too
    r"|password|secret|//[^/\s]*:[^@]*@"
    r"|[?&;][\w.\-]*(passw|pwd|passphrase|token|credential|signature|auth|key|sig)[\w.\-]*="
)


class Registry:
    """What `spark.dataSource` is."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def register(self, source: Any) -> None:
        self.taken.append(source.name())


class Settings:
    """What `spark.conf` is."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


class Session:
    """A session without a SparkContext on this side."""

    def __init__(self, **settings: str) -> None:
        self.dataSource = Registry()
        self.conf = Settings(settings)


@pytest.fixture(autouse=True)
def no_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of this file have no server; `test_shipping` asks real ones."""
    monkeypatch.setattr(session_module, "check_server", lambda _: None)


def test_spark_is_told_once_a_session_since_it_warns_of_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    first, second = Session(), Session()
    for session in (first, first, second):
        spark_channel.register(cast(SparkSession, session))
    assert (first.dataSource.taken, second.dataSource.taken) == (["channel"], ["channel"])


def test_a_session_that_takes_times_of_day_later_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    session = Session()
    registered: list[bool | None] = []
    monkeypatch.setattr(
        session.dataSource, "register", lambda source: registered.append(source.times)
    )
    for setting in ("false", "true", "true", "false"):
        session.conf.set("spark.sql.timeType.enabled", setting)
        spark_channel.register(cast(SparkSession, session))
    assert registered == [None, True, False]


@pytest.mark.parametrize(
    ("given", "hidden"),
    [
        ({}, HIDDEN),
        ({"spark.sql.redaction.options.regex": "(?i)url"}, HIDDEN),
        ({"spark.sql.redaction.options.regex": "mine"}, "mine"),
    ],
)
def test_options_that_may_hold_logins_are_hidden_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], hidden: str
) -> None:
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    session = Session(**given)
    spark_channel.register(cast(SparkSession, session))
    assert session.conf.settings["spark.sql.redaction.options.regex"] == hidden


def test_the_secrets_of_a_third_party_s_connector_are_hidden_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = Connector("theirs", "their.module:Reader", None, secrets=("apiKey", "url"))
    monkeypatch.setattr(registry, "_third_parties", lambda: {"theirs": theirs})
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    session = Session()
    spark_channel.register(cast(SparkSession, session))
    pattern = re.compile(session.conf.settings["spark.sql.redaction.options.regex"])
    assert all(
        pattern.search(each) for each in ("apikey", "password", "postgresql://etl:pw@host/shop")
    )
    assert not any(pattern.search(each) for each in ("tokens", "body_of_letters", "dbtable"))


@pytest.mark.parametrize("path", ["s3://KEY:SE/CRET@bucket/a", "sftp://me:pa?ss@host/x"])
def test_a_login_in_a_path_matches_what_spark_hides(path: str) -> None:
    assert re.search(HIDDEN, path) is not None
    assert re.search(HIDDEN, "s3://bucket/year=2024/a.csv") is None
    assert re.search(HIDDEN, "abfss://container@account.dfs.core.windows.net/a") is None


def test_a_notebook_is_told_of_a_read_under_its_own_cell() -> None:
    """A read is known to be over 5 s after its last task: by then the next cell runs."""
    events: dict[str, Any] = {}
    shell = SimpleNamespace(
        events=SimpleNamespace(
            register=events.__setitem__, unregister=lambda name, _call: events.pop(name)
        )
    )
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch, ServiceServer("127.0.0.1") as server:
        patch.setattr(shown_module, "_cells", [])
        patch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        display = SimpleNamespace(flush=lambda _timeout: shown.append("flushed"))
        take_off = session_module._after_each_cell(server, display)  # type: ignore[arg-type] # a stand-in
        counters = Counters(0, 0)
        counters.enter(Phase.DONE)
        server.jobs.report("j", "a", [counters.snapshot()], spec=JobSpec("read", source="t"))
        server.jobs.report("j", "a", [], leaving=True)
        events["post_run_cell"](None)
        assert server.jobs.find("j").phase is Phase.DONE
        assert shown == ["flushed"]
        take_off()
        assert events == {}


class ClosedError(Exception):
    """What a platform raises: each has its own class."""


class ClosedSettings:
    """Serverless compute and pipelines: nothing can be set, or even read."""

    def __init__(self, *, readable: bool) -> None:
        self._readable = readable

    def get(self, name: str, default: str | None = None) -> str | None:
        if not self._readable:
            raise ClosedError(f"CONFIG_NOT_AVAILABLE: {name}")
        return default

    def set(self, name: str, value: str) -> None:
        raise ClosedError(f"CANNOT_MODIFY_CONFIG: {name}={value}")


@pytest.mark.parametrize("readable", [True, False])
def test_a_session_whose_settings_are_closed_is_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, readable: bool
) -> None:
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    session = Session()
    session.conf = ClosedSettings(readable=readable)  # type: ignore[assignment] # a stand-in
    with caplog.at_level("WARNING"):
        spark_channel.register(cast(SparkSession, session))
    assert session.dataSource.taken == ["channel"]
    assert "driverOptions" in caplog.text
    assert session_slots(cast(SparkSession, session)) is None


@pytest.mark.parametrize(
    ("settings", "cores", "slots"),
    [
        ({"spark.master": "local[4]"}, 4, 4),
        ({"spark.master": "local[4]", "spark.task.cpus": "2"}, 4, 2),
        ({"spark.master": "spark://m:7077"}, 6, 6),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "3"}, 6, 3),
        (
            {"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "3"},
            2,
            15,
        ),
        (
            {
                "spark.master": "yarn",
                "spark.executor.instances": "5",
                "spark.executor.cores": "3",
                "spark.task.cpus": "2",
            },
            2,
            5,
        ),
        ({"spark.master": "k8s://m", "spark.dynamicAllocation.enabled": "true"}, 8, None),
        (
            {
                "spark.master": "k8s://m",
                "spark.dynamicAllocation.enabled": "true",
                "spark.executor.cores": "4",
                "spark.dynamicAllocation.maxExecutors": "10",
            },
            8,
            40,
        ),
        (
            {
                "spark.master": "k8s://m",
                "spark.dynamicAllocation.enabled": "true",
                "spark.executor.cores": "4",
                "spark.executor.instances": "2",
            },
            8,
            None,
        ),
    ],
    ids=str,
)
def test_how_many_tasks_run_at_once(
    settings: dict[str, str], cores: int, slots: int | None
) -> None:
    assert slots_of(settings.get, cores) == slots


@pytest.mark.parametrize(
    ("master", "executors", "slots"),
    [("local[3]", 0, 3), ("spark://m:7077", 0, None), ("spark://m:7077", 2, 3)],
)
def test_tasks_of_a_cluster_without_executors_are_not_known(
    master: str, executors: int, slots: int | None
) -> None:
    """Spark says two cores then, and a job that is planned would take as many for all that ever run."""
    blocks = SimpleNamespace(size=lambda: 1 + executors)
    jvm = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: blocks))
    context = SimpleNamespace(
        _jsc=jvm,
        master=master,
        defaultParallelism=3,
        getConf=lambda: {"spark.master": master},
    )
    assert slots_of(context.getConf().get, session_module._cores_of(context)) == slots


def test_a_read_that_a_limit_ended_does_not_take_the_place_of_the_write_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker may hear of the end when the write of its rows has long finished."""
    monkeypatch.setattr(session_module, "_reports", OrderedDict())
    monkeypatch.setattr(session_module, "_ended", {})
    clock, keeper = VirtualClock(), session_module._ReportStore()

    def last() -> str:
        return next(reversed(session_module._reports))

    read = JobProgress("read", JobSpec("read"), clock=clock)
    clock.advance(1)
    write = JobProgress("write", JobSpec("write"), clock=clock)
    clock.advance(1)
    write.enter(Phase.DONE)
    keeper.job_closed(write)
    clock.advance(1)
    read.enter(Phase.ENDED)
    keeper.job_closed(read)
    assert last() == "write"
    show = JobProgress("show", JobSpec("read"), clock=clock)
    clock.advance(1)
    show.enter(Phase.ENDED)
    keeper.job_closed(show)
    assert last() == "show"


@pytest.mark.spark
@pytest.mark.newest
def test_a_thread_that_registers_loads_and_saves(spark: SparkSession, tmp_path: Path) -> None:
    """Spark looks for Python data sources in the session of the thread, and a new one has none."""

    def work() -> int:
        spark_channel.register(spark)
        path = str(tmp_path / "out")
        spark.range(5).write.format("channel").option("writer", "csv").mode("append").save(path)
        read = spark.read.format("channel").option("reader", "csv").option("header", "true")
        return read.load(path).count()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == 5


@pytest.mark.spark
@pytest.mark.newest
def test_a_session_shows_its_jobs_as_a_page(spark: SparkSession) -> None:
    spark_channel.register(spark, ui=True)
    ((jvm, page),) = session_module._pages.items()
    try:
        spark_channel.register(spark, ui=True)
        assert session_module._pages == {jvm: page}
        link, display = page.link(change=True), session_module._displays[jvm]
        assert display.link == link
        spark.read.format("channel").option("reader", "generator").option("rows", 10).option(
            "rowsPerSecond", "1000"
        ).load().collect()
        headers = {"X-Spark-Channel-Token": link.partition("#")[2]}
        with urllib.request.urlopen(
            urllib.request.Request(f"{page.address}events", headers=headers), timeout=10
        ) as answer:
            assert b"hello" in answer.read1()
            said = answer.read1()
            while b"generator" not in said:  # the session's other jobs are told, too
                more = answer.read1()
                assert more
                said += more
    finally:
        session_module._pages.pop(jvm).stop()
        session_module._displays[jvm].link = ""


def test_the_parent_run_in_spark_s_settings_is_that_of_lineage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "")
    monkeypatch.delenv("OPENLINEAGE_PARENT_ID")
    settings = {"parentJobNamespace": "airflow", "parentJobName": "dag.task"}
    find = {f"spark.openlineage.{name}": value for name, value in settings.items()}
    session_module._pass_parent_run(find.get)
    assert "OPENLINEAGE_PARENT_ID" not in os.environ
    session_module._pass_parent_run({**find, "spark.openlineage.parentRunId": "1-2"}.get)
    assert os.environ["OPENLINEAGE_PARENT_ID"] == "airflow/dag.task/1-2"
