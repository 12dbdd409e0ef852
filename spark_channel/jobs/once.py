"""How a job commits, and the pair of name and version under which a rerun writes nothing twice."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from spark_channel.errors import OptionError

__all__ = ["Commit", "parse_transaction"]

_TAKES = (
    "NAME:VERSION, the version a whole number or a date; NAME alone takes the one date among the values of -p"
)
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Commit:
    """`mode`: `job` or `task`; None = the writer's choice. `transaction`: name and version; None = each run adds."""

    mode: Literal["job", "task"] | None = None
    transaction: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        return self.mode is not None or self.transaction is not None

    def options(self, content: int = 0) -> dict[str, Any]:
        """As options of the job; each of several contents has its own name."""
        made: dict[str, Any] = {} if self.mode is None else {"commit": self.mode}
        if self.transaction is not None:
            name, version = self.transaction
            made |= {"txnAppId": f"{name}#{content}" if content else name, "txnVersion": str(version)}
        return made


def parse_transaction(text: str, variables: Mapping[str, Any], option: str) -> tuple[str, int]:
    """`nightly:42`, `nightly:2024-01-31`, or `nightly` where one of `variables` is a date.

    Raises:
        OptionError: another text, or no date or several; names `option`.
    """
    name, colon, version = text.strip().rpartition(":")
    if not colon:
        name = text.strip()
        dates = {made for value in variables.values() if (made := _day(str(value))) is not None}
        if name and len(dates) == 1:
            return name, dates.pop()
        why = "several" if dates else "none"
        raise OptionError(
            f"option {option!r} got {text!r} without a version, and {why} of the values of -p is a date; it takes "
            f"{_TAKES}",
            option=option, got=text, takes=_TAKES,
        )  # fmt: skip
    number = _day(version) if _day(version) is not None else _whole(version)
    if not name.strip() or number is None:
        raise OptionError(
            f"option {option!r} got {text!r}; it takes {_TAKES}", option=option, got=text, takes=_TAKES
        )
    return name.strip(), number


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text.strip()) and int(text) <= _LARGEST else None


def _day(text: str) -> int | None:
    """2024-01-31 and 20240131 as 20240131."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    digits = "".join(match.groups())
    try:
        datetime.strptime(digits, "%Y%m%d")
    except ValueError:
        return None
    return int(digits)
