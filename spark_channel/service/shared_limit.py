"""`SharedLimit`: one limit for several applications; `Probe`: lowers it while a database is overloaded."""

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, ServiceUnavailableError, SourceError
from spark_channel.limits import (
    AdaptiveLimit,
    HealthSample,
    LimitStatus,
    Pause,
    Request,
    Resume,
    SetRates,
    StatusRequest,
    UnreachablePolicy,
)
from spark_channel.limits.health import WORK
from spark_channel.options import parse_amount
from spark_channel.plain_text import log_of
from spark_channel.processes import pid_namespace, started
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord
from spark_channel.service.limit_control import LimitControl, ask_limit
from spark_channel.service.limits import limit_scope
from spark_channel.service.protocol import (
    ServiceAddress,
    SharedLimitAddress,
    TlsFiles,
    scoped_token,
)
from spark_channel.service.server import ServiceServer

if TYPE_CHECKING:
    from spark_channel.connectors import Health

__all__ = [
    "Probe",
    "SharedLimit",
    "find_shared_limit",
    "limit_advert",
    "parse_rates",
    "shared_speed",
    "signal_value",
    "spending_token",
    "sql_value",
]


_log = log_of(__name__)

_STOP_SECONDS = 5.0
MOST_JOBS = 64
"""Jobs that share a limit at a time, unless its owner says otherwise."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TLS_ROOT = "SPARK_CHANNEL_TLS_ROOT"
_TOKEN_FILE = "SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE"  # noqa: S105 - the name of a variable
_REMOTE = re.compile(r"(?P<tls>tls://)?(?P<host>[^/\s]+):(?P<port>\d+)/(?P<name>[^/]+)")


class Probe:
    """Calls `measure` each `seconds`: one more health signal, `what`, with the bound `threshold`.

    `measure` is any callable that returns a number (replication lag in seconds, active sessions); `sql_value`
    makes one of a query. While the number is above `threshold` the limit is lowered, as `AdaptiveLimit` does; else it
    recovers. One that raises makes the probe unreachable, a separate state that `limits show` names: `policy` says what
    follows, by default `hold` (the speed stays).

    Raises:
        OptionError: `policy` is not known.
    """

    def __init__(
        self,
        measure: Callable[[], float],
        threshold: float,
        *,
        seconds: float = 5.0,
        what: str = "value",
        policy: str = UnreachablePolicy.HOLD,
        clock: Clock | None = None,
    ) -> None:
        self._measure = measure
        self._threshold = threshold
        self._seconds = seconds
        self._what = what
        self._policy = policy
        self.limit(None)
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._wake = threading.Condition()
        self._stopped = True
        self._thread: threading.Thread | None = None

    def limit(
        self, most: float | None, unit: str = "rows/s", *, clock: Clock | None = None
    ) -> AdaptiveLimit:
        """Return a limit of `most` that follows the samples of this probe."""
        bounds = {self._what: self._threshold}
        return AdaptiveLimit(
            most, bounds=bounds, auto=False, policy=self._policy, unit=unit, clock=clock
        )

    def start(self, observe: Callable[[HealthSample], None]) -> None:
        """Call `observe` after each measurement, from a thread of the probe's own."""
        with self._wake:
            self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(observe,), name="spark-channel-probe", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in `measure` is left behind after 5 s."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, observe: Callable[[HealthSample], None]) -> None:
        try:
            while True:
                observe(self._sample())
                with self._wake:
                    if not self._stopped:
                        self._clock.wait(self._wake, self._seconds)
                    if self._stopped:
                        return
        finally:
            if isinstance(self._measure, _Signal):
                self._measure.close()

    def _sample(self) -> HealthSample:
        try:
            value = float(self._measure())
        except Exception as error:  # whatever a user's probe raises means unreachable
            _log.debug("the probe %s failed", self._what, exc_info=True)
            # the type alone: a driver's message may hold the url with its password
            return HealthSample(error=f"{self._what} failed with {type(error).__name__}")
        if math.isnan(value):
            return HealthSample(error=f"{self._what} answered NaN")
        return HealthSample({self._what: (value, self._threshold)})


class _Signal:
    """One signal of a database, through a session that stays open: how far a replica is behind is seen over time."""

    def __init__(self, health: "Health", name: str) -> None:
        self._health = health
        self._name = name

    def __call__(self) -> float:
        sample, name = self._health.sample(), self._name
        if name in sample.values:
            return sample.values[name][0]
        if delays := sample.delays.get(name):
            return sum(delays) / len(delays)
        signals = sorted([*sample.values, *sample.delays])
        missing = f"; not: {', '.join(sample.missing)}" if sample.missing else ""
        raise SourceError(
            f"the database does not report signal {name!r}; it reports {', '.join(signals)}{missing}"
        )

    def close(self) -> None:
        self._health.close()


