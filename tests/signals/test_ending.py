"""SIGTERM ends a program also while its main thread is in a call that no signal ends, as of a database driver."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.signals import ending, ending_on_sigterm

PROGRAM = """
import os, queue, signal, sqlite3, sys, threading
from spark_channel.signals import ending, ending_on_sigterm

ending._END_SECONDS = 0.3
begun = queue.SimpleQueue()

def leave():
    if sys.argv[2:] == ["fails"]:
        raise RuntimeError("can't start new thread")

def terminate():
    for _ in range(begun.get()):
        os.kill(os.getpid(), signal.SIGTERM)

connection = sqlite3.connect(":memory:")
connection.create_function("begun", 1, begun.put)  # no line of Python, in which a signal would be heard
threading.Thread(target=terminate).start()
try:
    with ending_on_sigterm(leave):
        if sys.argv[1] == "stuck":
            connection.execute(
                "WITH RECURSIVE n (x) AS (SELECT begun(3) UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"
            )
        begun.put(1)
        threading.Event().wait()
except SystemExit:
    print("raised", flush=True)
threading.Event().wait(3 * ending._END_SECONDS)
print("went on", flush=True)
"""


def _run(*how: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, *how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("leave", ["succeeds", "fails"])
def test_a_program_whose_main_thread_is_stuck_in_a_call_is_ended(leave: str) -> None:
    done = _run("stuck", leave)
    assert (done.returncode, done.stdout) == (143, "")
    assert "SIGTERM has ended the program while a server did not answer" in done.stderr


def test_a_file_that_has_the_number_of_the_standard_error_gets_no_message(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    opened = f"import os\nassert os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY) == 2\n"
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", opened + PROGRAM, "stuck"]
    done = subprocess.run(shell, timeout=60, check=False)
    assert (done.returncode, file.read_bytes()) == (143, b"")


@pytest.mark.parametrize("leave", ["succeeds", "fails"])
def test_a_program_that_has_caught_the_end_of_its_job_goes_on(leave: str) -> None:
    done = _run("caught", leave)
    assert (done.returncode, done.stdout) == (0, "raised\nwent on\n"), done.stderr


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What `leave` and the watchdog did. A session of Spark in this process has a handler, which is put back."""
    done = list[str]()
    monkeypatch.setattr(ending, "_heard", [])
    monkeypatch.setattr(ending, "_shorten_exit", lambda: None)
    monkeypatch.setattr(ending, "_exit", lambda _: done.append("cut off"))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield done
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_jobs_of_other_threads_go_on_after_an_end_that_a_caller_may_catch(
    left: list[str], error: type[BaseException]
) -> None:
    def end() -> None:
        if error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        raise error

    with pytest.raises(error), ending_on_sigterm(lambda: left.append("left")):
        end()
    assert left == []


@pytest.mark.parametrize("shown", [None, KeyboardInterrupt, ValueError])
def test_what_threads_still_do_is_ended_after_sigterm_whatever_error_shows_it(
    left: list[str], shown: type[BaseException] | None
) -> None:
    def heard() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            if shown is None:
                raise
            raise shown from None

    with pytest.raises(shown or SystemExit), ending_on_sigterm(lambda: left.append("left")):
        heard()
    assert left == ["left"]


def test_a_block_that_has_ended_is_not_cut_off_while_it_is_left(
    left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_END_SECONDS", 0.3)

    def leave() -> None:
        threading.Event().wait(0.6)
        left.append("left")

    with pytest.raises(SystemExit), ending_on_sigterm(leave):
        signal.raise_signal(signal.SIGTERM)
    assert left == ["left"]
