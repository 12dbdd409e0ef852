"""How a job commits, and the pair of name and version under which a rerun writes nothing twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_channel.errors import OptionError
from spark_channel.option_types import parse_day, parse_transaction

__all__ = ["CommitSetting", "transaction_of_job"]


_TAKES = "NAME:VERSION, the version a whole number or a date; NAME alone takes the one date among the values of -p"


@dataclass(frozen=True, slots=True)
class CommitSetting:
    """`mode`: `job` or `task`; None = the writer's choice. `transaction`: name and version; None = each run adds."""

    mode: Literal["job", "task"] | None = None
    transaction: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        return self.mode is not None or self.transaction is not None

    def options(self, content: int = 0) -> dict[str, Any]:
        """As options of the job; each of several contents has its own name."""
        options: dict[str, Any] = {} if self.mode is None else {"commit": self.mode}
        if self.transaction is not None:
            name, version = self.transaction
            options["txn"] = f"{name}#{content}:{version}" if content else f"{name}:{version}"
        return options


def transaction_of_job(text: str, variables: Mapping[str, Any], option: str) -> tuple[str, int]:
    """`nightly:42`, `nightly:2024-01-31`, or `nightly` where one of `variables` is a date.

    Raises:
        OptionError: another text, or no date or several; names `option`.
    """
    _, colon, _ = text.strip().rpartition(":")
    if not colon:
        name = text.strip()
        dates = {day for value in variables.values() if (day := parse_day(str(value))) is not None}
        if name and len(dates) == 1:
            return name, dates.pop()
        count = "several" if dates else "none"
        raise OptionError(
            f"option {option!r} got {text!r} without a version, and {count} of the values of -p is a date; it takes "
            f"{_TAKES}",
            option=option,
            got=text,
            takes=_TAKES,
        )
    return parse_transaction(text, option)
