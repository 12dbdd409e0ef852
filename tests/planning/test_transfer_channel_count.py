from typing import Any

import pytest

from spark_channel.errors import OptionError
from spark_channel.planning import TransferSpec, advise, channel_count, plan_channels, split_advice
from spark_channel.planning.transfer import Endpoint


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, None),
        ({"channels": 7}, 7),
        ({"bytes_per_second": 1000, "channel_bytes_per_second": 100}, 10),
        ({"bytes_per_second": 1999, "channel_bytes_per_second": 1000}, 1),
        ({"bytes_per_second": 10, "channel_bytes_per_second": 1000}, 1),
        ({"rows_per_second": 1000, "channel_rows_per_second": 300}, 3),
        (
            {
                "rows_per_second": 1000,
                "channel_rows_per_second": 100,
                "bytes_per_second": 400,
                "channel_bytes_per_second": 100,
            },
            4,
        ),
        ({"rows_per_second": 1000, "channel_rows_per_second": 100, "channels": 3}, 10),
        ({"rows_per_second": 1000, "channels": 3}, 3),
        ({"rows_per_second": 1000}, None),
        ({"channel_rows_per_second": 1000}, None),
        ({"rows_per_second": 1000, "channel_bytes_per_second": 10}, None),
    ],
)
def test_limits_win_over_channels_and_the_smaller_limit_wins(
    asked: dict[str, int], count: int | None
) -> None:
    assert channel_count(**asked) == count


@pytest.mark.parametrize("bad", [0, -1, "two", 1.5, True])
@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("channels", "channels"),
        ("rows_per_second", "rowsPerSecond"),
        ("bytes_per_second", "bytesPerSecond"),
        ("channel_rows_per_second", "channelRowsPerSecond"),
        ("channel_bytes_per_second", "channelBytesPerSecond"),
    ],
)
def test_what_is_no_whole_number_of_one_or_more_is_refused(
    argument: str, option: str, bad: Any
) -> None:
    with pytest.raises(OptionError, match="whole number of 1 or more") as caught:
        channel_count(**{argument: bad})
    assert caught.value.option == option
    assert caught.value.got == str(bad)


@pytest.mark.parametrize(
    ("wanted", "parallelism", "tasks", "channels"),
    [
        (None, 8, None, 8),
        (None, 8, 3, 3),
        (4, 8, 100, 4),
        (4, 8, 2, 2),
        (4, 8, 0, 1),
        (10**9, 8, None, 100_000),
    ],
)
def test_channels_are_capped_at_the_tasks(
    wanted: int | None, parallelism: int, tasks: int | None, channels: int
) -> None:
    assert plan_channels(wanted, parallelism, tasks) == channels


def test_a_reader_is_asked_for_five_splits_a_channel() -> None:
    assert split_advice(4) == 20


def test_a_tiny_channel_limit_does_not_ask_for_a_billion_splits() -> None:
    spec = TransferSpec(
        Endpoint("generator"),
        Endpoint("discard"),
        rows_per_second=2**63 - 1,
        channel_rows_per_second=1,
    )
    assert advise(spec, parallelism=2) == 500_000
