"""A server of the tests' own, as a process that listens on a port of 127.0.0.1."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

__all__ = ["process_at_port"]

_START_SECONDS = 60.0


@contextmanager
def process_at_port(
    command: list[str],
    port: int,
    environment: Mapping[str, str] | None = None,
    *,
    seconds: float = _START_SECONDS,
) -> Iterator[None]:
    """Until the end, with all processes that it started; `environment` is added to that of the tests.

    Raises:
        RuntimeError: it ended, or does not listen within `seconds`.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=None if environment is None else {**os.environ, **environment},
    )
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    how = (
                        "has not ended"
                        if process.returncode is None
                        else f"ended with {process.returncode}"
                    )
                    raise RuntimeError(
                        f"{command[0]} does not listen on port {port}: it {how}"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        with suppress(ProcessLookupError):  # it ended, with all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
