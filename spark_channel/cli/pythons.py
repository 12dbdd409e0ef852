"""`spark-channel check --spark`: which spark-channel the Python processes of Spark have."""

from collections.abc import Sequence
from dataclasses import asdict

import typer

from spark_channel.cli.run import parse_conf
from spark_channel.cli.text import json_line, say
from spark_channel.version import __version__

__all__ = ["check_pythons"]


def check_pythons(master: str | None, conf: Sequence[str], *, as_json: bool) -> bool:
    """Print a line per host and version of what Spark's tasks have; True when each has this process's version."""
    from spark_channel.spark.engine import SparkEngine, open_session
    from spark_channel.spark.other_side import pythons_of_tasks

    with open_session(master, parse_conf(conf), "spark-channel check") as spark:
        found = pythons_of_tasks(spark, SparkEngine(spark).parallelism())
    wrong = [each for each in found if each.version != __version__]
    if as_json:
        pythons = [asdict(each) for each in found]
        typer.echo(json_line({"version": 1, "spark_channel": __version__, "pythons": pythons}))
        return not wrong
    for each in found:
        what = f"spark-channel {each.version}" if each.version else each.error
        say(f"{each.host}, Python {each.python}: {what}")
    if wrong:
        say(
            f"This process has spark-channel {__version__}. Install it where Spark's executors run, or ship it: "
            "see `spark-channel help deploy#spark-submit`"
        )
    return not wrong
