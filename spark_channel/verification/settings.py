"""The settings of a verification."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
        for name in ("key", "exclude", "json"):
            if isinstance(given := getattr(self, name), str):
                takes = f"a list of columns, such as {[given]}"
                raise OptionError(
                    f"option {name!r} got {given!r}; it takes {takes}",
                    option=name,
                    got=given,
                    takes=takes,
                )
        if self.key is not None and not self.key:
            raise OptionError("option 'key' is empty; it takes columns", option="key")
        if self.text not in ("exact", "nfc"):
            takes = "exact or nfc"
            raise OptionError(
                f"option 'text' got {self.text!r}; it takes {takes}", option="text", takes=takes
            )
        _hold_number("confirm", self.confirm, _MOST_LOOKS)


@dataclass(frozen=True)
class RepairSettings:
    """What may be written. More rows than `max_repairs`: none is. `delete`: extra rows of the target are removed."""

    max_repairs: int = 1_000
    delete: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        _hold_number("max_repairs", self.max_repairs)


def _hold_number(option: str, value: Any, most: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and value >= 0 and (most is None or value <= most):
        return
    takes = "a whole number from 0" + ("" if most is None else f" to {most}")
    raise OptionError(
        f"option {option!r} got {value!r}; it takes {takes}",
        option=option,
        got=str(value),
        takes=takes,
    )
