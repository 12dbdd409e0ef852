"""Rows are counted and dropped."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import ONCE, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.discard.writer import DiscardWriter
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"writer": ["DiscardWriter"]})

__all__ = ["CONNECTOR", "DiscardWriter"]

CONNECTOR = Connector(
    "discard",
    None,
    "spark_channel.connectors.discard:DiscardWriter",
    schemes=("discard",),
    about="counts rows and drops them",
    keeps=False,
    maturity="stable",
    tested="this process, the only system that it needs",
    delivery=ONCE,
)
