"""Copies by each of Spark's paths, from one recorder to another, as calls for a `RemoteDriver`.

A call takes the session, a folder for the records `source` and `target`, and the options of the limit.
"""

from pathlib import Path
from typing import Any

import spark_channel
from tests.spark.timeline import Timeline

ROWS, RATE = 6_000, 2_000
CHANNELS = 4
PROMPT = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
"""Spark's configuration with which rows reach the target as they come."""
TIMEOUT = 240.0
"""Seconds for a call: on a busy machine the first Python workers alone take most of a minute."""


def source(spark: Any, folder: str, options: dict[str, str]) -> Any:
    """A DataFrame of `ROWS` rows, unless `options` say how many."""
    given = {"log": f"{folder}/source", "rows": str(ROWS), "channels": str(CHANNELS), **options}
    return spark.read.format("channel").option("reader", "recorder").options(**given).load()


def save(frame: Any, folder: str, options: dict[str, str]) -> None:
    write = frame.write.format("channel").options(
        writer="recorder", log=f"{folder}/target", **options
    )
    write.mode("append").save()


def read(spark: Any, folder: str, options: dict[str, str]) -> None:
    """A copy that is limited where it is read."""
    save(source(spark, folder, options), folder, {})


def write(spark: Any, folder: str, options: dict[str, str]) -> None:
    """A copy that is limited where it is written."""
    save(source(spark, folder, {}), folder, options)


def throttled(frame: Any, options: dict[str, str]) -> Any:
    """`frame` under the limit of `options`."""
    names = {
        "rowsPerSecond": "rows_per_second",
        "sharedLimit": "shared_limit",
        "sharedLimitToken": "shared_limit_token",
    }
    limit: dict[str, Any] = {names[name]: value for name, value in options.items()}
    return spark_channel.throttle(frame, **limit)


def throttle(spark: Any, folder: str, options: dict[str, str]) -> None:
    """A copy that is limited between."""
    save(throttled(source(spark, folder, {}), options), folder, {})


def transfer(spark: Any, folder: str, options: dict[str, str]) -> int:
    """A copy that Spark's rows have no part in, and the rows of its report."""
    reader = {"name": "recorder", "log": f"{folder}/source", "rows": ROWS}
    writer = {"name": "recorder", "log": f"{folder}/target", **options}
    return spark_channel.transfer(
        spark, reader, writer, channels=CHANNELS, channels_per_task=2
    ).rows


def worst_second(folder: Path, rows: int = ROWS) -> int:
    """The most rows that reached the target in a second, once all `rows` did."""
    target = Timeline(folder / "target")
    assert target.sums[-1] == rows
    return target.worst(1.0)
