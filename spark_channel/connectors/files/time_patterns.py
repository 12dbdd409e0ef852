"""Dates and times by the patterns of Java, such as `dd.MM.yyyy HH:mm:ss.SSS`: from text and to text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from spark_channel.lazy import compute as pc
from spark_channel.transform.time_patterns import java_parts

__all__ = ["TimePattern"]

_YEARS = ("yyyy", "uuuu", "yyy", "uuu", "y", "u")
_ZONES = {"X": r"Z|[+-]\d{2}", "XX": r"Z|[+-]\d{4}", "XXX": r"Z|[+-]\d{2}:\d{2}", "Z": r"[+-]\d{4}"}
_PLACES = {
    "y": (0, 4),
    "M": (5, 7),
    "d": (8, 10),
    "H": (11, 13),
    "m": (14, 16),
    "s": (17, 19),
    "S": (20, 26),
}
"""Where Arrow writes each part of a time of microseconds."""
_ISO = (
    ("y", ""),
    ("M", "-"),
    ("d", "-"),
    ("H", " "),
    ("m", ":"),
    ("s", ":"),
    ("S", "."),
    ("Z", ""),
)

_BEHIND = {"H": "msSZ", "m": "HsSZ", "s": "SZ"}
"""Where a pattern has one of these, ISO 8601 needs the part as well."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Literal text (`letter` is empty), or a part of a time: `digits` 0 = as many as it needs, else so many."""

    letter: str
    text: str
    digits: int = 0

    @property
    def regex(self) -> str:
        if not self.letter:
            return re.escape(self.text)
        if self.letter == "Z":
            return f"(?P<Z>{_ZONES[self.text]})"
        digits = rf"\d{{{self.digits}}}" if self.digits else r"0|[1-9]\d?"
        return f"(?P<{self.letter}>{digits})"


