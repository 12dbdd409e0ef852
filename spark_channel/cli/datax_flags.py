"""The flags of datax.py that have no effect here, or only set how much is logged."""

import logging

from spark_channel.errors import OptionError
from spark_channel.plain_text import log_in_lines

__all__ = ["note_datax_flags", "set_log_level"]


_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,
}


def note_datax_flags(*, jvm: str | None, mode: str | None) -> None:
    """Explain the flags that have no effect here."""
    from spark_channel.cli.text import say

    notes = []
    if jvm is not None:
        notes.append(
            "--jvm has no effect: --engine local runs no JVM, and --conf spark.driver.memory sets Spark's"
        )
    if mode is not None:
        notes.append(f"--mode {mode} has no effect: --engine and --master say where a job runs")
    for note in notes:
        say(f"note: {note}", error=True)


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
    log_in_lines(_LEVELS[level.lower()])
