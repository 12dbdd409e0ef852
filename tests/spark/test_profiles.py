"""What a planner worker of Spark sends beside its answer."""

from types import SimpleNamespace

import pytest
from pyspark import accumulators

from spark_channel.spark import source
from spark_channel.spark.source import ChannelDataSource


def test_an_empty_profile_is_not_sent_and_a_full_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.3's `spark-pipelines run` fails of an empty one."""
    kept = {-2: SimpleNamespace(_value={"a": 1}), 7: SimpleNamespace(_value={})}
    registry = {-1: SimpleNamespace(_value={}), **kept}
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", registry)
    ChannelDataSource({})
    assert len(registry) == 3, "this process is not a worker of Spark"
    monkeypatch.setattr(source, "is_worker", lambda: True)
    ChannelDataSource({})
    assert registry == kept