def signal_value(options: Mapping[str, Any], name: str) -> _Signal:
    """A probe's measure: signal `name` of the database that `options` name (`url`, `user`, `password`).

    The signals are those of option `pressure`, such as `replication_lag`; no query is needed. `wakeup` and `latency`
    are means of some measurements. Its session stays open until `close`, which a `Probe` calls when it stops.

    Raises:
        OptionError: no connector reads that, or it reports no health signals; `work`, which only a job knows.
    """
    from spark_channel.connectors import find_connector

    if name == WORK:
        raise OptionError(
            f"signal {WORK!r} is not available to a probe, since each job computes it from its own statements: "
            f"name another signal, or set option 'pressure' of the job to '{WORK}<...'",
            option="pressure",
            got=name,
        )
    probe_options = {"dbtable": "nothing", **{key.lower(): value for key, value in options.items()}}
    reader, _ = find_connector(probe_options, "reader").reader_with(probe_options)
    health = reader.health()
    if health is None:
        raise OptionError(
            f"{probe_options.get('url')!r} reports no health signals: give a query (--probe-query)",
            option="pressure",
        )
    return _Signal(health, name)


def sql_value(options: Mapping[str, Any]) -> Callable[[], float]:
    """A probe's measure: the first value of the first row that a connector's `query` returns.

    `options` are those of `spark.read.format("channel")`, such as `url`, `query`, `user` and `password`. They are
    resolved for each measurement: one is tried once, in its own session, whatever the ones before it met,
    with the password that `${file:PATH}` holds by then.

    Raises:
        OptionError: no connector reads that.
    """
    from spark_channel.connectors import find_connector

    probe_options = {name.lower(): value for name, value in options.items()}
    connector = find_connector(probe_options, "reader")
    if (
        "retrytimeout" in connector.options_class("reader").names()
        and "retryseconds" not in probe_options
    ):
        probe_options.setdefault("retrytimeout", 0)  # the next measurement is the next try
    connector.reader_with(probe_options)

    def measure() -> float:
        reader, _ = connector.reader_with(probe_options)
        for split in reader.split(1):
            for batch in reader.read(split):
                if batch.num_rows:
                    value = batch.column(0)[0].as_py()
                    if value is None:
                        raise SourceError("the probe's query returned NULL")
                    return float(value)
        raise SourceError("the probe's query returned no row")

    return measure


