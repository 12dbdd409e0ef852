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
    from spark_channel.spark.shipping import pythons_of_tasks

    with open_session(master, parse_conf(conf), "spark-channel check") as spark:
        task_pythons = pythons_of_tasks(spark, SparkEngine(spark).parallelism())
    wrong = [task_python for task_python in task_pythons if task_python.version != __version__]
    if as_json:
        pythons = [asdict(task_python) for task_python in task_pythons]
        typer.echo(json_line({"version": 1, "spark_channel": __version__, "pythons": pythons}))
        return not wrong
    for task_python in task_pythons:
        version = (
            f"spark-channel {task_python.version}" if task_python.version else task_python.error
        )
        say(f"{task_python.host}, Python {task_python.python}: {version}")
    if wrong:
        say(
            f"This process has spark-channel {__version__}. Install it where Spark's executors run, or ship it: "
            "see `spark-channel help deploy#spark-submit`"
        )
    return not wrong
