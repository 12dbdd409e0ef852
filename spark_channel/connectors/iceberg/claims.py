"""Claims in an Iceberg table's metadata: a table property for each identity, which no expiry of snapshots removes.

Each change of a claim comes with a snapshot on `main`, and requires the one before it: every catalog checks that
requirement in the step in which it commits. Properties alone could be changed by two jobs at once.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_channel.connectors.commit import Claim, Identity
from spark_channel.errors import TargetError

__all__ = ["claim_of", "forgotten", "property_name", "property_value"]

_PREFIX = "spark-channel.claim."
_JOBS_KEPT = 200


def property_name(identity: Identity) -> str:
    return _PREFIX + identity.key


def property_value(claim: Claim) -> str:
    found: dict[str, Any] = asdict(claim)
    identity = found.pop("identity")
    found |= {"kind": identity["kind"], "name": identity["name"], "version": identity["version"]}
    return json.dumps({name: value for name, value in found.items() if value not in (None, "", 0)})


def claim_of(properties: Mapping[str, str], identity: Identity, shown: str) -> Claim | None:
    """
    Raises:
        TargetError: the property is damaged.
    """
    text = properties.get(property_name(identity))
    if text is None:
        return None
    try:
        found = json.loads(text)
        known = {name: value for name, value in found.items() if name not in ("kind", "name", "version")}
        return Claim(identity, known.pop("owner", ""), **known)
    except (ValueError, TypeError, AttributeError) as error:
        raise TargetError(
            f"table property {property_name(identity)!r} of {shown} is not a claim of spark-channel: {error}; remove "
            "the property, if no job of this name is running"
        ) from error


def forgotten(properties: Mapping[str, str]) -> list[str]:
    """The properties of the oldest jobs that were published: a job's name is used once."""
    jobs = []
    for name, text in properties.items():
        if name.startswith(_PREFIX) and '"kind": "job"' in text:
            found = json.loads(text)
            if found.get("state") == "published" or not found.get("owner"):
                jobs.append((str(found.get("published_at", "")), name))
    return [name for _, name in sorted(jobs)[:-_JOBS_KEPT]]
