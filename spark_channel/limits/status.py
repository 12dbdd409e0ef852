"""A limit as `show` tells it."""

from collections.abc import Collection
from itertools import islice

from spark_channel.limits.issued_grants import DIMENSIONS, Client
from spark_channel.limits.level import MICROS, NANOS
from spark_channel.limits.messages import ClientStatus, LimitStatus
from spark_channel.limits.pool import Pool

__all__ = ["status_of"]

CLIENTS_LISTED = 200


def status_of(
    limit: str,
    epoch: str,
    pool: Pool,
    was_set: tuple[float | None, float | None],
    clients: Collection[Client],
    now: int,
    paused: bool,
    pressure: str,
) -> LimitStatus:
    """The state of `pool` at `now`, consistent when the caller holds its lock; `was_set`: rows and bytes per second."""
    rows, nbytes = pool.grants.totals
    live = [issued for client in clients for issued in client.issued_grants()]
    outstanding = [sum(issued.amount[each] for issued in live) for each in DIMENSIONS]
    off = paused or pool.factor == 0
    effective = [
        None if limited is None else 0.0 if off else rate / MICROS
        for limited, rate in zip(pool.limits, pool.rates, strict=True)
    ]
    return LimitStatus(
        limit=limit,
        epoch=epoch,
        rows_per_second=_plain(was_set[0]),
        bytes_per_second=_plain(was_set[1]),
        effective_rows_per_second=effective[0],
        effective_bytes_per_second=effective[1],
        granted_rows_per_second=pool.grants.charge[0] / MICROS,
        granted_bytes_per_second=pool.grants.charge[1] / MICROS,
        paused=paused,
        pressure=pressure,
        horizon=pool.horizon(),
        jobs=len(pool.jobs),
        client_count=len(clients),
        waiting_count=pool.in_line,
        issued_rows=rows.issued / MICROS,
        spent_rows=rows.spent / MICROS,
        returned_rows=rows.returned / MICROS,
        void_rows=rows.void / MICROS,
        outstanding_rows=outstanding[0] / MICROS,
        issued_bytes=nbytes.issued / MICROS,
        spent_bytes=nbytes.spent / MICROS,
        returned_bytes=nbytes.returned / MICROS,
        void_bytes=nbytes.void / MICROS,
        outstanding_bytes=outstanding[1] / MICROS,
        clients=tuple(
            ClientStatus(
                name=client.name,
                job=client.job.name,
                rows_per_second=client.charge[0] / MICROS,
                bytes_per_second=client.charge[1] / MICROS,
                waiting=client.waiting,
                silent_seconds=(now - client.seen) / NANOS,
            )
            for client in islice(clients, CLIENTS_LISTED)
        ),
    )


def _plain(rate: float | None) -> float | None:
    return None if rate is None else float(rate)
