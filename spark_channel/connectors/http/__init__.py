"""Web services: rows of JSON answers, page by page."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import Connector

if TYPE_CHECKING:
    from spark_channel.connectors.http.reader import HttpReader
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"reader": ["HttpReader"]})

__all__ = ["CONNECTOR", "HttpReader"]

CONNECTOR = Connector(
    "http",
    "spark_channel.connectors.http:HttpReader",
    None,
    about="JSON answers of web services",
    secrets=("url", "password", "token", "params", "body", "headers", "proxy"),
    maturity="experimental",
    tested="HTTP servers written for the tests",
)
