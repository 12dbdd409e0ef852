"""Readers and writers: the contract, the registry, and the connectors that ship."""

from spark_channel.connectors.contracts import (
    FetchSize,
    Reader,
    Receipt,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.registry import Connector, find_connector, load_reader, load_writer

__all__ = [
    "Connector",
    "FetchSize",
    "Reader",
    "Receipt",
    "TaskWriter",
    "WriteContext",
    "WritePlan",
    "Writer",
    "find_connector",
    "load_reader",
    "load_writer",
]
