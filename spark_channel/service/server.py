"""`ServiceServer`: serves jobs, counters and limits on one port."""

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from spark_channel.clock import Clock
from spark_channel.errors import ServiceUnavailableError
from spark_channel.observers import close_together, observers, pushed
from spark_channel.observers.metrics import CONTENT_TYPE, JobMetrics, prometheus_text
from spark_channel.observers.view import LocalView
from spark_channel.plain_text import log_of
from spark_channel.progress import JobProgress, JobSpec, JobStatus, Phase, Snapshot, progress_line
from spark_channel.service import protocol
from spark_channel.service.connection import answered_here
from spark_channel.service.ended_jobs import keep_ended
from spark_channel.service.jobs import JobRegistry
from spark_channel.service.limits import LimitService
from spark_channel.service.protocol import (
    CHANGE_SCOPE,
    READ_SCOPE,
    SERVICE_SCOPE,
    ServiceAddress,
    TlsFiles,
    Tokens,
    owns_jobs,
    sample_from_json,
    scoped_token,
    token_of_file,
)
from spark_channel.service.running import note_running, note_stopped

if TYPE_CHECKING:
    from ssl import SSLContext

    from spark_channel.observers.metrics import MetricPush
    from spark_channel.service.http_server import Caller, Document, Endpoint, HttpServer

__all__ = [
    "ServiceServer",
]

_log = log_of(__name__)

PROTOCOL = 1
"""The version of the actions and their bodies; `hello` returns it."""

_MOST_SNAPSHOTS_PER_REPORT = 10_000
_SHUTDOWN_SECONDS = 3.0

_SIDES = ("source", "target")

_INLINE = frozenset({"hello", "coordinator"})
"""The most frequent actions, which never block."""


