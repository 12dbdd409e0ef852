"""A small process that removes an advert when those it speaks of were killed."""

import json
import subprocess
import sys
from pathlib import Path

from spark_channel.service.processes import bare_environment
from spark_channel.service.rendezvous import Advert

__all__ = ["keep_clean"]

_PROGRAM = """
import os; os.fork() and os._exit(0)
import fcntl, json, select, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
work = json.load(sys.stdin)
directory = os.open(work["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
os.chdir("/")
def standing():
    try:
        with open(os.open(work["name"], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)) as file:
            return json.load(file)["nonce"] == work["nonce"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
try:
    poll = select.poll()
    for pid in work["pids"]:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.poll()
except ProcessLookupError:
    pass
except (AttributeError, OSError):
    while standing() and not any(map(gone, work["pids"])):
        time.sleep(5)
fcntl.flock(directory, fcntl.LOCK_EX)
if standing():
    os.unlink(work["name"], dir_fd=directory)
"""
"""On the standard library alone, so that it is small; it sleeps on pidfds where there are any."""


def keep_clean(directory: Path, name: str, advert: Advert) -> None:
    """Remove file `name` once the service, or the process that it watches, is gone.

    Another advert that stands there by then is left alone.
    """
    process = subprocess.Popen(  # noqa: S603 - our own program, by the interpreter that runs this
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=bare_environment(),
    )
    work = {
        "directory": str(directory),
        "name": name,
        "nonce": advert.nonce,
        "pids": [advert.service_pid, advert.watch_pid],
    }
    try:
        process.communicate(json.dumps(work).encode(), timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
