"""How the command line, and `transfer` without a session, use the engine."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_channel.connectors.base.open_sessions import cancel_all
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.errors import ChannelError, ServiceUnavailableError
from spark_channel.local.engine import LocalEngine
from spark_channel.plain_text import log_of
from spark_channel.planning import TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.signals import ending_on_sigterm
from spark_channel.transfers.dispatch import carry_out

if TYPE_CHECKING:
    from spark_channel.connectors.base.small_tables import SmallTable, Together
    from spark_channel.service.jobs import JobListener

__all__ = [
    "LocalMove",
    "carry_out_here",
    "first_line",
    "has_speed",
    "local_engine",
    "may_be_found",
]

_log = log_of(__name__)
_SPEEDS = {"rowspersecond", "bytespersecond"}


@contextlib.contextmanager
def local_engine(*, served: bool, display: "JobListener | None" = None) -> Iterator[LocalEngine]:
    """The engine for a `with` block, in which SIGTERM ends the jobs as Ctrl-C does."""
    with ending_on_sigterm(cancel_all), LocalEngine(served=served, display=display) as engine:
        yield engine


def may_be_found() -> bool:
    """Whether other programs may find an engine's service: not beside another one of this process, as Spark's."""
    from spark_channel.service.discovery import ServiceDirectory, advert_name

    try:
        other = ServiceDirectory().read(advert_name(os.getpid()))
    except ServiceUnavailableError:  # no directory belongs to the user alone
        return False
    return other is None or not other.live


def carry_out_here(
    engine: LocalEngine, spec: TransferSpec, job_settings: Mapping[str, Any]
) -> TransferReport:
    """Run a transfer; `job_settings` are options of the whole job beside those of `spec`.

    Its steps use sessions again, which cost a server 5 to 15 ms of a core each. With Spark they run in other processes.

    Raises:
        ChannelError: as `spark_channel.transfer`; of another error, its class and first line.
    """
    try:
        with keeping_sessions():
            return carry_out(engine, spec, job_settings)
    except ChannelError:
        raise
    except Exception as error:
        _log.debug("the error was raised here", exc_info=True)
        raise ChannelError(first_line(error)) from error


class LocalMove:
    """Carries out transfers on one engine; `together` small tables in groups."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def __call__(self, spec: TransferSpec, job_settings: Mapping[str, Any]) -> TransferReport:
        """See `carry_out_here`."""
        return carry_out_here(self._engine, spec, job_settings)

    def together(
        self,
        together: "Together",
        tables: "Sequence[SmallTable]",
        placed: "Callable[[SmallTable], None]",
        ended: "Callable[[SmallTable, TransferReport], None]",
        job_settings: Mapping[str, Any],
        part_of: str,
    ) -> None:
        """See `carry_out_small_tables`."""
        from spark_channel.transfers.small_tables import carry_out_small_tables

        carry_out_small_tables(self._engine, together, tables, placed, ended, job_settings, part_of)


def first_line(error: Exception) -> str:
    """An error of other code in one line: its class, and how its message begins."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def has_speed(spec: TransferSpec, job_settings: Mapping[str, Any]) -> bool:
    """Whether a transfer has its own limit, which can be changed while it runs."""
    names = {
        key.lower()
        for options in (job_settings, *(end.options for end in spec.ends))
        for key in options
    }
    return bool(spec.rows_per_second or spec.bytes_per_second or names & _SPEEDS)
