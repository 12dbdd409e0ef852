"""Copy data with Spark under a speed limit, all or nothing where the target allows it.

    spark_channel.register(spark)
    df = spark.read.format("channel").load("flights.csv")
    df.write.format("channel").option("rowsPerSecond", "100k").mode("append").save("flights.db")

Names are imported when they are first used, since every Python worker of Spark imports this package.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy, version

if TYPE_CHECKING:
    from spark_channel.api import replicate, run, transfer, verify
    from spark_channel.progress import TransferReport
    from spark_channel.service import SharedLimit
    from spark_channel.spark.session import last_report, register
    from spark_channel.spark.shipping import ship
    from spark_channel.spark.source import ChannelDataSource, explain
    from spark_channel.spark.throttle import throttle
    from spark_channel.verification.report import VerifyReport
else:
    _loaded, __dir__ = lazy.exports(
        __name__,
        {
            "api": ["replicate", "run", "transfer", "verify"],
            "progress": ["TransferReport"],
            "service": ["SharedLimit"],
            "spark.shipping": ["ship"],
            "spark.session": ["last_report", "register"],
            "spark.source": ["ChannelDataSource", "explain"],
            "spark.throttle": ["throttle"],
            "verification.report": ["VerifyReport"],
        },
    )

    def __getattr__(name):
        try:
            return _loaded(name)
        except ImportError:
            from spark_channel import requirements

            requirements.check_versions()  # an old library is named instead of what it lacks
            raise


__version__ = version.__version__

__all__ = [
    "ChannelDataSource",
    "SharedLimit",
    "TransferReport",
    "VerifyReport",
    "explain",
    "last_report",
    "register",
    "replicate",
    "run",
    "ship",
    "throttle",
    "transfer",
    "verify",
]