class ServiceServer:
    """One HTTP server on one address. Starts with `start` or `with`, ends with `stop` or the process.

    It binds `host`; `port` 0 takes a free one; `advertise_host` is the address for clients when it differs
    from `host` (a container's outer name). `token` None makes a random one. `jobs` is the registry of jobs,
    `limits` keeps limits and permits; `add_endpoint` adds actions.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise_host: str | None = None,
        token: str | None = None,
        tls: TlsFiles | None = None,
        idle_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self.jobs = JobRegistry(clock=clock, idle_seconds=idle_seconds)
        self.limits = LimitService(clock=clock, check_owner=self.jobs.check_owner)
        self.jobs.subscribe(self.limits)
        self.metrics = JobMetrics(self.limits.signals, self.limits.shared)
        self.jobs.subscribe(self.metrics)
        self._push: MetricPush | None = None
        self._observers = observers()
        for observer in self._observers:
            self.jobs.subscribe(observer)
            self.metrics.more.append(observer.outbox.family)
        self.view = LocalView(
            self.metrics,
            self.jobs.find,
            self.limits.names,
            self.limits.handle,
            self.limits.signals,
        )
        self.tokens = Tokens()
        self._token = self.tokens.add(SERVICE_SCOPE, token)
        self.tokens.add(READ_SCOPE, token_of_file() or scoped_token(self._token, READ_SCOPE))
        self._host = host
        self._port = port
        self._advertise_host = advertise_host or host
        self._tls = tls
        self._endpoints: dict[str, Endpoint] = {
            "hello": json_endpoint(self._hello),
            "open_job": json_endpoint(self._open_job),
            "report": json_endpoint(self._report),
            "enter": json_endpoint(self._enter),
            "status": json_endpoint(self._status),
            "job_report": json_endpoint(self._job_report),
            "coordinator": self.limits.endpoint,
            "listen": self.limits.listen_endpoint,
            "health": json_endpoint(self._health),
            "limits": json_endpoint(self._limits),
            "slots": json_endpoint(self._slots),
            "watch": json_endpoint(self._watch),
            "GET /metrics": self._metrics,
        }
        self.slots: Callable[[], int | None] = lambda: None
        """How many Spark tasks run at a time, where the owner of this server knows."""
        self._shell: HttpServer | None = None
        self._address: ServiceAddress | None = None
        self._lock = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._wake = threading.Condition()
        self._due = False
        self._stopping = False

    @property
    def address(self) -> ServiceAddress:
        """The address at which clients reach this server.

        Raises:
            RuntimeError: it is not running.
        """
        if self._address is None:
            raise RuntimeError("the service is not running")
        return self._address

    @property
    def token(self) -> str:
        """The token that permits all actions; known before `start`."""
        return self._token

    def add_endpoint(self, name: str, endpoint: "Endpoint") -> None:
        """Answer action `name`, before or after `start`."""
        self._endpoints[name] = endpoint

    def start(self) -> ServiceAddress:
        """Listen.

        Raises:
            ServiceUnavailableError: the address cannot be bound, or a TLS file cannot be read.
        """
        with self._lock:
            if self._address is not None:
                return self._address
            tls, root = self._read_tls()
            address = ServiceAddress(self._host, self._port, self._token, root)
            from spark_channel.service.http_server import HttpServer

            try:
                self._shell = HttpServer(address, self._endpoints, self.tokens, tls, inline=_INLINE)
            except (OSError, UnicodeError, OverflowError) as error:
                raise ServiceUnavailableError(
                    f"the service cannot listen on {address} ({error}); "
                    "give it a host of this machine and a free port"
                ) from None
            self._address = ServiceAddress(
                self._advertise_host, self._shell.port, self._token, root
            )
            self._stopping = False
            self._keeper = threading.Thread(
                target=self._keep, name="spark-channel-service", daemon=True
            )
            self._keeper.start()
            atexit.register(self.stop)
            self._push = pushed(self.metrics)
            note_running(self)
            answered_here(self._address, self._answer)
            _log.debug("service listens on %s", self._address)
            return self._address

    def stop(self, *, failed: bool = True) -> None:
        """Close all jobs with their summary and stop listening. Calling it again has no effect.

        `failed`: see `JobRegistry.close_all`.
        """
        with self._lock:
            shell, keeper, address = self._shell, self._keeper, self._address
            self._shell = self._keeper = self._address = None
        if address is not None:
            answered_here(address, None)
        if shell is None or keeper is None:
            return
        note_stopped(self)
        atexit.unregister(self.stop)
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        keeper.join()
        self.limits.end()
        _shut(shell)
        self.jobs.close_all(failed=failed)
        keep_ended(self.view.watch(None, 0.0)["jobs"])
        push, self._push = self._push, None
        ends: list[Callable[[], None]] = [observer.outbox.close for observer in self._observers]
        close_together(ends if push is None else [*ends, push.close])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"ServiceServer({self._address or 'stopped'})"

    def _read_tls(self) -> "tuple[SSLContext | None, str | None]":
        if self._tls is None:
            return None, None
        import ssl

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            for path in (self._tls.certificate, self._tls.key):
                Path(path).read_bytes()  # an error of OpenSSL does not name the file
            context.load_cert_chain(self._tls.certificate, self._tls.key)
            root = Path(self._tls.root or self._tls.certificate).read_text(encoding="ascii")
        except (OSError, UnicodeError) as error:
            raise ServiceUnavailableError(
                f"the service's TLS files cannot be read: {error}"
            ) from None
        return context, root

    def _keep(self) -> None:
        """Close idle jobs when they are due; sleeps while there is nothing to wait for."""
        while True:
            timeout = self.jobs.close_idle()
            with self._wake:
                if not self._due and not self._stopping:
                    self._wake.wait(timeout)
                self._due = False
                if self._stopping:
                    return

    def _wake_up(self) -> None:
        with self._wake:
            self._due = True
            self._wake.notify_all()

    def _answer(self, address: ServiceAddress, action: str, body: bytes) -> bytes | None:
        """Answer a job of this process."""
        from spark_channel.service.http_server import Caller

        scope = self.tokens.scope_of(f"Bearer {address.token}")
        endpoint = self._endpoints.get(action)
        if scope is None or endpoint is None:
            return None
        try:
            answer = endpoint(body, Caller(scope, "this process"))
        except (PermissionError, ValueError):
            return None
        assert isinstance(answer, bytes)
        return answer

    def _hello(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        protocol.fields(body, required=())
        return {
            "service": "spark-channel",
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "scope": caller.scope,
        }

    def _open_job(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        protocol.fields(body, required=("spec",), optional=("job",))
        job = protocol.identifier(body["job"], "job") if body.get("job") is not None else None
        job = self.jobs.open(JobSpec.from_json(body["spec"]), job, owner=caller.scope)
        self._wake_up()
        return {"job": job}

    def _report(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        protocol.fields(
            body,
            required=("job", "client", "snapshots"),
            optional=("spec", "leaving", "shared_limit"),
        )
        job, client = (
            protocol.identifier(body["job"], "job"),
            protocol.identifier(body["client"], "client"),
        )
        plain_snapshots = body["snapshots"]
        if (
            not isinstance(plain_snapshots, list)
            or len(plain_snapshots) > _MOST_SNAPSHOTS_PER_REPORT
        ):
            raise protocol.RequestError(
                f"snapshots is a list of at most {_MOST_SNAPSHOTS_PER_REPORT}"
            )
        leaving = body.get("leaving", False)
        if not isinstance(leaving, bool):
            raise protocol.RequestError("leaving is true or false")
        spec = JobSpec.from_json(body["spec"]) if body.get("spec") is not None else None
        snapshots = [Snapshot.from_json(snapshot) for snapshot in plain_snapshots]
        after = self.jobs.report(
            job, client, snapshots, spec=spec, leaving=leaving, owner=caller.scope
        )
        if body.get("shared_limit") is not None and after is not None:
            self._show_shared(job, caller, body["shared_limit"])
        if spec is not None or leaving:
            self._wake_up()
        return {
            "report_after": after,
            "stop": self.jobs.stop_reason(job),
            "failure": self.jobs.failure(job),
            "watch": self.jobs.watches(job, client),
        }

    def _show_shared(self, job: str, caller: "Caller", data: object) -> None:
        """Show the state of the job's shared limit, as one of its tasks reported it."""
        if not isinstance(data, dict):
            raise protocol.RequestError("shared_limit is an object")
        protocol.fields(data, required=("rows_per_second", "bytes_per_second", "note"))
        rows, nbytes, note = data["rows_per_second"], data["bytes_per_second"], data["note"]
        if any(
            speed is not None and (type(speed) is not int or speed < 1) for speed in (rows, nbytes)
        ):
            raise protocol.RequestError("a speed is a whole number, 1 or more, or null")
        if not isinstance(note, str):
            raise protocol.RequestError("note is a text")
        self._find(job, caller).set_shared_limits(rows, nbytes, note)

    def _enter(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        protocol.fields(
            body,
            required=("job", "phase"),
            optional=("error", "where", "rows", "limit", "building"),
        )
        error, where, rows = body.get("error", ""), body.get("where", ""), body.get("rows")
        limit, building = body.get("limit", ""), body.get("building", "")
        if not all(isinstance(text, str) for text in (error, where, limit, building)):
            raise protocol.RequestError("error, where, limit and building are texts")
        if rows is not None and (type(rows) is not int or rows < 0):
            raise protocol.RequestError("rows is a whole number, 0 or more")
        job = protocol.identifier(body["job"], "job")
        self.jobs.check_owner(job, caller.scope)
        try:
            if limit:
                self.jobs.find(job).keep_limit(limit)
            self.jobs.enter(
                job, Phase(body["phase"]), error=error, where=where, rows=rows, building=building
            )
        except KeyError:
            raise protocol.RequestError(f"job {job} is unknown") from None
        self.limits.build(job, building)
        return {}

    def _status(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        protocol.fields(body, required=(), optional=("job",))
        job = body.get("job")
        jobs = self.jobs.live(caller.scope) if job is None else [self._find(job, caller)]
        return {"jobs": [_plain_status(progress.status()) for progress in jobs]}

    def _job_report(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        protocol.fields(body, required=("job",))
        return {"report": self._find(body["job"], caller).report().to_json()}

    def _health(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_who_has_jobs(caller)
        required = ("job", "side", "values", "delays", "missing", "error")
        protocol.fields(body, required=required, optional=("row_seconds",))
        if body["side"] not in _SIDES:
            raise protocol.RequestError(f"side is {' or '.join(_SIDES)}")
        job = protocol.identifier(body["job"], "job")
        self.jobs.check_owner(job, caller.scope)
        self.limits.observe(job, body["side"], sample_from_json(body))
        return {}

    def _limits(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_service_token(caller)
        protocol.fields(body, required=())
        return {"limits": list(self.limits.names())}

    def _slots(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_service_token(caller)
        protocol.fields(body, required=())
        return {"slots": self.slots()}

    def _watch(self, body: dict[str, Any], caller: "Caller") -> Mapping[str, Any]:
        _only_service_token(caller)
        protocol.fields(body, required=("job", "since"))
        job, since = body["job"], body["since"]
        if job is not None:
            job = protocol.identifier(job, "job")
        if type(since) not in (int, float):
            raise protocol.RequestError("since is a number of seconds")
        return self.view.watch(job, since)

    def _metrics(self, _body: bytes, caller: "Caller") -> "Document":
        from spark_channel.service.http_server import Document

        if caller.scope not in (SERVICE_SCOPE, READ_SCOPE, CHANGE_SCOPE):
            raise PermissionError("this token is for another purpose")
        return Document(CONTENT_TYPE, prometheus_text(self.metrics.families()))

    def _find(self, job: object, caller: "Caller") -> JobProgress:
        job = protocol.identifier(job, "job")
        self.jobs.check_owner(job, caller.scope)
        try:
            return self.jobs.find(job)
        except KeyError:
            raise protocol.RequestError(f"job {job} is unknown") from None


def _shut(shell: "HttpServer") -> None:
    if not shell.shutdown(_SHUTDOWN_SECONDS):
        _log.warning(
            "a call did not end within %g s of the service's end; it is left behind",
            _SHUTDOWN_SECONDS,
        )


def json_endpoint(answer: "Callable[[dict[str, Any], Caller], Mapping[str, Any]]") -> "Endpoint":
    """An endpoint whose bodies are JSON objects, read strictly."""

    def endpoint(body: bytes, caller: "Caller") -> bytes:
        return protocol.encode(answer(protocol.decode(body), caller))

    return endpoint


def _only_who_has_jobs(caller: "Caller") -> None:
    if not owns_jobs(caller.scope):
        _only_service_token(caller)


def _only_service_token(caller: "Caller") -> None:
    if caller.scope != SERVICE_SCOPE:
        raise PermissionError("this token is for another purpose")


def _plain_status(status: JobStatus) -> dict[str, Any]:
    return {
        "job": status.job,
        "phase": str(status.phase),
        "line": progress_line(status),
        "rows": status.rows,
        "bytes": status.bytes,
        "percent": status.percent,
        "rows_per_second": status.rows_per_second,
        "bytes_per_second": status.bytes_per_second,
        "seconds": status.seconds,
        "tasks_done": status.tasks_done,
        "tasks": status.tasks,
        "attempts": status.attempts,
    }