@dataclass(frozen=True)
class TimePattern:
    """A pattern that names a year, a month and a day, and may name more.

    Reading takes exactly the texts that formatting would write: no 31 February, no second 60, no year of two digits.
    """

    text: str
    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, text: str) -> "TimePattern":
        """
        Raises:
            ValueError: a part that is not supported, a part twice, or no day.
        """
        return _parsed(text)

    @property
    def has_zone(self) -> bool:
        return any(part.letter == "Z" for part in self.parts)

    def parse(self, texts: pa.Array) -> pa.TimestampArray:
        """The times of `texts` in microseconds, in UTC if the pattern has a zone.

        Raises:
            pa.ArrowInvalid: a text that is not of the pattern, or no time.
        """
        texts = texts.cast(pa.string())
        is_fixed = all(part.digits or not part.letter for part in self.parts)
        found = self._cut(texts) if is_fixed else self._matched(texts)
        pieces: list[Any] = []
        for letter, before in _ISO:
            if letter in found:
                pieces += [before, found[letter]]
            elif letter in "Hms" and found.keys() & set(_BEHIND[letter]):
                pieces += [before, "00"]
        iso = pc.binary_join_element_wise(*pieces, "")
        # Arrow takes no other digits, no day that a month does not have, no hour 24 and no second 60.
        return iso.cast(pa.timestamp("us", "UTC" if self.has_zone else None))

    def _cut(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The bytes of each part of texts that all have the same length."""
        raw = texts.view(pa.binary())
        found, position = {}, 0
        fits = []
        for part in self.parts:
            literal = part.text.encode()
            end = position + (part.digits or len(literal))
            piece = pc.binary_slice(raw, position, end)
            if part.letter:
                found[part.letter] = piece.view(pa.string())
            else:
                fits.append(pc.equal(piece, literal))
            position = end
        fits.append(pc.equal(pc.binary_length(raw), position))
        for fit in fits:
            self._check(texts, fit)
        return found

    def _matched(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The text of each part, with two digits."""
        pattern = "^" + "".join(part.regex for part in self.parts) + "$"
        self._check(texts, pc.match_substring_regex(texts, pattern))
        rows = pc.extract_regex(texts, pattern)
        found = {
            part.letter: pc.struct_field(rows, part.letter) for part in self.parts if part.letter
        }
        return {
            letter: values if letter in "SZ" else pc.utf8_lpad(values, 2, "0")
            for letter, values in found.items()
        }

    def _check(self, texts: pa.Array, fits: pa.BooleanArray) -> None:
        if not pc.all(fits, min_count=0).as_py():
            wrong = texts.filter(pc.invert(fits))[0].as_py()
            raise pa.ArrowInvalid(f"{wrong!r} is not of the pattern {self.text}")

    def format(self, values: pa.Array) -> pa.Array:
        """The text of dates and of times, which are in UTC if they have a zone; NULL stays NULL.

        Raises:
            pa.ArrowInvalid: a year before 0 or after 9999.
        """
        if pa.types.is_timestamp(values.type):
            plain = values.cast(
                pa.timestamp(values.type.unit, None if values.type.tz is None else "UTC")
            )
            plain = plain.cast(pa.timestamp(values.type.unit))
            if values.type.unit == "ns":
                plain = pc.floor_temporal(plain, unit="microsecond")
            iso = plain.cast(pa.timestamp("us")).cast(pa.string())
        else:
            iso = pc.binary_join_element_wise(
                values.cast(pa.date32()).cast(pa.string()), " 00:00:00.000000", ""
            )
        if not pc.all(pc.equal(pc.binary_length(iso), 26), min_count=0).as_py():
            raise pa.ArrowInvalid(f"the pattern {self.text} is for years from 0 to 9999")
        raw = iso.view(pa.binary())
        return pc.binary_join_element_wise(
            *(self._shown(raw, part) for part in self.parts), pa.scalar("")
        ).cast(pa.large_string())

    def _shown(self, raw: pa.Array, part: _Part) -> Any:
        if not part.letter:
            return pa.scalar(part.text)
        if part.letter == "Z":
            return pa.scalar("+0000" if part.text == "Z" else "Z")
        start, end = _PLACES[part.letter]
        if part.letter == "S":
            end = start + part.digits
        piece = pc.binary_slice(raw, start, end).view(pa.string())
        return piece if part.digits else pc.replace_substring_regex(piece, "^0", "")


@cache
def _parsed(text: str) -> TimePattern:
    parts = tuple(_parts(text))
    letters = [part.letter for part in parts if part.letter]
    twice = {letter for letter in letters if letters.count(letter) > 1}
    if twice or not {"y", "M", "d"} <= set(letters):
        raise ValueError(
            "a pattern with a year, a month and a day, each part once, such as dd.MM.yyyy HH:mm"
        )
    return TimePattern(text, parts)


def _parts(pattern: str) -> Iterator[_Part]:
    for text, is_letters in _known(pattern):
        letter = text[0]
        if not is_letters:
            yield _Part("", text)
        elif text in _YEARS:
            yield _Part("y", text, 4)
        elif letter in "MdHms" and len(text) <= 2:
            yield _Part(letter, text, len(text) if len(text) == 2 else 0)
        elif letter == "S" and len(text) <= 6:
            yield _Part("S", text, len(text))
        elif text in _ZONES:
            yield _Part("Z", text)
        else:
            raise ValueError(_takes(text))


def _known(pattern: str) -> Iterator[tuple[str, bool]]:
    try:
        yield from java_parts(pattern)
    except ValueError as error:
        raise ValueError(_takes(str(error))) from None


def _takes(part: str) -> str:
    return (
        "a pattern of yyyy, MM, M, dd, d, HH, H, mm, m, ss, s, SSS, XXX, Z and quoted text; "
        f"{part!r} is not among them. ISO 8601 (2020-01-31 13:05:00.123456+01:00) needs no pattern"
    )
