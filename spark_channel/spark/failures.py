"""Passes this package's errors through Spark: shortens them in the worker, and finds them in Spark's exception."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spark_channel import errors
from spark_channel.errors import ChannelError, JobCancelledError, MissingPackageError

__all__ = ["is_worker", "own_error", "page_of", "without_traceback"]

_log = logging.getLogger(__name__)
_OURS = re.compile(
    r"(?:^(?:E\s+)?|: )spark_channel\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\Z)", re.DOTALL | re.MULTILINE
)
_NO_CLASS = re.compile(
    r"java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError): (?P<named>[\w./$]*[Dd]river[\w$]*)"
    r"|java\.sql\.SQLException: No suitable driver"
)
_PAGES = {
    errors.OptionError: "docs/options.md",
    errors.JobFileError: "docs/datax.md",
    errors.SupersededError: "docs/commits.md#errors",
    errors.CommitError: "docs/commits.md#errors",
    errors.DirtyRowsError: "docs/transfer.md#dirty-rows",
    errors.TunnelError: "docs/tunnel.md#what-is-refused-and-what-to-do",
    errors.LimitError: "docs/limits.md#what-goes-wrong",
}
"""Where a class of errors is explained; the first that fits counts."""
_ANY_PAGE = "docs/troubleshoot.md"
_SEE = re.compile(r"\nSee docs/\S+.*\Z", re.DOTALL)
_CANCELLED = re.compile(r"(?:\[SPARK_JOB_CANCELLED\] )?Job \d+ cancelled[^\n]*")


@contextmanager
def without_traceback() -> Iterator[None]:
    """In a worker of Spark, send an error of this package as its message and the page of the docs, without a traceback.

    It says what happened, why, and what to do: the frames of worker and package below it do not. pyspark reads
    this setting when it sends an error, after which the worker ends. Other errors keep their traceback.
    """
    try:
        yield
    except ChannelError as error:
        if is_worker():
            _log.debug("the error was raised here", exc_info=True)
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            if not getattr(error, "__notes__", None):  # blocks of this kind may be nested
                error.add_note(f"See {page_of(error)}")
        raise


def page_of(error: ChannelError) -> str:
    """The page of the documentation that explains this error."""
    return next((page for kind, page in _PAGES.items() if isinstance(error, kind)), _ANY_PAGE)


def is_worker() -> bool:
    """Whether Spark started this process, to plan or to run a task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def own_error(error: BaseException) -> ChannelError | None:
    """The error of this package that made a Spark job fail, as the task raised it; None = another one."""
    if isinstance(error, ChannelError):
        return error
    if (missing := _missing_class(str(error))) is not None:
        return missing
    found = _OURS.findall(str(error))
    if not found:
        cancelled = _CANCELLED.search(str(error))
        if cancelled is None:
            return None
        return JobCancelledError(
            f"the job was cancelled in Spark ({cancelled[0].strip()}). What it had staged is removed; with commit=task "
            "the rows of finished tasks stay in the target. Run it again to copy the rest"
        )
    name, message = found[-1]
    kind = getattr(errors, name, ChannelError)
    made: ChannelError = kind(_SEE.sub("", message.strip()))
    return made


def _missing_class(text: str) -> MissingPackageError | None:
    """That Spark's JVM lacks a driver; None = it has said nothing of the kind."""
    match = _NO_CLASS.search(text)
    if match is None:
        return None
    name = (match["named"] or "").replace("/", ".")
    what = f"the class {name}" if name else "a JDBC driver for the url"
    return MissingPackageError(
        f"Spark does not have {what}: give the driver's jar with --conf spark.jars=/path/to/driver.jar "
        "(or its coordinates with --conf spark.jars.packages=group:name:version)",
        name=name,
    )
