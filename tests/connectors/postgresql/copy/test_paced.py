"""Under a limit rows go by COPY evenly: by one that is fed where the server is quick, else by short ones."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.postgresql.copy.encoding import copy_rows
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.errors import TargetError
from spark_channel.testing import VirtualClock
from tests.connectors.postgresql.pg import Pg

BIT = 1_000
NEAR_TRIP = 0.0001


class _Server:
    """Works so many seconds for each row of a short COPY; notes the rows that arrive, and when."""

    def __init__(self, clock: VirtualClock, row_seconds: float, trip: float = NEAR_TRIP) -> None:
        self.clock, self.row_seconds, self.trip = clock, row_seconds, trip
        self.short: list[int] = []
        self.fed: list[int] = []
        self.ids: list[int] = []
        self.at: list[float] = []
        self.took = 0.0
        self.cost = RowCost()

    def rows(self, sql: str) -> None:
        self.clock.advance(self.trip)

    def copy(
        self, schema: str, table: str, rows: CopyRows, between: Callable[[int], None] | None = None
    ) -> None:
        self.ids += [int(each) for each in rows.names]
        if between is None:
            self.short.append(rows.count)
            self.at.append(self.clock.now())
            self.clock.advance(2 * self.trip + self.row_seconds * rows.count)
            return
        self.clock.advance(self.trip)
        self.fed.append(rows.count)
        whole = len(rows.pieces[0])
        for sent in range(BIT, whole + BIT, BIT):
            self.at.append(self.clock.now())
            between(min(sent, whole))
        self.clock.advance(self.trip)


def _encode(rows: pa.RecordBatch | pa.Table) -> CopyRows:
    """With the ids in the place of the names."""
    return CopyRows(
        [str(each) for each in rows.column(0).to_pylist()],
        rows.num_rows,
        [memoryview(bytes(60 * rows.num_rows))],
    )


def _sent(
    count: int,
    spread: float,
    row_seconds: float,
    *,
    turns: int = 1,
    short_rows: int = 0,
    trip: float = NEAR_TRIP,
    parts: Sequence[tuple[float, float]] = (),
) -> _Server:
    """The last of some turns."""
    clock = VirtualClock()
    server = _Server(clock, row_seconds, trip)
    paced = PacedCopy(server, server.cost, clock)
    for _ in range(turns):
        server.short, server.fed, server.ids, server.at = [], [], [], []
        begun = clock.now()
        paced.begin(count, spread, parts, short_rows=short_rows)
        paced.copy(
            server,
            "s",
            "t",
            pa.table({"id": range(count), "v": ["x" * 40] * count}),
            _encode,
        )
    server.at = [each - begun for each in server.at]
    server.took = clock.now() - begun
    return server


def test_a_quick_server_gets_a_short_copy_that_is_measured_and_one_that_is_fed() -> None:
    server = _sent(10_000, 0.5, 0.000_001, turns=2)
    assert (server.short, server.fed) == ([250], [9_750])
    rests = [b - a for a, b in pairwise(server.at)]
    assert max(rests) < 0.02
    assert server.at[-1] == pytest.approx(0.5, abs=0.02)


def test_the_target_sees_the_limit_where_one_of_two_tasks_ends_amid_the_other() -> None:
    """20 000 rows/s: half of it each for a second, then all of it for the other task, for half a second."""

    def sent(count: int, spread: float, *parts: tuple[float, float]) -> list[tuple[float, int]]:
        server = _sent(count, spread, 0.000_001, turns=2, parts=parts)
        assert server.fed == []
        return list(zip(server.at, server.short, strict=True))

    arrived = [*sent(20_000, 1.5, (0.5, 2 / 3)), *sent(10_000, 1.0)]
    most = max(sum(rows for at, rows in arrived if 0 <= at - begin < 1) for begin, _ in arrived)
    assert most <= 1.05 * 20_000


def test_a_server_that_is_slow_for_a_row_gets_short_ones_that_fit_a_burst() -> None:
    server = _sent(10_000, 2.0, 0.000_01, turns=3)
    assert server.fed == []
    assert max(server.short) <= 110


def test_what_a_row_costs_is_known_and_is_half_where_it_is_fed() -> None:
    assert _sent(10_000, 0.5, 0.000_001, turns=9).cost.seconds == pytest.approx(
        0.000_000_5, rel=0.1
    )
    assert _sent(10_000, 2.0, 0.000_01, turns=9).cost.seconds == pytest.approx(0.000_01, rel=0.1)


def test_rows_that_the_server_would_gather_for_long_are_sent_by_short_copies() -> None:
    """It adds those of a COPY that is fed by the thousand: at 2 500 rows/s so many would come together."""
    server = _sent(7_500, 3.0, 0.000_001, turns=2)
    assert server.fed == []
    assert max(server.short) <= 250


def test_rows_that_take_long_are_fed_in_several_copies() -> None:
    server = _sent(75_000, 3.0, 0.000_001, turns=2)
    assert len(server.fed) == 4
    assert max(server.fed) <= 18_750


@given(
    count=st.integers(1, 3_000),
    spread=st.floats(0.0, 4.0),
    row_seconds=st.sampled_from([0.0, 0.000_001, 0.000_003, 0.000_02, 0.001]),
    turns=st.integers(1, 3),
    short_rows=st.sampled_from([0, 50, 300]),
)
def test_each_row_is_sent_once_and_in_its_order(
    count: int, spread: float, row_seconds: float, turns: int, short_rows: int
) -> None:
    server = _sent(count, spread, row_seconds, turns=turns, short_rows=short_rows)
    assert server.ids == list(range(count))
    assert sum(server.short) + sum(server.fed) == count
    for_network = math.ceil(count * min(1.0, 4 * NEAR_TRIP / spread)) if spread else 0
    assert not short_rows or max(server.short) <= max(short_rows, for_network)


@pytest.mark.parametrize("short_rows", [0, 16], ids=["any size", "in sixteen pieces"])
@pytest.mark.parametrize("row_seconds", [0.000_001, 0.000_01])
@pytest.mark.parametrize("rate", [1_000, 20_000])
@pytest.mark.parametrize("trip", [0.06, 0.1, 0.2])
def test_rows_come_in_time_however_far_the_server_is(
    trip: float, rate: int, row_seconds: float, short_rows: int
) -> None:
    """A short COPY has the more rows, the more the network takes of it; those of 4 s take no longer."""
    count, spread = 4 * rate, 0.96 * 4
    for turns in (1, 2):
        server = _sent(
            count,
            spread,
            row_seconds,
            turns=turns,
            short_rows=short_rows and count // short_rows,
            trip=trip,
        )
        assert server.ids == list(range(count))
        assert 0.7 * spread < server.took < 4.2
        assert not server.short or max(server.short) <= max(0.1, 4 * trip) * count / spread


def test_a_copy_has_a_row_at_least_before_a_turn_begins_and_in_one_without_rows() -> None:
    clock = VirtualClock()
    server = _Server(clock, 0.000_01)
    paced = PacedCopy(server, server.cost, clock)
    rows = pa.table({"id": range(100), "v": ["x" * 40] * 100})
    paced.copy(server, "s", "t", rows, _encode)
    assert server.ids == list(range(100))
    for spread in (0.0, 1.0):
        server.ids = []
        paced.begin(0, spread)
        paced.copy(server, "s", "t", rows.slice(0, 3), _encode)
        assert server.ids == [0, 1, 2]


def _writing(pg: Pg) -> PgWriteSession:
    pg.psql("CREATE TABLE t (id bigint)")
    session = PgWriteSession(pg.writer("t").options, failure=TargetError, purpose="test")
    session.execute("BEGIN")
    return session


ROWS = copy_rows(pa.record_batch({"id": pa.array(range(2_000), pa.int64())}))


def test_the_server_ends_a_copy_in_the_middle_of_which_the_process_stood_still(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its locks would be held for as long; the session counts as lost, so that the rows are sent again."""
    monkeypatch.setattr(
        "spark_channel.connectors.postgresql.session.write_session._STILL_SECONDS", 1
    )
    session = _writing(pg)
    stood: list[Any] = []

    def stand_still(sent: int) -> None:
        if not stood:
            stood.append(pg.psql("SELECT pg_sleep(1.5)"))

    with pytest.raises(TargetError, match="stood still") as caught:
        session.copy(pg.schema, "t", ROWS, stand_still)
    assert is_gone(caught.value)
    assert not session.is_open
    assert pg.psql("SELECT count(*) FROM t") == "0"


@pytest.mark.parametrize("own", ["0", "7s", "2min"])
def test_the_time_limit_of_a_copy_that_is_fed_is_taken_back(pg: Pg, own: str) -> None:
    session = _writing(pg)
    session.execute(f"SET statement_timeout = '{own}'")
    seen = []

    def look(sent: int) -> None:
        seen.append(time.monotonic())

    session.copy(pg.schema, "t", ROWS, look)
    assert len(seen) > 2
    assert session.value("SELECT current_setting('statement_timeout')") == own
    session.execute("COMMIT")
    assert pg.psql("SELECT count(*), sum(id) FROM t") == "2000|1999000"
    session.close()
