"""The name of a transfer in Spark's UI."""

import contextlib
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession

from spark_channel.spark.engine import described


class Context:
    """The local properties of a SparkContext."""

    def __init__(self, **properties: str) -> None:
        self.properties: dict[str, Any] = {"spark.job.description": None, **properties}

    def getLocalProperty(self, key: str) -> Any:  # noqa: N802 - Spark's name
        return self.properties[key]

    def setLocalProperty(self, key: str, value: Any) -> None:  # noqa: N802 - Spark's name
        self.properties[key] = value


def session_of(context: Context) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=context))


def test_the_jobs_of_a_transfer_are_named_for_both_ends() -> None:
    context = Context()
    with (
        contextlib.suppress(KeyboardInterrupt),
        described(session_of(context), "postgresql db#t", "sqlite x.db#t"),
    ):
        assert (
            context.properties["spark.job.description"]
            == "channel: postgresql db#t -> sqlite x.db#t"
        )
        raise KeyboardInterrupt
    assert context.properties["spark.job.description"] is None


def test_a_name_that_the_user_gave_stays() -> None:
    context = Context(**{"spark.job.description": "nightly"})
    with described(session_of(context), "a", "b"):
        assert context.properties["spark.job.description"] == "nightly"
    assert context.properties["spark.job.description"] == "nightly"


def test_spark_connect_has_no_such_setting() -> None:
    with described(cast(SparkSession, SimpleNamespace()), "a", "b"):
        pass
