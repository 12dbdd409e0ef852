"""What a directory's log keeps of earlier writes, listed and forgotten. No I/O."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spark_channel.connectors.base import claims
from spark_channel.connectors.base.kept_claims import KeptClaim, covers, joined, kept_of, without
from spark_channel.connectors.files.manifest import Manifest
from spark_channel.connectors.files.published_versions import PublishedVersions

__all__ = ["forgotten", "kept"]


def kept(manifest: Manifest, now: str) -> list[KeptClaim]:
    """Claims by their keys in the log; published versions and jobs, which have none."""
    claims_now = [kept_of(claim, key, now) for key, claim in manifest.claims.items()]
    versions = [claim for name, of in manifest.versions.items() for claim in _versions(name, of)]
    jobs = [KeptClaim("job", job, run=job, at=at) for job, at in _jobs(manifest).items()]
    return sorted([*claims_now, *versions, *jobs], key=lambda claim: claim.at)


def _versions(name: str, published: PublishedVersions) -> Iterator[KeptClaim]:
    times = published.times
    old = without(published.ranges, joined((version, version) for version in times))
    if old:
        # Times leave in the order in which they came.
        yield KeptClaim("txn", name, old, before=min(times.values(), default=""))
    for version, at in times.items():
        yield KeptClaim("txn", name, ((version, version),), at=at)


def _jobs(manifest: Manifest) -> dict[str, str]:
    older = {} if manifest.older_jobs is None else manifest.older_jobs.published
    return {**older, **manifest.jobs}


def forgotten(
    manifest: Manifest, number: int, chosen: Sequence[KeptClaim], now: str
) -> tuple[Manifest | None, list[KeptClaim]]:
    """(the manifest without them, None when it has none of them; those that it had)."""
    changed, forgotten_claims = manifest, []
    for claim in chosen:
        if claim.key:
            current = changed.claims.get(claim.key)
            if current is None or kept_of(current, claim.key, now).is_held:
                continue
            if (
                claim.kind == "stream"
            ):  # its name stays, so that a run which still writes is fenced off
                begun = claims.forget(current)
                changed = changed.with_claim(replace(begun, epoch=max(number, begun.epoch)))
            else:
                changed = changed.without_claim(current.identity)
            if current.owner:
                changed = changed.with_ended(
                    current.owner, current.epoch, "its claim was forgotten"
                )
        elif claim.kind == "txn":
            of = changed.versions.get(claim.name, PublishedVersions())
            versions = replace(
                of,
                ranges=without(of.ranges, claim.versions),
                times={v: at for v, at in of.times.items() if not covers(claim.versions, v)},
            )
            if versions.ranges == of.ranges:
                continue
            others = {name: of for name, of in changed.versions.items() if name != claim.name}
            changed = replace(
                changed, versions={**others, claim.name: versions} if versions.ranges else others
            )
        else:
            jobs = _jobs(changed)
            if jobs.pop(claim.name, None) is None:
                continue
            changed = replace(changed, jobs=jobs, older_jobs=None)
        forgotten_claims.append(claim)
    return (changed if forgotten_claims else None), forgotten_claims
