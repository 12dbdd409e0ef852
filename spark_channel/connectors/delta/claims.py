"""Claims in a Delta table's log: `txn` actions, which the log keeps through checkpoints, and never removes.

A claim is a `txn` action whose version has epoch, state, and 30 bits of the owner's digest: it grows with each change
of the claim. A stream's last batch has another app id. The history of commits has the owner's name, for messages only:
the numbers decide.

The log keeps an app id forever, and each one that is opened reads all of them. So a version of a transaction id, and a
job, has its claim in one of a few **slots**, whose tag says which one it is. Once it is published the next may use the
slot: a version has a bit in an app id for each `PER_ACTION` versions from then on, and a job is known by the slot, as
long as no other uses it, and by the newest commits. A version whose slot another run holds has an app id of its own.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.base.claims import forget as begun_again
from spark_channel.connectors.base.kept_claims import KeptClaim, bits_of

__all__ = [
    "OURS",
    "OVERWRITES",
    "PER_ACTION",
    "Versions",
    "about",
    "actions_of",
    "app_id",
    "bits_app_id",
    "decoded",
    "encoded",
    "find_claim",
    "forgetting",
    "generation_app_id",
    "was_written_here",
]

OURS = "sparkChannel"
"""The key of what a commit says of its claim, among the commit's own words."""
OVERWRITES = "spark-channel/overwrites"
"""Its version counts how often the table has been overwritten."""
PER_ACTION = 62
"""Versions that share an app id: the bits of its version, which is a positive number of 64 bits."""
_VERSION_SLOTS = 16
_JOB_SLOTS = 64
_OPEN, _GIVEN_BACK, _PUBLISHED = range(3)

Versions = Callable[[str], int | None]
"""The version that the log has of an app id."""


def app_id(identity: Identity) -> str:
    return f"spark-channel/{identity.key}"


def _batch_app_id(identity: Identity) -> str:
    return f"{app_id(identity)}/batch"


def generation_app_id(identity: Identity) -> str:
    return f"{app_id(identity)}/generation"


def _slot(identity: Identity) -> tuple[str, int] | None:
    """(the app id, the tag) of the slot that a version or a job may use."""
    if identity.kind == "txn" and identity.version is not None:
        number = identity.version % _VERSION_SLOTS
        return app_id(replace(identity, version=number)) + "/slot", identity.version
    if identity.kind == "job":
        digest = int.from_bytes(hashlib.sha256(identity.key.encode()).digest()[:8]) >> 2
        return f"{app_id(Identity(identity.target, 'job', '', digest % _JOB_SLOTS))}/slot", digest
    return None


def _tag_app_id(slot: str) -> str:
    return f"{slot}/tag"


def bits_app_id(identity: Identity) -> str:
    """Of the published versions that share an action with this one."""
    group = (identity.version or 0) // PER_ACTION
    return app_id(Identity(identity.target, "versions", identity.name, group))


def _bit(identity: Identity) -> int:
    return 1 << (identity.version or 0) % PER_ACTION


def _digest(owner: str) -> int:
    return int.from_bytes(hashlib.blake2b(owner.encode(), digest_size=4).digest()) >> 2


def encoded(claim: Claim) -> int:
    state = _PUBLISHED if claim.state == "published" else _OPEN if claim.owner else _GIVEN_BACK
    return claim.epoch << 32 | state << 30 | (_digest(claim.owner) if claim.owner else 0)


def _state(version: int) -> int:
    return version >> 30 & 3


def decoded(
    identity: Identity,
    version: int,
    position: int | None,
    job: str,
    named: Mapping[str, Any] | None,
) -> Claim:
    """`job` is the caller: it knows itself again. `named` is what the history says of this version of the claim."""
    epoch, state, digest = version >> 32, _state(version), version & (1 << 30) - 1
    owner, at = str((named or {}).get("job", "another run")), (named or {}).get("publishedAt")
    last = ""
    if state == _GIVEN_BACK:
        owner, last = "", owner
    elif digest == _digest(job):
        owner = job
    elif owner == job:
        owner = "another run"
    return Claim(
        identity,
        owner,
        epoch,
        "published" if state == _PUBLISHED else "open",
        position=position,
        process=last,
        published_at=at
        or ("an unknown time" if state == _PUBLISHED or position is not None else None),
    )


