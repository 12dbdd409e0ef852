"""`register` on a session that it knows."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import spark_channel
import spark_channel.progress.shown as shown_module
import spark_channel.spark.session as session_module
from spark_channel.progress import Counters, JobSpec, Phase
from spark_channel.service import ServiceServer


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


def test_spark_is_told_once_a_session_since_it_warns_of_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_channel.spark.session._remote", set())
    first, second = Session(), Session()
    for session in (first, first, second):
        spark_channel.register(cast(SparkSession, session))
    assert (first.dataSource.taken, second.dataSource.taken) == (["channel"], ["channel"])


@pytest.mark.parametrize(
    ("given", "hidden"),
    [
        ({}, "(?i)url|uri|driverOptions|tunnelStore"),
        ({"spark.sql.redaction.options.regex": "(?i)url"}, "(?i)url|uri|driverOptions|tunnelStore"),
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


def test_a_notebook_is_told_of_a_read_under_its_own_cell() -> None:
    """A read is known to be over 5 s after its last task: by then the next cell runs."""
    events: dict[str, Any] = {}
    shell = SimpleNamespace(
        events=SimpleNamespace(register=events.__setitem__, unregister=lambda name, _call: events.pop(name))
    )
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch, ServiceServer("127.0.0.1") as server:
        patch.setattr(shown_module, "_cells", [])
        patch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        display = SimpleNamespace(flush=lambda: shown.append("flushed"))
        take_off = session_module._after_each_cell(server, display)  # type: ignore[arg-type]
        counters = Counters(0, 0)
        counters.enter(Phase.DONE)
        server.jobs.report("j", "a", [counters.snapshot()], spec=JobSpec("read", source="t"))
        server.jobs.report("j", "a", [], leaving=True)
        events["post_run_cell"](None)
        assert server.jobs.find("j").phase is Phase.DONE
        assert shown == ["flushed"]
        take_off()
        assert events == {}
