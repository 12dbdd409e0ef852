"""Published versions of one transaction id, many in one property of the table: each claim would be one forever.

A property has a bit for each of `PER_PROPERTY` versions, compressed: versions in a row, or those of each minute, take
about a hundred letters. It changes in the commit that removes the claims, so that a version is always found by one.
"""

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.base.kept_claims import KeptClaim, ranges_of_bits, without_bits
from spark_channel.errors import TargetError

__all__ = [
    "PER_PROPERTY",
    "gathered",
    "kept_versions",
    "published_in",
    "shared",
    "without_versions",
]

PER_PROPERTY = 20_000
_KEPT = 100
"""The newest versions that keep claims of their own: runs of them that are late find who published them, and when."""
_AT_ONCE = 1_000
"""Claims that one commit gathers."""


def shared(identity: Identity) -> Identity | None:
    """What the property of a version's bit is named by; None: it is not a version."""
    if identity.kind != "txn" or identity.version is None:
        return None
    name, number = identity.name, identity.version // PER_PROPERTY
    return Identity(identity.target, "versions", name, number)


def published_in(text: str, identity: Identity, label: str) -> Claim | None:
    """The claim of a version that the property has as published.

    Raises:
        TargetError: the property is damaged.
    """
    bits, at = _parsed(text, label)
    if not bits >> ((identity.version or 0) % PER_PROPERTY) & 1:
        return None
    return Claim(identity, "", state="published", published_at=at)


def gathered(
    properties: Mapping[str, str], target: str, prefix: str, named: Callable[[Identity], str]
) -> tuple[list[str], dict[str, str]]:
    """Properties of claims that a commit removes, and those that have their versions then.

    Claims under another name of the table stay, since their keys are made of that name.

    Raises:
        TargetError: a property is damaged.
    """
    old = []
    for name, text in properties.items():
        if name.startswith(prefix) and '"kind": "txn"' in text and '"state": "published"' in text:
            claim = json.loads(text)
            identity = Identity(target, "txn", str(claim["name"]), int(claim["version"]))
            if named(identity) == name:
                old.append((str(claim.get("published_at", "")), name, identity))
    old.sort(key=lambda claim: claim[:2])
    old = old[: max(0, len(old) - _KEPT)][:_AT_ONCE]
    by_property = defaultdict[str, list[tuple[str, int]]](list)
    places: dict[str, Identity] = {}
    for at, _, identity in old:
        versions_property = shared(identity)
        assert versions_property is not None
        assert identity.version is not None
        by_property[named(versions_property)].append((at, identity.version))
        places[named(versions_property)] = versions_property
    texts = {}
    for name, versions in by_property.items():
        bits, at = _parsed(properties[name], target) if name in properties else (0, "")
        for _, version in versions:
            bits |= 1 << (version % PER_PROPERTY)
        texts[name] = _written(places[name], bits, max(at, *(at for at, _ in versions)))
    return [name for _, name, _ in old], texts


def kept_versions(name: str, text: str, label: str) -> KeptClaim | None:
    """The versions that a property has; None: it is of an earlier release, which did not write their name.

    Raises:
        TargetError: the property is damaged.
    """
    bits, at = _parsed(text, label)
    property_now = json.loads(text)
    if "name" not in property_now:
        return None
    ranges = ranges_of_bits(bits, int(property_now["number"]) * PER_PROPERTY)
    return KeptClaim("txn", str(property_now["name"]), ranges, at=at, key=name)


def without_versions(
    properties: Mapping[str, str], claims: Sequence[KeptClaim], label: str
) -> tuple[list[str], dict[str, str]]:
    """Properties that a commit removes to forget `claims`, and those that keep other versions.

    Raises:
        TargetError: a property is damaged.
    """
    gone, remaining = [], {}
    for claim in claims:
        text = properties.get(claim.key, "")
        if '"kind": "versions"' in text:
            bits, at = _parsed(text, label)
            number = int(json.loads(text)["number"])
            bits = without_bits(bits, claim.versions, number * PER_PROPERTY, PER_PROPERTY)
            if bits:
                versions_property = Identity(label, "versions", claim.name, number)
                remaining[claim.key] = _written(versions_property, bits, at)
                continue
        gone.append(claim.key)
    return gone, remaining


def _written(versions_property: Identity, bits: int, at: str) -> str:
    packed = zlib.compress(bits.to_bytes(PER_PROPERTY // 8, "little"), 9)
    return json.dumps(
        {
            "kind": "versions",
            "name": versions_property.name,
            "number": versions_property.version,
            "bits": base64.b64encode(packed).decode(),
            "at": at,
        }
    )


def _parsed(text: str, label: str) -> tuple[int, str]:
    try:
        content = json.loads(text)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(content["bits"]), PER_PROPERTY // 8 + 1)
        if not unpacking.eof or len(data) > PER_PROPERTY // 8:
            raise ValueError("it has more bits than a property of versions")
        return int.from_bytes(data, "little"), str(content["at"])
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise TargetError(
            f"{label} has a table property of published versions that is damaged: {error}. Restore the property from "
            "an earlier version of the table's metadata: without it, a rerun of these versions adds their rows again"
        ) from error
