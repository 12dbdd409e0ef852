"""An attempt shows that its run lives, from its own thread, until it ends or is forgotten."""

import gc
import threading

from spark_channel.connectors.sql.write_protocol import HeartbeatThread
from spark_channel.errors import TargetError
from spark_channel.testing import VirtualClock


def _thread() -> threading.Thread:
    return [each for each in threading.enumerate() if each.name == "spark-channel-life"][-1]


def test_life_is_shown_at_every_beat_until_the_end() -> None:
    clock = VirtualClock()
    shown: list[float] = []

    def show() -> None:
        shown.append(clock.now())
        if len(shown) == 2:
            raise TargetError("the database is away")

    sign = HeartbeatThread(show, seconds=3600, clock=clock)
    thread = _thread()
    clock.wait_until_blocked(thread)
    for _ in range(3):
        clock.advance(3600)
        clock.wait_until_blocked(thread)
    sign.end()
    sign.end()
    assert not thread.is_alive()
    clock.advance(7200)
    assert shown == [3600, 7200, 10800]


def test_an_attempt_that_is_forgotten_shows_no_life() -> None:
    sign = HeartbeatThread(lambda: None, seconds=3600)
    thread = _thread()
    del sign
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
