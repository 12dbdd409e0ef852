"""Plain JSON data: dataclasses, exact numbers, tagged values."""

from spark_channel.serialization.plain import (
    LARGEST,
    Count,
    Limit,
    Number,
    Seconds,
    Strict,
    Text,
    Waits,
    from_plain,
    parsed,
    to_plain,
    written,
)
from spark_channel.serialization.tagged import (
    dump_tagged,
    load_tagged,
)

__all__ = [
    "LARGEST",
    "Count",
    "Limit",
    "Number",
    "Seconds",
    "Strict",
    "Text",
    "Waits",
    "dump_tagged",
    "from_plain",
    "load_tagged",
    "parsed",
    "to_plain",
    "written",
]
