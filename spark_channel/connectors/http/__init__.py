"""Web services: rows of JSON answers, page by page."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.http.reader import HttpReader
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"reader": ["HttpReader"]})

__all__ = ["HttpReader"]
