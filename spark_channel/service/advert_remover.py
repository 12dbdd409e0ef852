"""A separate program: it removes an advert when one of the processes that it names has ended.

`discovery` runs the text of this file in an interpreter without any package, so it uses the standard library alone. Its
work is JSON on stdin: `directory`, the file's `name` in it, the advert's `nonce`, and `pids`.
"""

import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any

_POLL_SECONDS = 5.0
_LOOK_MILLISECONDS = 60_000
"""How often a process that runs on is left to itself, if its advert has been removed."""


def main() -> None:
    """In a separate child process, so that its starter does not wait: remove the file at the end of a process."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work = json.load(sys.stdin)
    directory = os.open(work["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.chdir("/")
    name, nonce, pids = work["name"], work["nonce"], work["pids"]
    wait_until_one_is_gone(directory, name, nonce, pids)
    fcntl.flock(directory, fcntl.LOCK_EX)
    if is_there(directory, name, nonce):
        os.unlink(name, dir_fd=directory)


def wait_until_one_is_gone(directory: int, name: str, nonce: str, pids: list[int]) -> None:
    """Sleep on pidfds while the advert is there; where the system has none, look at each process."""
    try:
        poll = select.poll()
        for pid in pids:
            poll.register(os.pidfd_open(pid), select.POLLIN)
        while not poll.poll(_LOOK_MILLISECONDS) and is_there(directory, name, nonce):
            pass
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        while is_there(directory, name, nonce) and not any(is_gone(pid) for pid in pids):
            time.sleep(_POLL_SECONDS)


def is_there(directory: int, name: str, nonce: str) -> bool:
    """Whether the file is the advert that this process was started for, and no later one."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            nonce_of_file: Any = json.load(file)["nonce"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(nonce_of_file == nonce)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


if __name__ == "__main__":
    main()
