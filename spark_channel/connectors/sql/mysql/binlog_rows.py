"""Cuts the rows of a binary log into their fields, without looking into these. Pure.

A row has a bit for each column that is NULL, and then the others' bytes, without gaps. What lies between two columns
of variable length always has the same bytes, so it is cut by one `struct`; which columns are NULL chooses the plan.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from struct import Struct
from typing import Any

from spark_channel.connectors.sql.mysql.binlog_events import TableMap, real_type
from spark_channel.errors import SourceError

__all__ = ["Field", "RowCutter", "field_of"]

_INTEGERS = {1: "b", 2: "h", 3: "i", 8: "q"}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of so many digits of a decimal."""
_LONG = frozenset({245, 252, 255, 242, 140})
"""Their length has as many bytes as their metadata says."""
_OLD_TIMES = {7: "TIMESTAMP", 11: "TIME", 12: "DATETIME"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of the log. `code` is its type there; `size` its bytes, or, with a `prefix`, the most it may have.

    `form` is how `struct` reads it, "" for one that has a `prefix`: so many bytes that say its length.
    """

    code: int
    meta: int
    unsigned: bool
    form: str
    size: int
    prefix: int = 0


def field_of(found: TableMap, place: int, label: str) -> Field:
    """How column `place` lies in a row.

    Raises:
        SourceError: a type that is not known here; names it.
    """
    code, meta, unsigned = found.types[place], found.metadata[place], found.unsigned[place]
    code = real_type(code, meta)
    if code in _INTEGERS:
        form = _INTEGERS[code].upper() if unsigned else _INTEGERS[code]
        return Field(code, meta, unsigned, form, Struct("<" + form).size)
    if code in _LONG:
        return Field(code, meta, unsigned, "", 1 << 32, meta)
    if code in (15, 253, 141):
        return Field(code, meta, unsigned, "", meta, 1 if meta < 256 else 2)
    if code == 254:
        size = ((meta >> 4 & 0x300) ^ 0x300) | (meta & 0xFF)
        return Field(code, meta, unsigned, "", size, 1 if size < 256 else 2)
    fixed = {4: "f", 5: "d", 13: "B"}
    if code in fixed:
        return Field(code, meta, unsigned, fixed[code], Struct("<" + fixed[code]).size)
    if code in (247, 248):
        size = meta & 0xFF
    elif code in (9, 10, 14):
        size = 3
    elif code in (17, 18, 19):
        size = {17: 4, 18: 5, 19: 3}[code] + (meta + 1) // 2
    elif code == 246:
        size = _decimal_bytes(meta >> 8, meta & 0xFF)
    elif code == 16:
        size = (meta >> 8) + (1 if meta & 0xFF else 0)
    else:
        name = "" if not found.names else f" {found.names[place]!r}"
        if code in _OLD_TIMES:
            raise SourceError(
                f"column{name} of {label} is a {_OLD_TIMES[code]} in the format before MySQL 5.6 and MariaDB 10.1, "
                "which the change feed does not decode: run ALTER TABLE ... FORCE, which rewrites the table"
            )
        raise SourceError(
            f"column{name} of {label} has type {code} in the binary log, which the change feed does not decode: "
            "follow the table by 'cursorColumn', or change the column's type"
        )
    return Field(code, meta, unsigned, f"{size}s", size)


def _decimal_bytes(digits: int, scale: int) -> int:
    whole = digits - scale
    return sum(4 * (each // 9) + _DIGIT_BYTES[each % 9] for each in (whole, scale))


Step = tuple[Callable[..., tuple[Any, ...]] | None, int, bool]
"""A run of columns of fixed size (what unpacks it, its bytes); or one that begins with its length (its bytes), and
whether it is wanted."""


class RowCutter:
    """Cuts rows of `fields`; of each only the columns at `wanted`, in their order, None for NULL."""

    def __init__(self, fields: list[Field], wanted: Collection[int]) -> None:
        self.fields = fields
        self.wanted = sorted(wanted)
        self._bitmap = (len(fields) + 7) // 8
        self._plans: dict[bytes, tuple[tuple[Step, ...], tuple[int, ...]]] = {}

    def cut(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """The row that begins at `at`, and where it ends."""
        begin = at + self._bitmap
        nulls = data[at:begin]
        plan = self._plans.get(nulls)
        if plan is None:
            plan = self._plans[nulls] = self._plan(nulls)
        steps, missing = plan
        row: list[Any] = []
        at = begin
        for unpack, size, keep in steps:
            if unpack is not None:
                row += unpack(data, at)
                at += size
            else:
                begin = at + size
                at = begin + (data[at] if size == 1 else int.from_bytes(data[at:begin], "little"))
                if keep:
                    row.append(data[begin:at])
        for place in missing:
            row.insert(place, None)
        return row, at

    def _plan(self, nulls: bytes) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        bits = int.from_bytes(nulls, "little")
        kept = set(self.wanted)
        steps: list[Step] = []
        run = ""

        def close() -> None:
            nonlocal run
            if run:
                made = Struct("<" + run)
                steps.append((made.unpack_from, made.size, True))
                run = ""

        for place, each in enumerate(self.fields):
            if bits >> place & 1:
                continue
            if each.prefix:
                close()
                steps.append((None, each.prefix, place in kept))
            else:
                run += each.form if place in kept else f"{each.size}x"
        close()
        return tuple(steps), tuple(number for number, place in enumerate(self.wanted) if bits >> place & 1)