class SharedLimit:
    """Serves a limit while a `with` block (or `start` to `stop`) runs; jobs name it in option `sharedLimit`.

    Jobs of this user on this host find it by `name`; others by `address` (`host:port/name`) and `token`,
    with which they can use the limit and read its state, but not change it. Every waiting job gets an equal part of
    the speed (max-min), and the others get what one does not use. Executors on other hosts must reach `host`.
    `probe` lowers the limit while the protected system is overloaded. At most `max_jobs` share it at a time: further
    ones are refused, so that a caller with the token cannot leave the others next to nothing.

    A shared limit that is killed and started again under its name uses the same port and token, and begins in debt
    for the grants that its predecessor may have made: the limit holds across the restart.

    Raises:
        OptionError: no speed, one that makes no sense, or a name that is served already.
        ServiceUnavailableError: the address cannot be bound.
    """

    def __init__(
        self,
        name: str,
        rows_per_second: int | str | None = None,
        bytes_per_second: int | str | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsFiles | None = None,
        probe: Probe | None = None,
        per_mark: bool = False,
        max_jobs: int = MOST_JOBS,
    ) -> None:
        self.name = _checked(name)
        self._rates = parse_rates(rows_per_second, bytes_per_second)
        self._host = host
        self._port = port
        self._tls = tls
        self._probe = probe
        self._per_mark = per_mark
        if type(max_jobs) is not int or max_jobs < 1:
            raise OptionError(
                f"max_jobs is 1 or more, not {max_jobs!r}", option="max_jobs", got=repr(max_jobs)
            )
        self._max_jobs = max_jobs
        self._server: ServiceServer | None = None
        self._advert: ServiceRecord | None = None
        self._held: int | None = None

    def start(self) -> Self:
        """Serve; see the class for what it raises."""
        rendezvous = ServiceDirectory()
        lock = rendezvous.hold(_lock_file(self.name))
        if lock is None:
            raise self._served_already(rendezvous.read(limit_advert(self.name)))
        try:
            self._serve(rendezvous)
        except BaseException:
            rendezvous.release(_lock_file(self.name), lock)
            raise
        self._held = lock
        return self

    def _served_already(self, standing: ServiceRecord | None) -> OptionError:
        at = "" if standing is None else f", at {standing.address}"
        return OptionError(
            f"a limit {self.name!r} is served on this host already{at}",
            option="name",
            got=self.name,
        )

    def _serve(self, rendezvous: ServiceDirectory) -> None:
        file = limit_advert(self.name)
        predecessor = rendezvous.read(file)
        # One of another pid namespace is gone: it would hold the lock. Its container was started again.
        if (
            predecessor is not None
            and predecessor.namespace == pid_namespace()
            and predecessor.live
        ):
            raise self._served_already(predecessor)
        port = self._port or (predecessor.address.port if predecessor else 0)
        token = predecessor.address.token if predecessor else None
        seconds = predecessor.grant_seconds if predecessor else 0.0
        server = self._listen(port, token, seconds)
        pid = os.getpid()
        advert = ServiceRecord.of_this_process(server.address, pid, started(pid) or "")
        try:
            standing = rendezvous.publish(
                file, advert, replace=predecessor.nonce if predecessor else None
            )
        except BaseException:
            server.stop()
            raise
        if standing.nonce != advert.nonce:
            server.stop()
            raise self._served_already(standing)
        self._server, self._advert = server, advert

        def remember(longest: float) -> None:
            try:
                rendezvous.publish(
                    file, replace(advert, grant_seconds=longest), replace=advert.nonce
                )
            except ServiceUnavailableError as error:
                _log.warning(
                    "a restart of limit %r may exceed it for %g s: %s", self.name, longest, error
                )

        # Grants of the predecessor, too, may outlive a restart right now.
        server.limits.remember_grants(max(seconds, advert.grant_seconds), remember)
        if seconds > advert.grant_seconds:
            remember(seconds)
        if self._probe is not None:
            self._probe.start(server.limits.probed(self.name, self._probe.limit))

    def stop(self) -> None:
        """Stop serving the limit. Jobs that still use it fail within 10 s. Calling it again has no effect."""
        server, advert = self._server, self._advert
        self._server = self._advert = None
        if server is None or advert is None:
            return
        if self._probe is not None:
            self._probe.stop()
        rendezvous = ServiceDirectory()
        rendezvous.withdraw(limit_advert(self.name), advert.nonce)
        server.stop()
        lock, self._held = self._held, None
        if lock is not None:
            rendezvous.release(_lock_file(self.name), lock)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"SharedLimit({self.name!r}, {self.address if self._server else 'stopped'})"

    @property
    def address(self) -> str:
        """The value for option `sharedLimit` on other hosts: `host:port/name`, with TLS `tls://host:port/name`."""
        return f"{'tls://' if self._tls else ''}{self._serving().address}/{self.name}"

    @property
    def token(self) -> str:
        """The value for option `sharedLimitToken` on other hosts. Keep it out of code and logs."""
        return spending_token(self._serving().address.token, self.name)

    def set(
        self, rows_per_second: int | str | None = None, bytes_per_second: int | str | None = None
    ) -> LimitStatus:
        """New speeds, in force within a second; a dimension that is left out is unlimited."""
        rows, nbytes = parse_rates(rows_per_second, bytes_per_second)
        return self._handle(SetRates(self.name, rows, nbytes))

    def pause(self) -> LimitStatus:
        """Let nothing pass until `resume`."""
        return self._handle(Pause(self.name))

    def resume(self) -> LimitStatus:
        """End `pause`."""
        return self._handle(Resume(self.name))

    def status(self) -> LimitStatus:
        """Speeds, clients, and why they wait."""
        return self._handle(StatusRequest(self.name))

    def _handle(self, request: Request) -> LimitStatus:
        reply = self._serving().limits.handle(request)
        assert isinstance(reply, LimitStatus)
        return reply

    def _serving(self) -> ServiceServer:
        if self._server is None:
            raise ServiceUnavailableError(
                f"the shared limit {self.name!r} is not served: use `with`, or start()"
            )
        return self._server

    def _made(self, port: int, token: str | None, predecessor_seconds: float) -> ServiceServer:
        """Make the server with its limit and tokens before it listens: a predecessor's jobs may call immediately."""
        server = ServiceServer(self._host, port, token=token, tls=self._tls)
        server.limits.book.add_limit(
            self.name,
            *self._rates,
            per_mark=self._per_mark,
            predecessor_seconds=predecessor_seconds,
            max_jobs=self._max_jobs,
        )
        server.tokens.add(limit_scope(self.name), spending_token(server.token, self.name))
        return server

    def _listen(self, port: int, token: str | None, predecessor_seconds: float) -> ServiceServer:
        server = self._made(port, token, predecessor_seconds)
        try:
            server.start()
        except ServiceUnavailableError:
            if self._port or not port:
                raise
            # another program took the predecessor's port: its clients are lost, new ones find this one
            server = self._made(0, token, predecessor_seconds)
            server.start()
        return server


