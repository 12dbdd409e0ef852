"""Chooses the engine of a job: processes of this machine, or Spark."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from spark_channel.errors import OptionError
from spark_channel.planning import TransferSpec

__all__ = ["EngineName", "chosen_engine", "parse_conf"]

EngineName = Literal["auto", "local", "spark"]


def chosen_engine(
    asked: EngineName, specs: Sequence[TransferSpec], *, master: str | None, conf: Mapping[str, str]
) -> Literal["local", "spark"]:
    """`auto` is local, unless something asks for Spark: `--master`, `--conf`, spark-submit, or a format of Spark's.

    Raises:
        OptionError: `local`, and only Spark can do what is asked for.
    """
    if asked == "spark":
        return "spark"
    why = _asks_for_spark(specs, master=master, conf=conf)
    if not why:
        return "local"
    if asked == "auto":
        return "spark"
    raise OptionError(
        f"option '--engine' got 'local', and {why}: omit --engine, or give --engine spark",
        option="--engine",
        got="local",
        takes="auto, local or spark",
    )


def _asks_for_spark(specs: Sequence[TransferSpec], *, master: str | None, conf: Mapping[str, str]) -> str:
    if master is not None:
        return f"--master {master} names a Spark"
    if conf:
        return f"--conf {next(iter(conf))} is a setting of Spark"
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return "spark-submit runs this command in a Spark driver"
    for spec in specs:
        for end in (spec.reader, spec.writer, *(each.writer for each in spec.targets)):
            if end.spark_format:
                return f"{end.name} is read and written by Spark alone"
    return ""


def parse_conf(texts: Sequence[str]) -> dict[str, str]:
    """`k=v` texts, as `spark-submit --conf` takes them.

    Raises:
        OptionError: one that is not.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            takes = "a setting of Spark as name=value"
            raise OptionError(
                f"option '--conf' got {key!r}; it takes {takes}", option="--conf", got=key, takes=takes
            )
        found[key.strip()] = value
    return found
