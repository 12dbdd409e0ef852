"""What SIGTERM does to a call of Spark that the main thread waits in; without Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, signal, sys, threading
from types import SimpleNamespace
from spark_channel.spark import terminated

cancelled = threading.Event()
context = SimpleNamespace(cancelAllJobs=cancelled.set)
spark = SimpleNamespace(streams=SimpleNamespace(active=[]), sparkContext=context)
call = {"__name__": "py4j.java_gateway", "cancelled": cancelled, "os": os, "signal": signal}
exec('''
def send():
    os.kill(os.getpid(), signal.SIGTERM)
    assert cancelled.wait(20)
    print("rolled back", flush=True)
    %s
''', call)
terminated.end_on_sigterm(spark)
try:
    call["send"]()
    print("went on", flush=True)
except RuntimeError:
    print("caught", flush=True)
print("went on", flush=True)
"""


@pytest.mark.parametrize("end", ["return 1", "raise RuntimeError('JOB_CANCELLED')"])
def test_the_call_ends_in_its_own_time_and_the_program_right_after_it(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % end],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (143, "rolled back\n"), done.stderr


def test_a_call_that_does_not_return_is_left_after_the_grace() -> None:
    program = PROGRAM.replace(
        "assert cancelled.wait(20)", "import threading; threading.Event().wait(60)"
    )
    begin = "terminated.end_on_sigterm(spark)"
    program = program.replace(begin, f"terminated._GRACE_SECONDS = 0.5\n{begin}")
    done = subprocess.run(
        [sys.executable, "-c", program % "pass"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (143, ""), done.stderr


def test_a_tunnel_that_is_consumed_has_the_signal_for_as_long() -> None:
    program = """
import os, signal, sys
from types import SimpleNamespace
from spark_channel.spark import terminated
from spark_channel.signals import Sigterm

terminated.end_on_sigterm(SimpleNamespace())
ours = signal.getsignal(signal.SIGTERM)
with Sigterm(lambda: print("stopped", flush=True)) as sigterm:
    os.kill(os.getpid(), signal.SIGTERM)
assert sigterm.came
assert signal.getsignal(signal.SIGTERM) == ours
print("done", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "stopped\ndone\n"), done.stderr
