"""The settings of a verification."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError

__all__ = ["RepairSettings", "TextForm", "VerifySettings"]

TextForm = Literal["exact", "nfc"]
_MOST_LOOKS = 10


@dataclass(frozen=True)
class VerifySettings:
    """How rows are compared.

    `key` and `exclude` are columns; `json` are those whose texts are compared as JSON. `confirm` is how often a
    differing row is looked at again, after 1 s, 4 s, 16 s, and then 64 s each time. `copied_only`: columns of the
    target that the source lacks are left out, since a job writes none of them.
    """

    key: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    json: Sequence[str] = ()
    text: TextForm = "exact"
    confirm: int = 3
    copied_only: bool = False
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)

    def __post_init__(self) -> None:
        if self.key is not None and not self.key:
            raise OptionError("option 'key' is empty; it takes columns", option="key")
        if self.text not in ("exact", "nfc"):
            takes = "exact or nfc"
            raise OptionError(
                f"option 'text' got {self.text!r}; it takes {takes}", option="text", takes=takes
            )
        if isinstance(self.confirm, bool) or not 0 <= self.confirm <= _MOST_LOOKS:
            takes = f"a whole number from 0 to {_MOST_LOOKS}"
            raise OptionError(
                f"option 'confirm' got {self.confirm!r}; it takes {takes}",
                option="confirm",
                got=str(self.confirm),
                takes=takes,
            )


@dataclass(frozen=True)
class RepairSettings:
    """What may be written. More rows than `max_repairs`: none is. `delete`: extra rows of the target are removed."""

    max_repairs: int = 1_000
    delete: bool = False
    dry_run: bool = False
