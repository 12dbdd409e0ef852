"""A signal ends a command, also if what it raised was lost in a call of the JVM."""

import signal
from collections.abc import Iterator

import pytest

from spark_channel import signals
from spark_channel.signals import ending


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(ending, "_heard", [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(
    ("sent", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_an_error_after_a_signal_is_the_signals(
    sent: signal.Signals, raised: type[BaseException]
) -> None:
    signals.ending_on_signals()
    broken = KeyError("c")
    signals.raise_if_ended(broken)
    with pytest.raises(raised):
        signal.raise_signal(sent)
    with pytest.raises(raised) as met:
        signals.raise_if_ended(broken)
    assert met.value.__cause__ is broken
