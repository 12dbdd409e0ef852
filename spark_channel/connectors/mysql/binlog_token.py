"""Tokens of a binary log's feed: a position in the log, and how much of the base was read there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.mysql.binlog_decoder import RESET
from spark_channel.connectors.mysql.binlog_position import GtidSet
from spark_channel.connectors.sql.incremental_snapshot import BaseProgress
from spark_channel.errors import SourceError

__all__ = ["BinlogToken"]

_NAME, _BASE, _TABLE = "gtid", "base", "table"


@dataclass(frozen=True, slots=True)
class BinlogToken:
    """`base` is None where all of it was read, or none belongs to the feed.

    `table`: what `noted_table` gave; None = not known.
    """

    position: GtidSet
    base: BaseProgress | None = None
    table: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, token: Token, gtids: type[GtidSet]) -> "BinlogToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            text: Any = token[_NAME]
            table: Any = token.get(_TABLE)
            if set(token) - {_NAME, _BASE, _TABLE} or not isinstance(text, str):
                raise ValueError(token)
            if not isinstance(table, Mapping | None):
                raise TypeError(table)
            base: Any = token.get(_BASE)
            return cls(gtids.parse(text), None if base is None else BaseProgress.of(base), table)
        except (KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {dict(token)!r} is not a position in this server's binary log: "
                f"it is damaged, or of another source. {RESET}"
            ) from None

    def token(self) -> Token:
        found: dict[str, Any] = {_NAME: str(self.position)}
        if self.base is not None:
            found[_BASE] = self.base.noted()
        if self.table is not None:
            found[_TABLE] = dict(self.table)
        return found
