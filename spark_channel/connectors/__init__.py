"""Readers and writers: the contract, the registry, and the connectors that ship."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.base.connector import Connector
    from spark_channel.connectors.base.contract import (
        FetchSize,
        PartialWrite,
        Read,
        Reader,
        Receipt,
        RowTally,
        SplitReader,
        TaskWriter,
        WriteContext,
        WritePlan,
        Writer,
    )
    from spark_channel.connectors.base.health import Health
    from spark_channel.connectors.base.registry import find_connector, load_reader, load_writer
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "base.contract": [
                "FetchSize",
                "PartialWrite",
                "Read",
                "Reader",
                "Receipt",
                "RowTally",
                "SplitReader",
                "TaskWriter",
                "WriteContext",
                "WritePlan",
                "Writer",
            ],
            "base.health": ["Health"],
            "base.connector": ["Connector"],
            "base.registry": ["find_connector", "load_reader", "load_writer"],
        },
    )

__all__ = [
    "Connector",
    "FetchSize",
    "Health",
    "PartialWrite",
    "Read",
    "Reader",
    "Receipt",
    "RowTally",
    "SplitReader",
    "TaskWriter",
    "WriteContext",
    "WritePlan",
    "Writer",
    "find_connector",
    "load_reader",
    "load_writer",
]
