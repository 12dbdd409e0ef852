"""Notes on errors that the same work meets again: see `ChannelError.is_final`."""

from typing import TypeVar

from spark_channel.errors import ChannelError

__all__ = ["final", "of_input"]

_Error = TypeVar("_Error", bound=ChannelError)


def final(error: _Error, *, is_final: bool = True) -> _Error:
    """Return `error`, noted as one that the same work meets again."""
    error.is_final = is_final or error.is_final
    return error


def of_input(error: _Error, *, is_of_input: bool = True) -> _Error:
    """Return `error`, noted as one of what the caller named: an end that is not there, or a right that is missing."""
    error.is_of_input = is_of_input or error.is_of_input
    return final(error, is_final=is_of_input)
