"""Changes that wait in the log behind a position, by table, counted in one look at the slot. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.sql.postgresql.pgoutput import begin_time

__all__ = ["CHANGE_KINDS", "MOST_COUNTED", "Waiting", "waiting_changes", "waiting_query"]

MOST_COUNTED = 100_000
"""Messages of the log that one look goes through."""
_SHOWN = """ordinality AS n, get_byte(data, 0) AS kind, octet_length(data) AS nbytes,
  CASE WHEN get_byte(data, 0) = ascii('T') THEN data ELSE substring(data FROM 1 FOR 21) END AS head"""
"""Of a message: enough to tell its table, or when its transaction was committed. A truncate names all its tables."""
_QUERY = """
WITH shown AS ({shown}),
followed (oid, start) AS (VALUES {followed}),
placed AS (SELECT *, max(n) FILTER (WHERE kind = ascii('B')) OVER (ORDER BY n) AS begun FROM shown),
named AS (
  SELECT begun, nbytes, ('x' || encode(substring(
    head FROM CASE WHEN kind = ascii('T') THEN 7 + 4 * number ELSE 2 END FOR 4), 'hex'))::bit(32)::bigint AS oid
  FROM placed CROSS JOIN LATERAL generate_series(0, CASE WHEN kind = ascii('T') THEN
    get_byte(head, 3) * 256 + get_byte(head, 4) - 1 ELSE 0 END) AS number
  WHERE kind IN ({kinds})),
counted AS (
  SELECT oid, min(begun) AS first, count(*) AS changes, sum(named.nbytes) AS nbytes
  FROM named JOIN shown b ON b.n = begun JOIN followed USING (oid)
  WHERE substring(b.head FROM 2 FOR 8) >= start GROUP BY oid)
SELECT (SELECT count(*) FROM shown)::bigint, oid, changes::bigint, nbytes::bigint,
  (SELECT head FROM shown WHERE n = first)
FROM (SELECT 1) one LEFT JOIN counted ON true
"""
CHANGE_KINDS = ", ".join(str(ord(each)) for each in "IUDT")
"""The first bytes of messages that are changes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """`changes` of one table, or of several, `nbytes` of them as the decoder sends them, and the `seconds` since the
    commit of the first; None = not known.
    """

    changes: int | None = None
    nbytes: int | None = None
    seconds: float | None = None


def waiting_query(look: Callable[[str], str], followed: Mapping[int, int]) -> str:
    """For `followed` tables, by their number in the log: the changes of transactions that were committed at a position
    or later. `look`: the query that shows columns of the log's messages, at most `MOST_COUNTED`.
    """
    values = ", ".join(f"({oid}::bigint, decode('{start:016x}', 'hex'))" for oid, start in followed.items())
    return _QUERY.format(shown=look(_SHOWN), followed=values, kinds=CHANGE_KINDS)


def waiting_changes(
    rows: Sequence[tuple[Any, ...]], tables: Mapping[int, int], now: float
) -> dict[int, Waiting]:
    """What the query answered, for each table."""
    is_cut = int(rows[0][0]) >= MOST_COUNTED
    found = {oid: Waiting() if is_cut else Waiting(0, 0, 0.0) for oid in tables}
    for _, oid, changes, nbytes, first in rows:
        if oid is None:
            continue
        begun = begin_time(first)
        assert begun is not None
        seconds = max(0.0, now - begun / 1e6)
        found[int(oid)] = (
            Waiting(None, None, seconds) if is_cut else Waiting(int(changes), int(nbytes), seconds)
        )
    return found
