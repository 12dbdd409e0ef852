"""Reports a job's phases and its failure from the driver to the service."""

import contextlib
import logging
from collections.abc import Iterator

from spark_channel.errors import LimitError
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceAddress, ServiceControl

__all__ = ["JobReporter", "reason_of"]

_log = logging.getLogger(__name__)


def reason_of(error: BaseException) -> str:
    """Why a job failed, for its summary."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__


class JobReporter:
    """Reports a job that this process owns to the service. A failed report never fails the job: errors are logged."""

    def __init__(self, address: ServiceAddress | None, job: str) -> None:
        self._address = address
        self._job = job

    def open(self, spec: JobSpec) -> None:
        with self._control() as control:
            if control is not None:
                control.open_job(spec, self._job)

    def enter(
        self,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        limit: str = "",
    ) -> None:
        with self._control() as control:
            if control is not None:
                control.enter(self._job, phase, error=error, where=where, rows=rows, limit=limit)

    @contextlib.contextmanager
    def _control(self) -> Iterator[ServiceControl | None]:
        if self._address is None:
            yield None
            return
        try:
            with ServiceControl(self._address) as control:
                yield control
        except LimitError as error:
            _log.warning("job %s: its progress is not shown: %s", self._job, error)
