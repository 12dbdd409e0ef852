"""Tokens of a replication feed: a position in the log, how much of the base was read there, and by which entries of its
publication the table is in the log. Pure.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors.split_reader import Token
from spark_channel.connectors.sql.chunk_window import BaseProgress
from spark_channel.connectors.sql.postgresql.entries import Entries, read_entries, read_operations
from spark_channel.connectors.sql.postgresql.log_columns import TableColumns
from spark_channel.connectors.sql.postgresql.pgoutput import lsn_text
from spark_channel.errors import SourceError

__all__ = ["LogToken", "position_of", "token_of"]

_POSITION = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")
_ENTRIES = "entries"
_OPERATIONS = "operations"
_TABLE = "table"
_BASE = {"after", "until", "safe", "doubt_at", "doubt", "read", "rows", "waited"}


@dataclass(frozen=True, slots=True)
class LogToken:
    """`base` is None where all of it was read, or none belongs to the feed. `entries`: () = not known.

    `operations`: see `entries.py`; "" = not known. `table`: its number and columns; None = not known.
    """

    lsn: int
    base: BaseProgress | None = None
    entries: Entries = ()
    operations: str = ""
    table: tuple[int, TableColumns] | None = None

    @classmethod
    def read(cls, token: Token) -> "LogToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            base = token.get("base")
            if set(token) - {"lsn", "base", _ENTRIES, _OPERATIONS, _TABLE} or (
                base is not None and set(base) - {"chunks", "order"} != _BASE
            ):
                raise ValueError
            entries = read_entries(token.get(_ENTRIES, ()))
            operations = read_operations(token.get(_OPERATIONS, ""))
            table = token.get(_TABLE)
            return cls(
                position_of(token["lsn"]), None if base is None else _base(base), entries, operations,
                None if table is None else (int(table["oid"]), TableColumns.of(table["shape"])),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {dict(token)!r} is not a position in a PostgreSQL log: it is damaged, or of another "
                "source. Reset the tunnel, or begin with a new checkpoint directory"
            ) from None

    @property
    def confirmable(self) -> int:
        """The position up to which the log is not needed any more, once this token is done with."""
        return self.lsn if self.base is None else self.base.safe

    def token(self) -> Token:
        base = self.base
        found = dict(token_of(self.lsn))
        if self.entries:
            found[_ENTRIES] = list(self.entries)
        if self.operations:
            found[_OPERATIONS] = self.operations
        if self.table is not None:
            oid, shape = self.table
            found[_TABLE] = {"oid": oid, "shape": shape.noted()}
        if base is None:
            return found
        return {
            **found,
            "base": {
                **base.noted(),
                "safe": lsn_text(base.safe),
                "doubt_at": lsn_text(base.doubt_at),
                "doubt": list(base.doubt),
            },
        }


def token_of(lsn: int) -> Token:
    return {"lsn": lsn_text(lsn)}


def position_of(text: Any) -> int:
    if not isinstance(text, str) or not _POSITION.fullmatch(text):
        raise ValueError
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _base(found: Any) -> BaseProgress:
    if not all(isinstance(each, int) for each in found["doubt"]):
        raise ValueError
    return replace(
        BaseProgress.of(found),
        safe=position_of(found["safe"]),
        doubt_at=position_of(found["doubt_at"]),
        doubt=tuple(found["doubt"]),
    )
