"""Move data between systems with Spark without hurting either end.

    spark_channel.register(spark)
    df = spark.read.format("channel").load("flights.csv")
    df.write.format("channel").option("rowsPerSecond", "100k").mode("append").save("flights.db")

Names are imported when they are first used, since every Python worker of Spark imports this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_channel.service import SharedLimit
    from spark_channel.spark.session import last_report, register
    from spark_channel.spark.source import ChannelDataSource
    from spark_channel.spark.throttle import throttle

__version__ = "0.1.0"

__all__ = ["ChannelDataSource", "SharedLimit", "last_report", "register", "throttle"]

_HOMES = {
    "SharedLimit": "spark_channel.service",
    "ChannelDataSource": "spark_channel.spark.source",
    "last_report": "spark_channel.spark.session",
    "register": "spark_channel.spark.session",
    "throttle": "spark_channel.spark.throttle",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
