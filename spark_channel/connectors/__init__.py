"""Readers and writers: the contract, the registry, and the connectors that ship."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.contracts import (
        FetchSize,
        Read,
        Reader,
        Receipt,
        SplitReader,
        Tally,
        TaskWriter,
        Unfinished,
        WriteContext,
        WritePlan,
        Writer,
    )
    from spark_channel.connectors.health import Health
    from spark_channel.connectors.registry import Connector, find_connector, load_reader, load_writer
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = [
    "Connector",
    "FetchSize",
    "Health",
    "Read",
    "Reader",
    "Receipt",
    "SplitReader",
    "Tally",
    "TaskWriter",
    "Unfinished",
    "WriteContext",
    "WritePlan",
    "Writer",
    "find_connector",
    "load_reader",
    "load_writer",
]
