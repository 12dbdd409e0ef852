"""What the driver's side asks of a service that runs in another process."""

from typing import Any, Self

from spark_channel.progress import JobSpec, Phase, TransferReport
from spark_channel.service.address import ServiceAddress

__all__ = ["ServiceControl"]


class ServiceControl:
    """Opens and closes jobs, asks for their status. Connects lazily; close it, or use `with`.

    Every call raises `ServiceUnavailableError` after `timeout` seconds without an answer, and
    `ServiceDeniedError` when it was refused.
    """

    def __init__(self, address: ServiceAddress, *, timeout: float = 5.0) -> None:
        from spark_channel.service.connection import Connection

        self._connection = Connection(address)
        self._timeout = timeout

    def hello(self) -> dict[str, Any]:
        """`{"service": "spark-channel", "protocol": ..., "pid": ..., "scope": ...}`."""
        return self._call("hello", {})

    def open_job(self, spec: JobSpec, job: str | None = None) -> str:
        """Open a job that this side will close by `enter(job, DONE | FAILED)`; returns its id."""
        return str(self._call("open_job", {"spec": spec.to_json(), "job": job})["job"])

    def enter(
        self,
        job: str,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        limit: str = "",
    ) -> None:
        """See `progress.JobProgress.enter`; `limit`: how it was kept, where not by the service."""
        body = {"job": job, "phase": str(phase), "error": error[:4096], "where": where[:4096], "rows": rows}
        self._call("enter", {**body, "limit": limit[:4096]} if limit else body)

    def status(self, job: str | None = None) -> list[dict[str, Any]]:
        """One job, or all that run: `job`, `phase`, `line` (the progress line) and its figures."""
        return list(self._call("status", {"job": job})["jobs"])

    def report(self, job: str) -> TransferReport:
        """The report of a job that runs, or was closed lately."""
        return TransferReport.from_json(self._call("job_report", {"job": job})["report"])

    def call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any other action."""
        return self._call(action, body)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._connection.call(action, body, timeout=self._timeout)
