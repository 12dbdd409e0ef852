"""What keeps the table of claims small: versions of one transaction id share rows, and old jobs leave in batches.

A row of kind "versions" has a bit for each of `PER_ROW` versions of one transaction id: those that were published, and
whose own rows are gone. A version is looked up by two keys, its own and that of its shared row, whatever the number of
versions is, also where they have gaps, as times of day have.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from spark_channel.clock import utc_now, utc_text
from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.sql.write.claim_tables import claim_of

__all__ = [
    "PER_ROW",
    "Expired",
    "expired_of",
    "holds",
    "old_condition",
    "shared_row",
    "with_versions",
]

PER_ROW = 2000
"""Four versions are a letter of a column of 500."""
_JOB_DAYS = 30
_OWN_ROW_HOURS = 1
"""For this time a version has a row of its own: runs of it that are late find who published it, and when."""


def shared_row(identity: Identity) -> Identity | None:
    """The row in which the version's bit is, once it has no row of its own; None: it is not a version."""
    if identity.kind != "txn" or identity.version is None:
        return None
    return Identity(identity.target, "versions", identity.name, identity.version // PER_ROW)


def holds(shared: Claim, version: int) -> bool:
    return bool(int(shared.process or "0", 16) >> (version % PER_ROW) & 1)


def with_versions(shared: Claim, versions: Iterable[int], at: str) -> Claim:
    bits = int(shared.process or "0", 16)
    for version in versions:
        bits |= 1 << (version % PER_ROW)
    return replace(
        shared,
        process=f"{bits:x}",
        published_at=max(at, shared.published_at or ""),
        epoch=shared.epoch + 1,
    )


def old_condition() -> tuple[str, Sequence[str]]:
    """The condition of rows that `Expired` removes, by the index of `kind` and `published_at`; and its values."""
    now = utc_now()
    values = (
        utc_text(now - timedelta(days=_JOB_DAYS)),
        utc_text(now - timedelta(hours=_OWN_ROW_HOURS)),
    )
    return (
        "state = 'published' AND (kind = 'job' AND published_at < ? OR kind = 'txn' AND published_at < ?)",
        values,
    )


@dataclass(frozen=True)
class Expired:
    """Keys of rows that go, and the versions among them by the row that has their bits, with their newest time."""

    keys: tuple[str, ...]
    versions: dict[Identity, tuple[tuple[int, ...], str]]


def expired_of(rows: Sequence[tuple[Any, ...]]) -> Expired:
    """A version whose names are not those of its key stays, as cut ones: the key of its shared row is made of them."""
    keys, versions = [], defaultdict[Identity, list[Claim]](list)
    for row in rows:
        claim = claim_of(row)
        identity = claim.identity
        shared = shared_row(identity)
        if shared is not None:
            if identity.key != str(row[0]):
                continue
            versions[shared].append(claim)
        keys.append(str(row[0]))
    return Expired(
        tuple(keys),
        {
            shared: (
                tuple(claim.identity.version or 0 for claim in claims),
                max(claim.published_at or "" for claim in claims),
            )
            for shared, claims in versions.items()
        },
    )
