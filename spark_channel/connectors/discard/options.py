"""Options of a write whose rows are dropped."""

from pydantic import Field

from spark_channel.options import WriteOptions

__all__ = ["DiscardOptions"]


class DiscardOptions(WriteOptions):
    """The options of every write: discard adds none."""

    url: str | None = Field(None, description="`discard:`; default: none")
