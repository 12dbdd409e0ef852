"""What a directory's log keeps of earlier writes, listed and forgotten. No I/O."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spark_channel.connectors.base import claims
from spark_channel.connectors.base.kept_claims import KeptClaim, covers, joined, kept_of, without
from spark_channel.connectors.files.log import Manifest, PublishedVersions

__all__ = ["forgotten", "kept"]


def kept(manifest: Manifest, now: str) -> list[KeptClaim]:
    """Claims by their keys in the log; published versions and jobs, which have none."""
    held = [kept_of(claim, key, now) for key, claim in manifest.claims.items()]
    versions = [each for name, of in manifest.versions.items() for each in _versions(name, of)]
    jobs = [KeptClaim("job", job, run=job, at=at) for job, at in _jobs(manifest).items()]
    return sorted([*held, *versions, *jobs], key=lambda each: each.at)


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
    made, done = manifest, []
    for claim in chosen:
        if claim.key:
            there = made.claims.get(claim.key)
            if there is None or kept_of(there, claim.key, now).is_held:
                continue
            if (
                claim.kind == "stream"
            ):  # its name stays, so that a run which still writes is fenced off
                begun = claims.forget(there)
                made = made.with_claim(replace(begun, epoch=max(number, begun.epoch)))
            else:
                made = made.without_claim(there.identity)
            if there.owner:
                made = made.with_ended(there.owner, there.epoch, "its claim was forgotten")
        elif claim.kind == "txn":
            of = made.versions.get(claim.name, PublishedVersions())
            left = replace(
                of,
                ranges=without(of.ranges, claim.versions),
                times={v: at for v, at in of.times.items() if not covers(claim.versions, v)},
            )
            if left.ranges == of.ranges:
                continue
            others = {name: of for name, of in made.versions.items() if name != claim.name}
            made = replace(made, versions={**others, claim.name: left} if left.ranges else others)
        else:
            jobs = _jobs(made)
            if jobs.pop(claim.name, None) is None:
                continue
            made = replace(made, jobs=jobs, older_jobs=None)
        done.append(claim)
    return (made if done else None), done
