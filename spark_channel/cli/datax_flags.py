"""Flags of DataX's own command line."""

import logging
import sys

from spark_channel.errors import OptionError

__all__ = ["note_datax_flags", "set_log_level"]

_LEVELS = {
    "trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING,
    "warning": logging.WARNING, "error": logging.ERROR, "off": logging.CRITICAL,
}  # fmt: skip


def note_datax_flags(*, jvm: str | None, mode: str | None) -> None:
    """Say of flags that have no effect here why."""
    notes = []
    if jvm is not None:
        notes.append(
            "--jvm has no effect: --engine local runs no JVM, and --conf spark.driver.memory sets Spark's"
        )
    if mode is not None:
        notes.append(f"--mode {mode} has no effect: --engine and --master say where a job runs")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201 - the command line talks


def set_log_level(level: str | None) -> None:
    """Log from `level` on, to the standard error.

    Raises:
        OptionError: another word.
    """
    if level is None:
        return
    if level.lower() not in _LEVELS:
        takes = "debug, info, warn or error"
        raise OptionError(
            f"option '--loglevel' got {level!r}; it takes {takes}", option="--loglevel", takes=takes
        )
    logging.basicConfig(
        level=_LEVELS[level.lower()], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
