"""The published versions of one name of a transaction id: all of them, permanently, as ranges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_channel.connectors.base.kept_claims import joined

__all__ = ["PublishedVersions"]

_TIMES_KEPT = 100


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
            joined([*self.ranges, (version, version)]), dict(list(times.items())[-_TIMES_KEPT:])
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ranges": [list(range_) for range_ in self.ranges],
            "at": {str(version): at for version, at in self.times.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PublishedVersions":
        ranges = tuple((int(first), int(last)) for first, last in data["ranges"])
        return cls(ranges, {int(version): at for version, at in data["at"].items()})
