"""How many rows a short statement asks for, by what the ones before it took."""

from spark_channel.connectors.sql.keyset import StatementSize
from spark_channel.connectors.sql.session import BatchSize

MOST = BatchSize(10_000, 1_000_000)


def _run(size: StatementSize, row_seconds: float, *, empty: float = 0.0, times: int = 20) -> int:
    for _ in range(times):
        size.took(size.rows, size.rows, size.rows * 100, empty + size.rows * row_seconds)
    return size.rows


def test_it_begins_with_what_may_be_fetched_at_once() -> None:
    assert StatementSize(MOST, 0, seconds=5.0).rows == 10_000
    assert StatementSize(MOST, 1_000, seconds=5.0).rows == 1_000


def test_a_statement_lasts_no_longer_than_it_may() -> None:
    assert _run(StatementSize(MOST, 0, seconds=5.0), 0.01) * 0.01 <= 2.5
    assert _run(StatementSize(MOST, 0, seconds=5.0), 60.0) == 1


def test_it_grows_again_when_the_server_is_faster() -> None:
    size = StatementSize(MOST, 0, seconds=5.0)
    assert _run(size, 0.1) < 100
    assert _run(size, 0.00001) == 10_000


def test_rows_wider_than_expected_are_fewer() -> None:
    size = StatementSize(MOST, 100, seconds=5.0)
    size.took(10_000, 10_000, 10_000 * 10_000, 0.1)
    assert size.rows == 200  # 1 MB of half of what a row has


def test_a_server_works_for_one_burst_at_a_time() -> None:
    """20 us a row: 5 ms are 250 rows, less often than it is cheap to ask."""
    size = StatementSize(MOST, 0, seconds=5.0, burst_seconds=0.005)
    assert _run(size, 0.000002) == 2_500
    assert _run(StatementSize(MOST, 0, seconds=5.0, burst_seconds=0.005), 0.00002) == 10_000 // 32


def test_the_way_to_the_server_is_not_its_work() -> None:
    far = StatementSize(MOST, 0, seconds=5.0, burst_seconds=0.005, empty_seconds=0.05)
    assert _run(far, 0.000002, empty=0.05) in range(2_490, 2_511)


def test_a_statement_of_few_rows_does_not_say_what_a_row_costs() -> None:
    size = StatementSize(MOST, 0, seconds=5.0, burst_seconds=0.005, empty_seconds=0.001)
    assert _run(size, 0.000002, empty=0.001) in range(2_490, 2_511)
    size.took(size.rows, 3, 300, 0.001_000_03)
    size.took(size.rows, 3, 300, 0.000_9)
    assert size.rows in range(2_490, 2_511)


def test_a_busy_server_is_not_asked_more_often() -> None:
    """The least that was seen counts: fewer rows a statement are more statements."""
    size = StatementSize(MOST, 0, seconds=5.0, burst_seconds=0.005)
    _run(size, 0.000002)
    size.took(size.rows, size.rows, size.rows * 100, 0.5)
    assert size.rows == 2_500


def test_what_a_time_limit_ended_is_not_asked_for_again() -> None:
    size = StatementSize(MOST, 0, seconds=5.0)
    size.ended(10_000, 0)
    assert size.rows == 2_500
    assert _run(size, 0.00001) == 5_000
    size.ended(5_000, 800)
    assert size.rows == 800
    assert _run(size, 0.00001) == 800
    size.ended(1, 0)
    assert size.rows == 1
