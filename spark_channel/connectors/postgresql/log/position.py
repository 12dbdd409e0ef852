"""A position in PostgreSQL's log, as a text and as a number. Pure."""

import re

__all__ = ["lsn_text", "position_of"]

_POSITION = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")


def lsn_text(lsn: int) -> str:
    """A position in the log as PostgreSQL writes it, with zeros, so that texts compare as positions do."""
    return f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}"


def position_of(text: object) -> int:
    if not isinstance(text, str) or not _POSITION.fullmatch(text):
        raise ValueError
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
