"""Finds our own error in what Spark makes of it: a page of two stack traces."""

import re

from spark_channel import errors
from spark_channel.errors import ChannelError

__all__ = ["own_error", "reason_of"]

_OURS = re.compile(
    r"^(?:E\s+)?spark_channel\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\Z)", re.DOTALL | re.MULTILINE
)


def own_error(error: BaseException) -> ChannelError | None:
    """The error of this package that made a Spark job fail, as the task raised it; None = another one."""
    if isinstance(error, ChannelError):
        return error
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, ChannelError)
    made: ChannelError = kind(message.strip())
    return made


def reason_of(error: BaseException) -> str:
    """Why a job failed, for its summary."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__
