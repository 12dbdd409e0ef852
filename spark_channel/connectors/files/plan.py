"""The plan of a write of files."""

from dataclasses import dataclass

from spark_channel.connectors.base.claims import HeldClaim
from spark_channel.connectors.base.contract import WritePlan

__all__ = ["FilesPlan"]


@dataclass(frozen=True)
class FilesPlan(WritePlan):
    """`root` and `path` are the target's `Location`."""

    root: str = ""
    path: str = ""

    @property
    def claim(self) -> HeldClaim:
        assert self.held is not None, "a write that was published before has no claim"
        return self.held
