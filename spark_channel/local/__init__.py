"""Transfers without Spark: the same plan, channels, limits, commits and report in processes of this machine."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.local.engine import LocalEngine
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = ["LocalEngine"]
