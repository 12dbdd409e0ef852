"""What SIGTERM does to a program whose main thread waits in a call of Spark; without Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_channel.spark import session

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = ROOT / "docs" / "operations.md"
BEGIN = """
import atexit, os, signal, sys, threading, time
from types import SimpleNamespace
from spark_channel.signals import SigtermHandler
from spark_channel.spark import session

cancelled, never = threading.Event(), threading.Event()
active = [1]

class Query:
    def stop(self):
        active.clear()
        cancelled.set()

context = SimpleNamespace(
    cancelAllJobs=cancelled.set,
    statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: active),
)
spark = SimpleNamespace(streams=SimpleNamespace(active=[]), sparkContext=context)
atexit.register(print, "cleaned up", flush=True)

def call(hangs=False):
    os.kill(os.getpid(), signal.SIGTERM)
    assert cancelled.wait(20)
    if hangs:
        never.wait(60)
    print("rolled back", flush=True)
    raise RuntimeError("JOB_CANCELLED")

"""
CATCHES = """
try:
    call()
except RuntimeError:
    print("caught", flush=True)
"""
ROLLED_BACK = "rolled back\ncleaned up\n"
CAUGHT = "rolled back\ncaught\ncleaned up\n"


def run(work: str, *, grace: float = 8.0) -> "subprocess.CompletedProcess[str]":
    begin = f"session._GRACE_SECONDS = {grace}\nsession.end_on_sigterm(spark)\n"
    return subprocess.run(
        [sys.executable, "-c", BEGIN + begin + work],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("work", "shown"),
    [
        pytest.param("call()", ROLLED_BACK, id="the error ends the program"),
        pytest.param(CATCHES, CAUGHT, id="it is caught"),
        pytest.param(f"{CATCHES}\nsys.exit(0)", CAUGHT, id="it is caught and called a success"),
    ],
)
def test_the_program_ends_with_143_whatever_it_makes_of_the_error(work: str, shown: str) -> None:
    done = run(work, grace=40)
    assert (done.returncode, done.stdout) == (143, shown), done.stderr


@pytest.mark.parametrize(
    "work",
    [
        pytest.param("call(hangs=True)", id="the call hangs"),
        pytest.param(f"{CATCHES}\nnever.wait(60)", id="the program continues"),
    ],
)
def test_a_program_that_does_not_end_is_ended_after_the_grace(work: str) -> None:
    done = run(work, grace=0.5)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (143, "cleaned up"), done.stderr


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("active.clear()", id="nothing runs"),
        pytest.param("spark.streams.active.append(Query())", id="queries alone ran"),
    ],
)
def test_a_program_without_jobs_is_ended_at_once(left: str) -> None:
    work = f"{left}\nos.kill(os.getpid(), signal.SIGTERM)\nnever.wait(60)\nprint('went on')"
    done = run(work, grace=40)
    assert (done.returncode, done.stdout) == (143, "cleaned up\n"), done.stderr


def test_a_write_that_publishes_without_a_job_has_the_grace() -> None:
    work = """
live = [SimpleNamespace(spec=SimpleNamespace(query=""))]
session._services[1] = SimpleNamespace(jobs=SimpleNamespace(live=lambda: live))
active.clear()
os.kill(os.getpid(), signal.SIGTERM)
assert cancelled.wait(20)
never.wait(0.5)
print("published", flush=True)
"""
    done = run(work, grace=40)
    assert (done.returncode, done.stdout) == (143, "published\ncleaned up\n"), done.stderr


def test_the_grace_does_not_wait_for_a_query_that_cannot_be_stopped() -> None:
    stuck = "spark.streams.active.append(SimpleNamespace(stop=lambda: never.wait(60)))"
    done = run(f"{stuck}\nos.kill(os.getpid(), signal.SIGTERM)\nnever.wait(60)", grace=0.5)
    assert (done.returncode, done.stdout) == (143, "cleaned up\n"), done.stderr


def test_the_grace_leaves_a_second_of_the_five_that_the_docs_promise() -> None:
    row = next(line for line in OPERATIONS.read_text().splitlines() if "called `register`" in line)
    assert "within 5 s" in row
    assert session._GRACE_SECONDS <= 4


def test_a_handler_of_the_programs_own_stays() -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nsession.end_on_sigterm(spark)"
    done = run(f"{own}\nos.kill(os.getpid(), signal.SIGTERM)\nnever.wait(60)")
    assert (done.returncode, done.stdout) == (7, "cleaned up\n"), done.stderr


def test_a_tunnel_that_is_consumed_has_the_signal_for_as_long() -> None:
    done = run(
        """
ours = signal.getsignal(signal.SIGTERM)
with SigtermHandler(lambda: print("stopped", flush=True)) as sigterm:
    os.kill(os.getpid(), signal.SIGTERM)
assert sigterm.came
assert signal.getsignal(signal.SIGTERM) == ours
"""
    )
    assert (done.returncode, done.stdout) == (0, "stopped\ncleaned up\n"), done.stderr
