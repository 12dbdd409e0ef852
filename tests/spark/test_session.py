"""`register` on a session that it knows."""

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.spark.session import session_slots
from spark_channel.spark.slots import slots_of


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
    session.conf = ClosedSettings(readable=readable)  # type: ignore[assignment]
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
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "3"}, 2, 15),
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "3",
          "spark.task.cpus": "2"}, 2, 5),
        ({"spark.master": "k8s://m", "spark.dynamicAllocation.enabled": "true"}, 8, None),
        ({"spark.master": "k8s://m", "spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4",
          "spark.dynamicAllocation.maxExecutors": "10"}, 8, 40),
        ({"spark.master": "k8s://m", "spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4",
          "spark.executor.instances": "2"}, 8, None),
    ],
    ids=str,
)  # fmt: skip
def test_how_many_tasks_run_at_once(settings: dict[str, str], cores: int, slots: int | None) -> None:
    assert slots_of(settings.get, cores) == slots
