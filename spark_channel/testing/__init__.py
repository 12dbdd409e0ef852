"""For tests of your own code: a clock that you move, and the connector contract as a test."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.testing.clock import VirtualClock
    from spark_channel.testing.reader_contract import reader_conformance
    from spark_channel.testing.writer_contract import writer_conformance
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "clock": ["VirtualClock"],
            "reader_contract": ["reader_conformance"],
            "writer_contract": ["writer_conformance"],
        },
    )

__all__ = ["VirtualClock", "reader_conformance", "writer_conformance"]
