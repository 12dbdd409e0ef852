"""A signal that the system gives to another thread ends what the main thread waits for."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import queue, signal, sys, threading
from spark_channel.signals import wake_on_signals, woken_by_signals

class CameError(Exception):
    pass

def came(number, frame):
    raise CameError

news, waits, again = queue.SimpleQueue(), threading.Event(), queue.SimpleQueue()

def other():
    while (number := again.get()) is not None:
        waits.wait()
        signal.pthread_kill(threading.get_ident(), number)

thread = threading.Thread(target=other)
thread.start()
signal.signal(signal.SIGTERM, came)
signal.signal(signal.SIGINT, came)

def interrupted(number):
    again.put(number)
    try:
        waits.set()
        news.get()
    except CameError:
        return True

def threads():
    return [each.name for each in threading.enumerate() if each.name == "spark-channel-signals"]

try:
    if sys.argv[1] == "block":
        for number in (signal.SIGTERM, signal.SIGINT) * 20:
            with woken_by_signals(), woken_by_signals():
                assert interrupted(number)
        assert not threads()
    elif sys.argv[1] == "always":
        wake_on_signals()
        wake_on_signals()
        with woken_by_signals():
            assert interrupted(signal.SIGTERM)
        assert interrupted(signal.SIGINT)
        assert len(threads()) == 1
    else:  # other code that uses a descriptor or the signal keeps it
        import os
        signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1])
        with woken_by_signals():
            assert not threads()
        assert signal.set_wakeup_fd(-1) != -1
        signal.signal(signal.SIGURG, came)
        with woken_by_signals():
            assert not threads()
        assert signal.getsignal(signal.SIGURG) is came
finally:
    again.put(None)
print("done")
"""


@pytest.mark.parametrize("how", ["block", "always", "others"])
def test_the_main_thread_wakes(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "done", done.stderr


def test_in_another_thread_nothing_changes() -> None:
    import threading

    from spark_channel.signals import wake_on_signals

    before = signal.getsignal(signal.SIGURG)
    thread = threading.Thread(target=wake_on_signals)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGURG) is before
