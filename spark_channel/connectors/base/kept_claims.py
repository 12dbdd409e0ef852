"""What a target keeps of earlier writes, as `spark-channel claims` lists and forgets it. No I/O."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spark_channel.connectors.base.claims import Claim, is_alive
from spark_channel.errors import OptionError

__all__ = [
    "ClaimName",
    "KeptClaim",
    "Ranges",
    "bits_of",
    "chosen",
    "covers",
    "joined",
    "kept_of",
    "numbers",
    "overlap",
    "ranges_of_bits",
    "without",
    "without_bits",
]

Ranges = tuple[tuple[int, int], ...]
"""(first, last) of numbers without a gap, in order."""

_KINDS = ("txn", "stream", "job")
_VERSIONS = re.compile(r"(-?\d+)(?:\.\.(-?\d+))?")
_TAKES = "txn:NAME, txn:NAME:VERSION, txn:NAME:FIRST..LAST, stream:NAME or job:NAME, as `claims list` shows them"


@dataclass(frozen=True, slots=True)
class ClaimName:
    """What a user names: `versions` None = all of them."""

    kind: str
    name: str
    versions: Ranges | None = None

    @classmethod
    def from_text(cls, text: str) -> "ClaimName":
        """
        Raises:
            OptionError: another text.
        """
        kind, colon, name = text.partition(":")
        if kind not in _KINDS or not colon or not name:
            raise OptionError(
                f"claim {text!r} is not a claim's id; it takes {_TAKES}",
                option="CLAIM",
                got=text,
                takes=_TAKES,
            )
        before, colon, after = name.rpartition(":")
        match = _VERSIONS.fullmatch(after) if kind == "txn" and colon and before else None
        if match is None:
            return cls(kind, name)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise OptionError(
                f"claim {text!r} has no version: {last} is below {first}. Give the lower number first",
                option="CLAIM",
                got=text,
                takes=_TAKES,
            )
        return cls(kind, before, ((first, last),))


@dataclass(frozen=True, slots=True)
class KeptClaim:
    """One record of a target: a write that was published, or that a run holds.

    `versions` of a transaction id; several where they share a record, whose `at` is that of the newest. `at`: when it
    was published (ISO, UTC); "" = not, or not known, but before the time `before`. `is_held`: a run that may live
    writes under it. `key`: what the target calls the record.
    """

    kind: str
    name: str
    versions: Ranges = ()
    is_published: bool = True
    is_held: bool = False
    run: str = ""
    at: str = ""
    before: str = ""
    rows: int | None = None
    key: str = ""

    @property
    def id(self) -> str:
        """The text that `ClaimName.from_text` takes."""
        if not self.versions:
            return f"{self.kind}:{self.name}"
        first, last = self.versions[0][0], self.versions[-1][1]
        return f"{self.kind}:{self.name}:{first}" + (f"..{last}" if last > first else "")

    @property
    def count(self) -> int:
        """The number of versions."""
        return sum(last - first + 1 for first, last in self.versions)


def kept_of(claim: Claim, key: str, now: str) -> KeptClaim:
    """As a target keeps a claim of its own record."""
    identity = claim.identity
    version = identity.version if identity.kind == "txn" else None
    is_published = claim.state == "published" or claim.last is not None
    return KeptClaim(
        identity.kind,
        identity.name,
        () if version is None else ((version, version),),
        is_published,
        claim.state != "published" and bool(claim.owner) and is_alive(claim, now) != "dead",
        claim.owner,
        (claim.published_at or "") if is_published else "",
        rows=claim.rows if is_published else None,
        key=key,
    )


def chosen(
    kept_claims: Iterable[KeptClaim], names: Sequence[ClaimName], before: str | None
) -> list[KeptClaim]:
    """Those of `kept_claims` that `names` mean, with the versions that are meant, or that were published before a time.

    A stream has to be named: one that is read once a year is as old as one that is read no more.
    """
    chosen_claims = []
    for claim in kept_claims:
        if before is not None:
            if (
                claim.kind != "stream"
                and claim.is_published
                and "" < (claim.at or claim.before) < before
            ):
                chosen_claims.append(claim)
            continue
        named_here = [name for name in names if (name.kind, name.name) == (claim.kind, claim.name)]
        if any(name.versions is None for name in named_here):
            chosen_claims.append(claim)
        elif named_here:
            versions_asked = joined(pair for name in named_here for pair in name.versions or ())
            if versions := overlap(claim.versions, versions_asked):
                chosen_claims.append(replace(claim, versions=versions))
    return chosen_claims


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def overlap(one: Ranges, other: Ranges) -> Ranges:
    """The numbers that are in both."""
    common, index = [], 0
    for first, last in one:
        while index < len(other) and other[index][1] < first:
            index += 1
        for low, high in other[index:]:
            if low > last:
                break
            common.append((max(first, low), min(last, high)))
    return tuple(common)


def without(ranges: Ranges, gone: Ranges) -> Ranges:
    """The numbers of `ranges` that are not in `gone`."""
    remaining = []
    for first, last in ranges:
        for low, high in overlap(((first, last),), gone):
            if low > first:
                remaining.append((first, low - 1))
            first = high + 1
        if first <= last:
            remaining.append((first, last))
    return tuple(remaining)


def covers(ranges: Ranges, number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def numbers(ranges: Ranges) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def ranges_of_bits(bits: int, start: int) -> Ranges:
    """The numbers whose bits are set; the lowest bit is that of `start`."""
    ranges = []
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        ranges.append((start + zeros, start + zeros + ones - 1))
        start += zeros + ones
    return tuple(ranges)


def bits_of(ranges: Ranges, start: int, length: int) -> int:
    """The bits of the numbers from `start` on, of which there are `length`."""
    bits = 0
    for first, last in overlap(ranges, ((start, start + length - 1),)):
        bits |= ((1 << (last - first + 1)) - 1) << (first - start)
    return bits


def without_bits(bits: int, ranges: Ranges, start: int, length: int) -> int:
    return bits & ~bits_of(ranges, start, length)
