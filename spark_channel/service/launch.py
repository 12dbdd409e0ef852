"""`ensure_service`: one service per driver, found or started, from any process on the driver's host."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ChannelError, ServiceUnavailableError
from spark_channel.service.address import ServiceAddress
from spark_channel.service.cleaner import keep_clean
from spark_channel.service.control import ServiceControl
from spark_channel.service.processes import bare_environment, driver_pid, started
from spark_channel.service.rendezvous import Advert, Rendezvous, advert_name
from spark_channel.service.tls_files import TlsFiles

__all__ = ["ServiceSettings", "advertise", "ensure_service", "find_service"]

_HELLO_SECONDS = 2.0
_LARGEST_ANSWER = 4096

_PROGRAM = (
    "import os; os.fork() and os._exit(0); import runpy; "
    "runpy.run_module('spark_channel.service', run_name='__main__', alter_sys=True)"
)
"""`python -m spark_channel.service`, left to init before anything is imported that starts threads: so the
starter has no zombie, and nothing with threads is forked."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where a service binds and what it tells its clients; see `ServiceServer`."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_root: str | None = None

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_root)


def find_service(watch_pid: int | None = None) -> ServiceAddress | None:
    """The service that ends with process `watch_pid` (the driver's JVM), if one answers."""
    standing = Rendezvous().read(advert_name(driver_pid() if watch_pid is None else watch_pid))
    return standing.address if standing is not None and _answers(standing) else None


def ensure_service(
    settings: ServiceSettings | None = None, *, watch_pid: int | None = None, timeout: float = 10.0
) -> ServiceAddress:
    """The service that ends with process `watch_pid`; started, as a separate process, if none runs.

    `watch_pid` None: the driver's JVM, see `driver_pid`. Callers at the same time get the same service. It
    outlives its starter, and ends within a second of the watched process.

    Raises:
        ServiceUnavailableError: it did not start within `timeout` seconds; the message says why.
    """
    settings = settings or ServiceSettings()
    watch_pid = driver_pid() if watch_pid is None else watch_pid
    since = started(watch_pid)
    if since is None:
        raise ServiceUnavailableError(f"process {watch_pid} does not exist: no service can be started for it")
    name = advert_name(watch_pid)
    rendezvous = Rendezvous()
    standing = rendezvous.read(name)
    if standing is not None and standing.watch_started == since and _answers(standing):
        return standing.address
    replace = None if standing is None else standing.nonce
    _start({**asdict(settings), "watch_pid": watch_pid, "watch_started": since, "replace": replace}, timeout)
    standing = rendezvous.read(name)
    if standing is None or not _answers(standing):
        raise ServiceUnavailableError("the service was started, and is gone again; the driver's log says why")
    return standing.address


def advertise(address: ServiceAddress, watch_pid: int) -> Callable[[], None]:
    """Let planner workers find a service of this process under the driver's pid; returns how to take it back.

    It takes the place of any other: the last to advertise is found. A small separate process
    removes the file when the driver or this process was killed.

    Raises:
        ServiceUnavailableError: the process does not exist, or no private directory.
    """
    since = started(watch_pid)
    if since is None:
        raise ServiceUnavailableError(f"process {watch_pid} does not exist: no service can be found under it")
    name, rendezvous = advert_name(watch_pid), Rendezvous()
    advert = Advert.of_this_process(address, watch_pid, since)
    standing = rendezvous.read(name)
    rendezvous.publish(name, advert, replace=standing.nonce if standing else None)
    keep_clean(rendezvous.directory, name, advert)
    return lambda: rendezvous.withdraw(name, advert.nonce)


def _answers(advert: Advert) -> bool:
    if not advert.live:
        return False
    with ServiceControl(advert.address, timeout=_HELLO_SECONDS) as control:
        try:
            return control.hello().get("service") == "spark-channel"
        except ChannelError:
            return False


def _start(request: dict[str, Any], timeout: float) -> None:
    """Run the service's program; what it needs goes through its stdin, nothing through argv."""
    for field in ("tls_certificate", "tls_key", "tls_root"):
        if request[field] is not None:
            request[field] = str(Path(request[field]).absolute())
    path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
    process = subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs this
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**bare_environment(), "PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        answer = _read_line(process.stdout.fileno(), timeout)
    except BrokenPipeError:
        answer = b""
    finally:
        process.stdout.close()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        outcome = json.loads(answer)
    except ValueError:
        raise ServiceUnavailableError(
            f"the service did not start within {timeout:g} s; see the driver's log, and try "
            f"`{sys.executable} -c 'import spark_channel.service.server'` on its host"
        ) from None
    if "error" in outcome:
        raise ServiceUnavailableError(str(outcome["error"]))


def _read_line(descriptor: int, timeout: float) -> bytes:
    """All output up to the end of the pipe or the end of the time."""
    end = SYSTEM_CLOCK.now() + timeout
    text = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := end - SYSTEM_CLOCK.now()) > 0 and len(text) < _LARGEST_ANSWER:
        if not poll.poll(left * 1000):
            break
        part = os.read(descriptor, _LARGEST_ANSWER)
        text += part
        if not part or text.endswith(b"\n"):
            break
    return text