def find_shared_limit(text: str, token: str | None = None) -> SharedLimitAddress:
    """The limit that option `sharedLimit` names: `name` on this host, or `host:port/name` with its token.

    Without `token`, it is in the file that `SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE` names.

    `tls://host:port/name` is checked against the PEM certificate that `SPARK_CHANNEL_TLS_ROOT` names.

    Raises:
        OptionError: there is none of this name here, or the token is missing.
    """
    remote = _REMOTE.fullmatch(text.strip())
    if remote is not None:
        token = _token_of_file(text) if token is None else token
        root = _trusted() if remote["tls"] else None
        service = ServiceAddress(remote["host"], int(remote["port"]), token, root)
        return SharedLimitAddress(service, _checked(remote["name"]))
    name = _checked(text.strip())
    advert = ServiceDirectory().read(limit_advert(name))
    if advert is None or not advert.live:
        served = LimitControl().shared_names()
        served_here = f"served here: {', '.join(served)}" if served else "none is served here"
        raise OptionError(
            f"option 'sharedLimit' got {name!r}; no limit of this name is served on this host ({served_here}). "
            f"Start it with SharedLimit({name!r}, ...) or `spark-channel limits serve {name}`",
            option="sharedLimit",
            got=name,
            takes=", ".join(served),
        )
    address = advert.address
    spending = ServiceAddress(
        address.host, address.port, spending_token(address.token, name), address.tls_root
    )
    return SharedLimitAddress(spending, name)


def _token_of_file(limit: str) -> str:
    path = os.environ.get(_TOKEN_FILE, "")
    if not path:
        raise OptionError(
            f"the shared limit {limit!r} is at an address, and its token is missing: copy the file that `limits serve "
            f"--token-file` wrote to this host, and name it in the environment variable {_TOKEN_FILE}, or in a program "
            "set option 'sharedLimitToken' to ${file:PATH}",
            option="sharedLimitToken",
        )
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in ASCII"
        raise OptionError(
            f"{_TOKEN_FILE} names {path!r}, which cannot be read ({reason}): name the file that `limits serve "
            "--token-file` wrote",
            option="sharedLimitToken",
        ) from None


def _trusted() -> str:
    """The certificate that a remote service with TLS is checked against."""
    path = os.environ.get(_TLS_ROOT, "")
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeError):
        raise OptionError(
            f"a sharedLimit that begins with tls:// needs the PEM file of its certificate in {_TLS_ROOT} "
            f"on the driver's host; {path!r} cannot be read",
            option="sharedLimit",
        ) from None


def shared_speed(limit: SharedLimitAddress) -> tuple[int | None, int | None]:
    """(rows, bytes) per second that `limit` is set to now; None = unlimited, or it does not answer now.

    Raises:
        ServiceDeniedError: the token is wrong, or the limit does not exist.
    """
    try:
        status = ask_limit(limit.service, StatusRequest(limit.name))
    except ServiceUnavailableError:
        return None, None
    rows, nbytes, _ = status.shown
    return rows, nbytes


def spending_token(service_token: str, name: str) -> str:
    """The token that spends limit `name` and does nothing else; the same after a restart."""
    return scoped_token(service_token, name)


def limit_advert(name: str) -> str:
    """The file in which the process that serves limit `name` is found."""
    return f"limit-{name}.json"


def _lock_file(name: str) -> str:
    """The file that the process which serves limit `name` keeps locked."""
    return f"limit-{name}.lock"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"a limit's name is 1 to 100 letters, digits, '.', '_' or '-', not {name!r}",
            option="sharedLimit",
            got=name,
            takes="a name, or host:port/name",
        )
    return name


def parse_rates(rows: int | str | None, nbytes: int | str | None) -> tuple[int | None, int | None]:
    if rows is None and nbytes is None:
        raise OptionError(
            "a limit has a speed: give rows_per_second, bytes_per_second, or both",
            option="rowsPerSecond",
        )
    rates = []
    for option, value in (("rowsPerSecond", rows), ("bytesPerSecond", nbytes)):
        try:
            rates.append(
                None if value is None else parse_amount(value, bytes_=option == "bytesPerSecond")
            )
        except ValueError as error:
            raise OptionError(
                f"option {option!r} got {value!r}; it takes {error}",
                option=option,
                got=str(value),
                takes=str(error),
            ) from None
    return rates[0], rates[1]