def about(claim: Claim, job: str) -> dict[str, Any]:
    """The text of the commit, for people and messages."""
    identity = claim.identity
    fields = {
        "claim": app_id(identity),
        "version": encoded(claim),
        "job": job,
        "identity": identity.shown,
        "kind": identity.kind,
        "name": identity.name,
    }
    if identity.version is not None:
        fields["txnVersion"] = identity.version
    return {**fields, "publishedAt": claim.published_at} if claim.published_at else fields


Named = Callable[[Identity, int | None], Mapping[str, Any] | None]
"""What the history says of this version of an identity's claim; None = of its newest."""


def find_claim(identity: Identity, job: str, versions: Versions, named: Named) -> Claim | None:
    """The claim of `identity`; None = neither an app id, nor a slot, a bit or the newest commits have one."""
    version = versions(app_id(identity))
    if version is not None:
        position = versions(_batch_app_id(identity))
        return decoded(identity, version, position, job, named(identity, version))
    slot = _slot(identity)
    if slot is None:
        return None
    if versions(_tag_app_id(slot[0])) == slot[1]:
        version = versions(slot[0]) or 0
        return decoded(identity, version, None, job, named(identity, version))
    if identity.kind == "txn":
        bits = versions(bits_app_id(identity)) or 0
        note = named(identity, None) if bits & _bit(identity) else None
        is_published = bool(bits & _bit(identity))
    else:
        note = named(identity, None)
        is_published = note is not None and _state(int(note["version"])) == _PUBLISHED
    if not is_published:
        return None
    at = str((note or {}).get("publishedAt") or "an unknown time")
    owner = str((note or {}).get("job", ""))
    return Claim(identity, owner, state="published", published_at=at)


def was_written_here(identity: Identity, versions: Versions) -> bool:
    """Whether a version was written by spark-channel, and not by another writer of Delta."""
    slot = _slot(identity)
    return (
        versions(app_id(identity)) is not None
        or (slot is not None and versions(_tag_app_id(slot[0])) == slot[1])
        or bool((versions(bits_app_id(identity)) or 0) & _bit(identity))
    )


def actions_of(claim: Claim, versions: Versions) -> dict[str, int]:
    """The `txn` actions, by app id, of a commit that writes the claim."""
    identity = claim.identity
    actions: dict[str, int] = {}
    claim_app_id, slot = app_id(identity), _slot(identity)
    if slot is not None and versions(claim_app_id) is None:
        tag, slot_version = versions(_tag_app_id(slot[0])), versions(slot[0])
        if tag == slot[1] or slot_version is None or _state(slot_version) != _OPEN:
            claim_app_id = slot[0]
            actions[_tag_app_id(claim_app_id)] = slot[1]
    actions[claim_app_id] = encoded(claim)
    if claim.position is not None:
        actions[_batch_app_id(identity)] = claim.position
    if claim.generation is not None:
        actions[generation_app_id(identity)] = claim.generation
    if identity.kind == "txn" and claim.state == "published" and claim_app_id != app_id(identity):
        shared = bits_app_id(identity)
        actions[shared] = (versions(shared) or 0) | _bit(identity)
    return actions


def forgetting(claims: Sequence[KeptClaim], target: str, versions: Versions) -> dict[str, int]:
    """The `txn` actions of a commit that forgets claims.

    Each has an app id of its own then, which says that it was given back: the log has no other word for it, and the
    pair's last version must not be taken for one of another writer.
    """
    actions: dict[str, int] = {}
    for claim in claims:
        version = claim.versions[0][0] if claim.versions else None
        identity = Identity(target, claim.kind, claim.name, version)  # type: ignore[arg-type] # as it was listed
        current = find_claim(identity, "", versions, lambda *_: None) or Claim(identity, "")
        if claim.kind == "stream":
            actions |= actions_of(begun_again(current), versions)
            continue
        forgotten = replace(current, owner="", epoch=current.epoch + 1, state="open", position=None)
        actions[app_id(identity)] = encoded(forgotten)
        if version is not None:
            shared = bits_app_id(identity)
            bits = actions.get(shared, versions(shared) or 0)
            start = version // PER_ACTION * PER_ACTION
            if bits:
                actions[shared] = bits & ~bits_of(claim.versions, start, PER_ACTION)
    return actions
