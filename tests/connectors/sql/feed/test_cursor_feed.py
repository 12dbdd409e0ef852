"""Row widths are measured now and then."""

import pickle

from spark_channel.connectors.sql.feed.row_width import RowWidth
from spark_channel.testing import VirtualClock


def test_a_width_is_measured_once_a_minute() -> None:
    clock, asked = VirtualClock(), []

    def measure() -> int:
        asked.append(clock.now())
        return 10 * len(asked)

    width = RowWidth(clock)
    found = []
    for _ in range(130):
        found.append(width.measured(measure))
        clock.advance(1)
    assert len(asked) == 3
    assert list(dict.fromkeys(found)) == [10, 20, 30]
    assert pickle.loads(pickle.dumps(width)).measured(lambda: 7) == 7, "a copy measures for itself"
