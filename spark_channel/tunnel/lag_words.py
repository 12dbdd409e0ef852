"""What is told of a lag beside its amount: what the source keeps, and how much of the base is read. Pure."""

from spark_channel.connectors.feed import FeedLag
from spark_channel.progress.render import short

__all__ = ["base_words", "brief_words", "grouped", "in_flight_words", "kept_words", "lag_numbers"]


def base_words(lag: FeedLag, *, paused: bool = False) -> str:
    """How much of the existing rows is read beside the changes; empty where none are."""
    if lag.base_read is None:
        return ""
    chunks = f"{grouped(lag.base_chunks)}{_of(lag.chunks)} chunks, " if lag.base_chunks else ""
    words = f"{chunks}{grouped(lag.base_read)}{_of(lag.base_rows)} existing rows are read"
    if paused:
        return f"{words}, paused by pause-base"
    return f"{words}, paused since the slot keeps more than maxSlotLag" if lag.base_held else words


def kept_words(lag: FeedLag) -> str:
    """What a slot makes its server keep; empty where there is none."""
    return "" if lag.kept is None else f"its slot makes the server keep {grouped(lag.kept)} bytes of WAL"


def lag_numbers(lag: FeedLag) -> dict[str, int | float]:
    """What is known, by name."""
    found = {
        "rows": lag.rows,
        "bytes": lag.nbytes,
        "seconds": None if lag.seconds is None else round(lag.seconds, 3),
        "wal_kept_bytes": lag.kept,
        "base_rows_read": lag.base_read,
        "base_rows": lag.base_rows,
        "base_chunks_read": lag.base_chunks,
        "base_chunks": lag.chunks,
    }
    return {name: value for name, value in found.items() if value is not None}


def in_flight_words(rows: int, seconds: float) -> str:
    """What a client has read, and when it said so."""
    return f"{grouped(rows)} rows are read and have no checkpoint, as its client told {seconds:.0f} s ago"


def brief_words(lag: FeedLag) -> str:
    """Both, as a part of a line: `base 5 of 24 chunks (100k of 480k rows), slot keeps 8.39MB`; empty for neither."""
    parts = []
    if lag.base_read is not None:
        rows = f"{short(lag.base_read)}{'' if lag.base_rows is None else f' of {short(lag.base_rows)}'} rows"
        of = "" if lag.chunks is None else f" of {lag.chunks}"
        base = f"base {lag.base_chunks}{of} chunks ({rows})" if lag.base_chunks else f"base {rows}"
        parts.append(base + (" paused by maxSlotLag" if lag.base_held else ""))
    if lag.kept is not None:
        parts.append(f"slot keeps {short(lag.kept)}B of WAL")
    return ", ".join(parts)


def _of(value: int | None) -> str:
    return "" if value is None else f" of about {grouped(value)}"


def grouped(value: int | None) -> str:
    """`12 400`; `-` if it is not known."""
    return "-" if value is None else f"{value:,}".replace(",", " ")
