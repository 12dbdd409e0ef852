"""Cuts the rows of a binary log into their fields, without looking into these. Pure.

A row has a bit for each column that is NULL, and then the others' bytes, without gaps. What lies between two columns
of variable length always has the same bytes, so it is cut by one `struct`; which columns are NULL chooses the plan.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from struct import Struct
from typing import Any

from spark_channel.connectors.mysql.log.events import TableMap, real_type
from spark_channel.errors import SourceError

__all__ = ["DIGIT_BYTES", "Field", "RowCutter", "field_of"]


_INTEGERS = {1: "b", 2: "h", 3: "i", 8: "q"}
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
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


def field_of(table: TableMap, index: int, label: str) -> Field:
    """How column `index` lies in a row.

    Raises:
        SourceError: a type that is not known here; names it.
    """
    code, meta, unsigned = table.types[index], table.metadata[index], table.unsigned[index]
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
        name = "" if not table.names else f" {table.names[index]!r}"
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
    return sum(
        4 * (digits_of_part // 9) + DIGIT_BYTES[digits_of_part % 9]
        for digits_of_part in (whole, scale)
    )


Step = tuple[Callable[..., tuple[Any, ...]] | None, int, bool]
"""A run of columns of fixed size (what unpacks it, its bytes); or one that begins with its length (its bytes), and
whether it is wanted."""


class RowCutter:
    """Cuts rows of `fields`; of each only the columns at `columns`, in their order, None for NULL."""

    def __init__(self, fields: list[Field], columns: Collection[int]) -> None:
        self.fields = fields
        self.wanted = sorted(columns)
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
        for index in missing:
            row.insert(index, None)
        return row, at

    def _plan(self, nulls: bytes) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        bits = int.from_bytes(nulls, "little")
        wanted_columns = set(self.wanted)
        steps: list[Step] = []
        run = ""

        def close() -> None:
            nonlocal run
            if run:
                struct = Struct("<" + run)
                steps.append((struct.unpack_from, struct.size, True))
                run = ""

        for index, field in enumerate(self.fields):
            if bits >> index & 1:
                continue
            if field.prefix:
                close()
                steps.append((None, field.prefix, index in wanted_columns))
            else:
                run += field.form if index in wanted_columns else f"{field.size}x"
        close()
        return tuple(steps), tuple(
            number for number, index in enumerate(self.wanted) if bits >> index & 1
        )
