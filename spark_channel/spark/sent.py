"""Rows reach Spark as they come: a Python worker of pyspark holds back its output until that is 64 KiB.

Under a low limit these are thousands of rows, for which `show()` would wait.
"""

from collections.abc import Generator
from contextlib import closing, suppress
from typing import TypeVar

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.spark.daemon_worker import output_to_the_jvm

__all__ = ["sent_as_they_come"]

_T = TypeVar("_T")
_EVERY_SECONDS = 0.2


def sent_as_they_come(
    batches: Generator[_T, None, None], clock: Clock = SYSTEM_CLOCK
) -> Generator[_T, None, None]:
    """`batches`, each of which is sent before the next one is waited for, if none was sent for a fifth of a second."""
    output = output_to_the_jvm()
    sent = clock.now() - _EVERY_SECONDS
    with closing(batches):
        for batch in batches:
            yield batch
            if output is not None and clock.now() - sent >= _EVERY_SECONDS:
                with suppress(OSError, ValueError):  # Spark wants no more, which its watch tells
                    output.flush()
                sent = clock.now()
