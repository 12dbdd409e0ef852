"""Claims in an Iceberg table's metadata: a table property for each identity, which no expiry of snapshots removes.

Each change of a claim comes with a snapshot on `main`, and requires the one before it: every catalog checks that
requirement in the step in which it commits. Properties alone could be changed by two jobs at once.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.base.kept_claims import KeptClaim, kept_of
from spark_channel.connectors.iceberg.versions import kept_versions, published_in, shared
from spark_channel.errors import TargetError

__all__ = [
    "KEY",
    "OVERWRITES",
    "PREFIX",
    "claim_of",
    "forgotten",
    "kept_in",
    "property_name",
    "property_value",
]

PREFIX = "spark-channel.claim."
_JOBS_KEPT = 200
OVERWRITES = "spark-channel.overwrites"
KEY = "spark-channel.primary-key"
"""The property that counts how often the table has been overwritten."""


def property_name(identity: Identity) -> str:
    return PREFIX + identity.key


def property_value(claim: Claim) -> str:
    fields: dict[str, Any] = asdict(claim)
    identity = fields.pop("identity")
    fields |= {"kind": identity["kind"], "name": identity["name"], "version": identity["version"]}
    return json.dumps({name: value for name, value in fields.items() if value not in (None, "")})


def claim_of(properties: Mapping[str, str], identity: Identity, label: str) -> Claim | None:
    """
    Raises:
        TargetError: the property is damaged.
    """
    text = properties.get(property_name(identity))
    if text is None:
        versions_property = shared(identity)
        bits = (
            None if versions_property is None else properties.get(property_name(versions_property))
        )
        return None if bits is None else published_in(bits, identity, label)
    try:
        fields = json.loads(text)
        claim_fields = {
            name: value for name, value in fields.items() if name not in ("kind", "name", "version")
        }
        return Claim(identity, claim_fields.pop("owner", ""), **claim_fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise TargetError(
            f"table property {property_name(identity)!r} of {label} is not a claim of spark-channel: {error}; remove "
            "the property, if no job of this name is running"
        ) from error


def kept_in(name: str, text: str, target: str, now: str) -> KeptClaim | None:
    """The claim of a property; None: published versions of earlier releases, whose property has no name.

    Raises:
        TargetError: the property is damaged.
    """
    if '"kind": "versions"' in text:
        return kept_versions(name, text, target)
    try:
        fields = json.loads(text)
        identity = Identity(target, fields["kind"], fields["name"], fields.get("version"))
    except (ValueError, TypeError, KeyError) as error:
        raise TargetError(
            f"table property {name!r} of {target} is not a claim of spark-channel: {error!r}; remove the property, if "
            "no job is running"
        ) from error
    claim = claim_of({property_name(identity): text}, identity, target)
    return (
        None
        if claim is None or not (claim.owner or claim.published_at)
        else kept_of(claim, name, now)
    )


def forgotten(properties: Mapping[str, str]) -> list[str]:
    """The properties of the oldest jobs that were published: a job's name is used once."""
    jobs = []
    for name, text in properties.items():
        if name.startswith(PREFIX) and '"kind": "job"' in text:
            fields = json.loads(text)
            if fields.get("state") == "published" or not fields.get("owner"):
                jobs.append((str(fields.get("published_at", "")), name))
    return [name for _, name in sorted(jobs)[:-_JOBS_KEPT]]
