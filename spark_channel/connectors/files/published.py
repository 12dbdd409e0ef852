"""The published versions of one `txnAppId`: all of them, permanently, as ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PublishedVersions"]

_TIMES_KEPT = 100
_LOWEST = -(2**63)


@dataclass(frozen=True)
class PublishedVersions:
    """`ranges`: (first, last) of versions without a gap, in order. `times`: of the newest, when."""

    ranges: tuple[tuple[int, int], ...] = ()
    times: Mapping[int, str] = field(default_factory=dict)

    def published_at(self, version: int) -> str | None:
        """The time; "an unknown time" of one that is published long since; None = it was not published."""
        if version in self.times:
            return self.times[version]
        published = any(first <= version <= last for first, last in self.ranges)
        return "an unknown time" if published else None

    def having(self, version: int, at: str) -> "PublishedVersions":
        times = {**{key: old for key, old in self.times.items() if key != version}, version: at}
        return PublishedVersions(
            _joined([*self.ranges, (version, version)]), dict(list(times.items())[-_TIMES_KEPT:])
        )

    @classmethod
    def of_ledger(cls, known: Mapping[int, str], kept: int) -> "PublishedVersions":
        """From the first format of the ledger: it kept so many, and what is older than all of them was published."""
        ranges = [(version, version) for version in known]
        if len(known) >= kept:
            ranges.append((_LOWEST, min(known)))
        return cls(_joined(ranges), dict(known))

    def joined(self, other: "PublishedVersions") -> "PublishedVersions":
        return PublishedVersions(_joined([*self.ranges, *other.ranges]), {**self.times, **other.times})

    def to_json(self) -> dict[str, Any]:
        return {
            "ranges": [list(each) for each in self.ranges],
            "at": {str(version): at for version, at in self.times.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PublishedVersions":
        ranges = tuple((int(first), int(last)) for first, last in data["ranges"])
        return cls(ranges, {int(version): at for version, at in data["at"].items()})


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    made: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return tuple(made)
