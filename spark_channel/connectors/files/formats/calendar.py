"""Dates and times of files that count old days in the Julian calendar, as Hive and Spark before 3.0 do."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa

from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc

__all__ = ["UTC", "Julian", "first_julian", "temporal_leaves"]

_FIRST_GREGORIAN = -141_427
"""1582-10-15 in days since 1970."""
_FIRST_SURE = -2_208_988_800_000_000
"""1900-01-01 in microseconds: before it, Java's old and new classes know other offsets of zones."""
_EPOCH = date(1970, 1, 1)
_DAY = 86_400_000_000
UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Z", "+00:00", "UCT", "Zulu"})


@dataclass(frozen=True, slots=True)
class Julian:
    """What a file says of its days before 1582-10-15: they are of the Julian calendar.

    `zone`: where its times were local when they were written; None = not known. `holds`: the columns, at any depth,
    for which this is so are those with types for which it is true.
    """

    zone: str | None
    holds: Callable[[str], bool]

    def rebased(self, batch: pa.RecordBatch, shown: str) -> pa.RecordBatch:
        """The same dates and times in the Gregorian calendar, as Spark reads them.

        Raises:
            SourceError: an old time in another zone than UTC, or an old date inside another value; names the column.
        """
        columns = [
            self._rebased(values, name, shown) if self.holds(name) else values
            for name, values in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _rebased(self, values: pa.Array, name: str, shown: str) -> pa.Array:
        kind = values.type
        if pa.types.is_date32(kind):
            days = values.view(pa.int32())
            if (pc.min(days).as_py() or 0) >= _FIRST_GREGORIAN:
                return values
            return _gregorian(days).view(kind)
        if pa.types.is_timestamp(kind) and kind.tz:
            micros = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
            oldest = pc.min(micros).as_py() or 0
            if oldest >= _FIRST_SURE:
                return values
            if self.zone not in UTC:
                raise SourceError(
                    f"{shown}: column {name!r} holds {pa.scalar(oldest, pa.timestamp('us'))}, a time before 1900 in "
                    f"the calendar and the zone ({self.zone or 'not known'}) of an old version of Spark or Hive, "
                    "which cannot be converted exactly. Write the file again as Parquet with Spark 3 or later"
                )
            midnights = pc.floor_temporal(micros.view(pa.timestamp("us")), unit="day")
            days = midnights.cast(pa.date32()).view(pa.int32())
            moved = pc.subtract(_gregorian(days), days)
            return (
                pc.add(micros, pc.multiply(moved.cast(pa.int64()), _DAY))
                .view(pa.timestamp("us", kind.tz))
                .cast(kind)
            )
        if pa.types.is_nested(kind):
            for leaf in temporal_leaves(values):
                self._check_new(leaf, name, shown)
        return values

    def check(self, batch: pa.RecordBatch, shown: str) -> None:
        """
        Raises:
            SourceError: a date or time of the Julian calendar; names the column.
        """
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if self.holds(name):
                for leaf in temporal_leaves(values):
                    self._check_new(leaf, name, shown)

    def _check_new(self, leaf: pa.Array, name: str, shown: str) -> None:
        if not self._rebased(leaf, name, shown).equals(leaf):
            raise SourceError(
                f"{shown}: column {name!r} holds {pc.min(leaf)} inside another value, in the Julian calendar of "
                "Hive and old versions of Spark. Write the file again as Parquet with Spark 3 or later"
            )


def first_julian(leaf: pa.Array) -> object:
    """A date of `leaf` for which calendars differ; None = there is none."""
    if not pa.types.is_date32(leaf.type):
        return None
    oldest = pc.min(leaf.view(pa.int32())).as_py()
    found = oldest is not None and oldest < _FIRST_GREGORIAN
    return pc.min(leaf).as_py() if found else None


def temporal_leaves(values: pa.Array) -> list[pa.Array]:
    """The dates and timestamps in `values`, at any depth."""
    kind = values.type
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        values = values.cast(pa.list_(entry))
    if pa.types.is_struct(kind):
        return [leaf for child in values.flatten() for leaf in temporal_leaves(child)]
    if pa.types.is_nested(values.type):
        return temporal_leaves(values.flatten())
    return [values] if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else []


def _gregorian(days: pa.Int32Array) -> pa.Int32Array:
    """Days since 1970 of the same year, month and day; those before 1582-10-15 are Julian."""
    coded = days.dictionary_encode()
    made = [
        day if day >= _FIRST_GREGORIAN else _one_gregorian(day)
        for day in coded.dictionary.to_pylist()
    ]
    return pa.array(made, pa.int32()).take(coded.indices)


def _one_gregorian(day: int) -> int:
    # Richards' algorithm, from the number of the Julian day.
    count = day + 2_440_588 + 32_082
    years = (4 * count + 3) // 1461
    rest = count - 1461 * years // 4
    months = (5 * rest + 2) // 153
    year, month = years - 4800 + months // 10, months + 3 - 12 * (months // 10)
    of_month = rest - (153 * months + 2) // 5
    # The years 1000, 1100, ... have a 29 February in the Julian calendar alone: Spark makes it 1 March.
    return (date(year, month, 1) + timedelta(of_month) - _EPOCH).days
