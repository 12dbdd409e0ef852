"""A limited append with commit=job is published in one transaction of small pieces, with rests between them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.postgresql.write.merge import PostgresMerge
from spark_channel.errors import ChannelError
from tests.connectors.postgresql.pg import Pg

ROWS = pa.table({"id": pa.array(range(60_000), pa.int64()), "v": ["some text"] * 60_000})


class _Seen:
    """The statements that insert, and how long each took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        insert = PostgresMerge._insert

        def counted(merge: PostgresMerge, more: str) -> tuple[int, Sequence[tuple[Any, ...]]]:
            begun = SYSTEM_CLOCK.now()
            rows = insert(merge, more)
            self.seconds.append(SYSTEM_CLOCK.now() - begun)
            return rows

        monkeypatch.setattr(PostgresMerge, "_insert", counted)


def _filled(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id bigint, v text); INSERT INTO t VALUES (-1, 'old')")


def test_pieces_of_a_limited_append_bring_each_row_once(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(pg)
    seen = _Seen(monkeypatch)
    begun = SYSTEM_CLOCK.now()
    pg.write(ROWS.slice(0, 30_000), ROWS.slice(30_000), commit="job", rowsPerSecond="1M")
    assert (
        pg.psql("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM t")
        == "60001|60001|-1|59999"
    )
    assert len(seen.seconds) >= 5  # how many rows a piece has is measured
    assert SYSTEM_CLOCK.now() - begun >= 3 * sum(sorted(seen.seconds)[:-3]) * 0.9


def test_pieces_are_as_large_where_the_server_is_far_away(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 20 ms a round trip each piece was one page, and 10 million rows would have taken hours to publish."""
    _filled(pg)
    insert = PostgresMerge._insert
    pieces: list[str] = []

    def far_away(merge: PostgresMerge, more: str) -> tuple[int, Sequence[tuple[Any, ...]]]:
        SYSTEM_CLOCK.sleep(0.02)
        pieces.append(more)
        return insert(merge, more)

    monkeypatch.setattr(PostgresMerge, "_insert", far_away)
    pg.write(ROWS, commit="job", rowsPerSecond="1M")
    assert pg.psql("SELECT count(*), count(DISTINCT id) FROM t") == "60001|60001"
    assert len(pieces) <= 190  # of about 380 pages; 40 on an idle machine


def test_all_or_nothing_it_is_all_the_same(pg: Pg) -> None:
    """A row of the last piece is refused."""
    _filled(pg)
    pg.psql("ALTER TABLE t ADD CHECK (id < 59999)")
    with pytest.raises(ChannelError, match="check"):
        pg.write(ROWS, commit="job", rowsPerSecond="1M")
    assert pg.psql("SELECT count(*) FROM t") == "1"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rowsPerSecond": "1M", "overwrite": True},
        {"rowsPerSecond": "1M", "writeMode": "upsert", "keyColumns": "id"},
    ],
    ids=["unlimited", "overwrite", "upsert"],
)
def test_what_holds_others_up_or_compares_keys_is_one_statement(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    pg.psql("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    seen = _Seen(monkeypatch)
    pg.write(ROWS, commit="job", **more)
    assert pg.psql("SELECT count(*) FROM t") == "60000"
    assert len(seen.seconds) == 1
