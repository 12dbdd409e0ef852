"""Generated rows, for tests and benchmarks."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import Connector

if TYPE_CHECKING:
    from spark_channel.connectors.generator.reader import GeneratorReader
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"reader": ["GeneratorReader"]})

__all__ = ["CONNECTOR", "GeneratorReader"]

CONNECTOR = Connector(
    "generator",
    "spark_channel.connectors.generator:GeneratorReader",
    None,
    schemes=("generator",),
    about="generated rows, for tests and benchmarks",
    maturity="stable",
    tested="this process, the only system that it needs",
)
