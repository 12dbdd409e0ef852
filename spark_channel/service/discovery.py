"""Lets processes of one user on one host find a service, by files with mode 0600 in a private directory.

An advert holds the token, so the directory is 0700 and ours, nothing follows a symbolic link, and a file with
other owners or modes is none. All changes are made under a lock on the directory itself, by compare-
and-swap on the advert's nonce, so that two starters and a stopping service cannot undo each other.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from spark_channel.errors import ServiceUnavailableError
from spark_channel.plain_text import log_of
from spark_channel.processes import alive, pid_namespace, started
from spark_channel.serialization import Strict, from_plain, to_plain
from spark_channel.service import advert_remover
from spark_channel.service.protocol import ServiceAddress

__all__ = [
    "LARGEST_FILE",
    "ServiceDirectory",
    "ServiceRecord",
    "advert_name",
    "bare_environment",
    "keep_clean",
    "private_directory",
    "read_private",
    "write_private",
]


_NEEDED = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "PATH",
        "PYTHONHOME",
        "PYTHONUTF8",
        "TMPDIR",
        "TZ",
        "TZDIR",
        "VIRTUAL_ENV",
        "XDG_RUNTIME_DIR",
    }
)
_log = log_of(__name__)
LARGEST_FILE = 64 << 10
_LOCK_SECONDS = 5.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def bare_environment() -> dict[str, str]:
    """Return only the environment variables that a service process needs to start.

    A job's environment holds credentials (`PG*`, `AWS_*`, those that Spark passes to its workers). A process that
    outlives the call does not need them, and `/proc` shows them for as long as it runs.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _NEEDED or name.startswith("LC_")
    }


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One service: its address, its process, and the process whose end is its own (pid and `started`).

    `grant_seconds`: none of its grants outlives its own end for longer.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict

    address: ServiceAddress
    service_pid: int
    service_started: str
    watch_pid: int
    watch_started: str
    nonce: str
    namespace: str
    grant_seconds: float = 1.0

    @classmethod
    def of_this_process(
        cls, address: ServiceAddress, watch_pid: int, watch_started: str
    ) -> "ServiceRecord":
        pid = os.getpid()
        return cls(
            address,
            pid,
            started(pid) or "",
            watch_pid,
            watch_started,
            secrets.token_hex(8),
            pid_namespace(),
        )

    @property
    def live(self) -> bool:
        """Whether both processes run. True for another pid namespace, whose processes cannot be seen."""
        return self.namespace != pid_namespace() or (
            alive(self.service_pid, self.service_started)
            and alive(self.watch_pid, self.watch_started)
        )

    def to_json(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_json(cls, data: object) -> "ServiceRecord":
        """Read what `to_json` made; `ValueError` when it is something else."""
        return from_plain(cls, data, "an advert")


def advert_name(watch_pid: int) -> str:
    """The file of the service that ends with process `watch_pid`."""
    return f"driver-{watch_pid}.{pid_namespace()}.json"


def private_directory() -> Path:
    """The directory of adverts, made with mode 0700 when it is missing.

    `$XDG_RUNTIME_DIR/spark-channel` where that variable names a directory that only this user can open, else
    `spark-channel-UID` among the temporary files, else, if another user made that one, a directory in this user's home.

    Raises:
        ServiceUnavailableError: it exists, but is open to others, or is a link; or another user's, without a home.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_absolute() and _is_private(Path(runtime)):
        path = Path(runtime) / "spark-channel"
    else:
        path = Path(tempfile.gettempdir()) / f"spark-channel-{os.geteuid()}"
    if _is_of_another(path):
        instead = _in_home()
        if instead is not None and path not in _warned_of:
            _warned_of.add(path)
            _log.warning(
                "%s belongs to another user, who may have made it to be in the way, so %s is used. Have it removed, or "
                "set XDG_RUNTIME_DIR or TMPDIR for all processes of this user",
                path,
                instead,
            )
        if instead is not None:
            return instead
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ServiceUnavailableError(
            f"the directory {path} cannot be made: {error.strerror}"
        ) from None
    if not _is_private(path):
        raise ServiceUnavailableError(
            f"{path} is not a directory of this user alone (mode 0700); "
            "remove it, or set XDG_RUNTIME_DIR or TMPDIR"
        )
    return path


_warned_of: set[Path] = set()


def _is_of_another(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def _in_home() -> Path | None:
    """A private directory of this user on this host; None = there is none, or nothing can be written there."""
    try:
        path = Path.home() / ".spark_channel" / f"run-{socket.gethostname()}"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return path if _is_private(path) else None


def _is_private(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o077
    )


class ServiceDirectory:
    """The adverts in one private directory. Each call opens what it needs and leaves nothing open."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or private_directory()

    def read(self, name: str) -> ServiceRecord | None:
        """The advert in file `name`; None when there is none, or nothing that can be trusted."""
        with self._opened() as directory:
            return _read(directory, name)

    def names(self) -> list[str]:
        """The files of all adverts."""
        with self._opened() as directory:
            return sorted(name for name in _files(directory) if name.endswith(".json"))

    def publish(
        self, name: str, advert: ServiceRecord, *, replace: str | None = None
    ) -> ServiceRecord:
        """Publish `advert`, unless another live one exists whose nonce is not `replace`.

        Returns the advert that is published now. Adverts of processes that have ended are removed.

        Raises:
            ServiceUnavailableError: the directory cannot be written to.
        """
        try:
            return self._publish(name, advert, replace)
        except OSError as error:
            raise ServiceUnavailableError(
                f"the file by which a service is found cannot be written to {self.directory}: {error.strerror}. Free "
                "space there, or set XDG_RUNTIME_DIR to another private directory"
            ) from None

    def _publish(self, name: str, advert: ServiceRecord, replace: str | None) -> ServiceRecord:
        with self._locked() as directory:
            _sweep(directory)
            before = _read(directory, name)
            if before is not None and before.live and before.nonce not in (replace, advert.nonce):
                return before
            write_private(directory, name, f".{name}.{advert.nonce}", advert.to_json())
            return advert

    def withdraw(self, name: str, nonce: str) -> None:
        """Remove file `name` if it still holds the advert with this nonce."""
        with self._locked() as directory:
            standing = _read(directory, name)
            if standing is not None and standing.nonce == nonce:
                _remove(directory, name)

    def plain(self, name: str) -> Any:
        """What `change` has written to file `name`; None = nothing that can be trusted."""
        with self._opened() as directory:
            return read_private(directory, name, LARGEST_FILE)

    def change(self, name: str, change: Callable[[Any], object]) -> None:
        """Replace the JSON in file `name`, which is no advert, by what `change` makes of it, under the lock.

        Raises:
            OSError, ServiceUnavailableError: the directory cannot be written to.
        """
        with self._locked() as directory:
            content = change(read_private(directory, name, LARGEST_FILE))
            write_private(directory, name, f".driver-{name}.{secrets.token_hex(8)}", content)

    def hold(self, name: str) -> int | None:
        """Lock file `name` for as long as this process lives; None while another process holds it.

        Pids say nothing across containers that share the directory; the kernel's lock ends with its process
        wherever that ran. Give the descriptor back with `release`.
        """
        with self._opened() as directory:
            while True:
                descriptor = os.open(name, _LOCK_FILE, 0o600, dir_fd=directory)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_file(directory, name, descriptor):
                        return descriptor
                except BlockingIOError:
                    os.close(descriptor)
                    return None
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # its last holder removed it just now

    def release(self, name: str, descriptor: int) -> None:
        """End `hold`, and remove the file."""
        try:
            with self._opened() as directory:
                if _is_file(directory, name, descriptor):
                    _remove(directory, name)
        except OSError:
            pass  # the directory is gone
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self.directory, _READ | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self.directory, _READ | os.O_DIRECTORY)
        if not _lock(descriptor):
            raise ServiceUnavailableError(
                f"another process holds the lock on {self.directory} for more than {_LOCK_SECONDS:g} s"
            )
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open directory, which closing unlocks; False (and closed, in time) after 5 s."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return True
    # flock has no timeout. A holder keeps it for microseconds, unless it was stopped right there.
    guard = threading.Lock()
    locked, given_up = threading.Event(), False

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with guard:
            if given_up:
                os.close(descriptor)
            else:
                locked.set()

    threading.Thread(target=wait, name="spark-channel-lock", daemon=True).start()
    if locked.wait(_LOCK_SECONDS):
        return True
    with guard:
        given_up = not locked.is_set()
        return not given_up


