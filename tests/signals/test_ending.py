"""SIGTERM ends a program also while its main thread is in a call that no signal ends, as of a database driver."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, queue, signal, sqlite3, sys, threading
from spark_channel.signals import ending, ending_on_sigterm

ending._END_SECONDS = 0.3
begun = queue.SimpleQueue()

def terminate():
    for _ in range(begun.get()):
        os.kill(os.getpid(), signal.SIGTERM)

connection = sqlite3.connect(":memory:")
connection.create_function("begun", 1, begun.put)  # no line of Python, in which a signal would be heard
threading.Thread(target=terminate).start()
try:
    with ending_on_sigterm():
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


def _run(how: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_whose_main_thread_is_stuck_in_a_call_is_ended() -> None:
    done = _run("stuck")
    assert (done.returncode, done.stdout) == (143, "")
    assert "SIGTERM has ended the program while a server did not answer" in done.stderr


def test_a_file_that_has_the_number_of_the_standard_error_gets_no_message(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    opened = f"import os\nassert os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY) == 2\n"
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", opened + PROGRAM, "stuck"]
    done = subprocess.run(shell, timeout=60, check=False)
    assert (done.returncode, file.read_bytes()) == (143, b"")


def test_a_program_that_has_caught_the_end_of_its_job_goes_on() -> None:
    done = _run("caught")
    assert (done.returncode, done.stdout) == (0, "raised\nwent on\n"), done.stderr
