"""The second payment, for rows that are added to a target."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.channel import Limiter, Wait
from spark_channel.errors import ServiceUnavailableError, SourceError
from spark_channel.limits import RateLimiter
from spark_channel.pipeline.target_payer import TargetPayer
from spark_channel.testing import VirtualClock


class _Jumps(VirtualClock):
    """A wait takes no time."""

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.advance(timeout)
        return False


def test_rows_pass_at_the_limit_whatever_pieces_they_come_in() -> None:
    clock = _Jumps()
    payer = TargetPayer(lambda: RateLimiter(1_000, clock=clock), clock=clock)
    admits = [payer.admission(2_000, 16_000), payer.admission(1_000, 8_000)]
    for _ in range(10):
        for admit in admits:
            assert admit is not None
            admit(0.1)
    assert clock.now() == pytest.approx(3.0, abs=0.03)


def test_both_dimensions_are_paid_in_slices_and_whole() -> None:
    limiter = _Noted((100, 1_000))
    admit = TargetPayer(lambda: limiter).admission(1_000, 64_000)
    assert admit is not None
    for _ in range(3):
        admit(1 / 3)
    assert (sum(rows for rows, _ in limiter.paid), sum(b for _, b in limiter.paid)) == (
        1_000,
        64_000,
    )
    assert max(rows for rows, _ in limiter.paid) <= 100
    assert max(nbytes for _, nbytes in limiter.paid) <= 1_001  # rounded up


@pytest.mark.parametrize("why", ["slow", "silent"])
def test_the_rows_of_a_task_wait_four_seconds_in_all(why: str) -> None:
    """In a pause, too: their transaction is open."""
    clock = _Jumps()
    limiter: Any = RateLimiter(10, clock=clock) if why == "slow" else _Noted((1, None), None)
    admit = TargetPayer(lambda: limiter, clock=clock).admission(1_000, 8_000)
    assert admit is not None
    assert admit(0.01) or why == "slow"
    for _ in range(99):
        admit(0.01)
    assert clock.now() == pytest.approx(4.0, abs=0.01)


def test_a_limiter_that_fails_holds_nothing_up() -> None:
    class Broken(_Noted):
        def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Any:
            super().pay(rows, nbytes, wake)
            raise ServiceUnavailableError("gone")

    limiter = Broken((None, None))
    admit = TargetPayer(lambda: limiter).admission(10, 80)
    assert admit is not None
    admit(0.5)
    admit(0.5)
    assert len(limiter.paid) == 1


def test_without_a_limit_nothing_is_asked_for_and_its_limiter_is_made_once() -> None:
    made: list[None] = []
    payer = TargetPayer(lambda: made.append(None))
    assert payer.admission(1, 1) is None
    assert payer.admission(1, 1) is None
    assert made == [None]


def test_a_group_that_fails_ends_the_wait() -> None:
    clock = VirtualClock()
    payer = TargetPayer(lambda: _Noted((1, None), None), clock=clock)
    admit = payer.admission(1, 8)
    seen: list[BaseException] = []

    def wait() -> None:
        assert admit is not None
        try:
            admit(1.0)
        except SourceError as error:
            seen.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    clock.wait_until_blocked(thread)
    error = SourceError("gone")
    payer.cancel(error)
    thread.join(30)
    assert seen == [error]


class _Noted(Limiter):
    """Notes what is paid; its answer is always `seconds`."""

    def __init__(self, sizes: tuple[int | None, int | None], seconds: float | None = 0.0) -> None:
        self.sizes, self.seconds = sizes, seconds
        self.paid: list[tuple[int, int]] = []

    def slice_size(self) -> tuple[int | None, int | None]:
        return self.sizes

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Any:
        self.paid.append((rows, nbytes))
        return self

    def remaining(self) -> Wait:
        return Wait(self.seconds)

    def cancel(self) -> None:
        pass