def _read(directory: int, name: str) -> ServiceRecord | None:
    plain = read_private(directory, name, LARGEST_FILE)
    try:
        return None if plain is None else ServiceRecord.from_json(plain)
    except ValueError:
        return None


def read_private(directory: int, name: str, largest: int) -> Any:
    """The JSON in a file of an open directory; None = no file that only this user can write, or a larger one."""
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            return None
        data = file.read(largest + 1)
    try:
        return json.loads(data) if len(data) <= largest else None
    except ValueError:
        return None


def write_private(directory: int, name: str, temporary: str, plain: object) -> None:
    """Write `plain` as JSON to a file of an open directory in one step, by way of the file `temporary`."""
    descriptor = os.open(temporary, _CREATE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(json.dumps(plain))  # `json.dump` is a loop in Python, ten times as slow
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _sweep(directory: int) -> None:
    """Remove the files of killed processes: their adverts, and partly written ones."""
    for name in _files(directory):
        if name.startswith("driver-"):
            advert = _read(directory, name)
            dead = advert is not None and not advert.live
        else:
            dead = name.startswith(".driver-")
        if dead:
            _remove(directory, name)


def _is_file(directory: int, name: str, descriptor: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(status, os.fstat(descriptor))


def _files(directory: int) -> list[str]:
    return os.listdir(directory)


def _remove(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def keep_clean(directory: Path, name: str, advert: ServiceRecord) -> None:
    """Remove file `name` once the service, or the process that it watches, is gone.

    Another advert that is there by then is left alone.
    """
    process = subprocess.Popen(  # noqa: S603 - this package's program, by the interpreter that runs this
        [sys.executable, "-I", "-S", "-c", _program()],
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


def _program() -> str:
    """The text of `advert_remover`: as a text it is small to run, also where this package is inside a zip."""
    source = advert_remover.__loader__.get_source(advert_remover.__name__)  # type: ignore[union-attr] # files and zips
    if source is None:
        raise ImportError(
            f"{advert_remover.__name__} is installed without its .py file, which is read at run time: "
            "install the wheel again, without removing the sources"
        )
    return str(source)
