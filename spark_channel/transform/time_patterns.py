"""Times from texts and as texts: by patterns in strptime's letters, and by Java's, such as `dd.MM.yyyy HH:mm:ss.SSS`.

Beside `%Y %y %m %d %H %I %M %S %p %b %B %a %A %%` a pattern in strptime's letters has `%L`, milliseconds in three
digits, and `%-m`, `%-d`, `%-H`, `%-I`, `%-M`, `%-S` and `%-L`, numbers without leading zeros.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa

from spark_channel.errors import OptionError
from spark_channel.lazy import compute as pc

__all__ = ["TimePattern", "formatted", "java_parts", "parsed", "strptime_pattern"]

_JAVA_PART = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z'])")
_DIRECTIVE = re.compile(r"%-?[A-Za-z%]")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_ENDS = ("uary", "ruary", "ch", "il", "", "e", "y", "ust", "tember", "ober", "ember", "ember")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY_ENDS = ("day", "sday", "nesday", "rsday", "day", "urday", "day")
_SMALL = {  # name of the value: its texts with or without a leading zero, and of two digits
    "month": ("0?[1-9]|1[0-2]", "0[1-9]|1[0-2]"),
    "day": ("0?[1-9]|[12][0-9]|3[01]", "0[1-9]|[12][0-9]|3[01]"),
    "hour": ("[01]?[0-9]|2[0-3]", "[01][0-9]|2[0-3]"),
    "half": ("0?[1-9]|1[0-2]", "0[1-9]|1[0-2]"),
    "minute": ("[0-5]?[0-9]", "[0-5][0-9]"),
    "second": ("[0-5]?[0-9]", "[0-5][0-9]"),
}
_NUMBERS = {"m": "month", "d": "day", "H": "hour", "I": "half", "M": "minute", "S": "second"}
_NAMES = {
    "b": ("month_name", _MONTHS, _MONTH_ENDS),
    "a": ("weekday", _WEEKDAYS, _WEEKDAY_ENDS),
}
_YEARS_AHEAD = 20
"""Of two digits, as in Java: the year of the hundred that end 20 years from now."""
_OWN: dict[str, Callable[[pa.Array], pa.Array]] = {
    "%-m": lambda moments: pc.cast(pc.month(moments), pa.string()),
    "%-d": lambda moments: pc.cast(pc.day(moments), pa.string()),
    "%-H": lambda moments: pc.cast(pc.hour(moments), pa.string()),
    "%-I": lambda moments: pc.replace_substring_regex(pc.strftime(moments, format="%I"), "^0", ""),
    "%-M": lambda moments: pc.cast(pc.minute(moments), pa.string()),
    "%-S": lambda moments: pc.cast(pc.second(moments), pa.string()),
    "%-L": lambda moments: pc.cast(pc.millisecond(moments), pa.string()),
    "%L": lambda moments: pc.utf8_lpad(pc.cast(pc.millisecond(moments), pa.string()), 3, "0"),
}
"""What Arrow's strftime does not write."""
_LETTERS = {
    "yyyy": "%Y",
    "yyy": "%Y",
    "yy": "%y",
    "y": "%Y",
    **dict.fromkeys(("MM", "LL"), "%m"),
    **dict.fromkeys(("M", "L"), "%-m"),
    **dict.fromkeys(("MMM", "LLL"), "%b"),
    **dict.fromkeys(("MMMM", "LLLL"), "%B"),
    "dd": "%d",
    "d": "%-d",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%L",
    "S": "%-L",
    "a": "%p",
    **dict.fromkeys(("E", "EE", "EEE"), "%a"),
    "EEEE": "%A",
}
_REFUSED = {
    "S": "S counts milliseconds in Java, so write SSS",
    "y": "a year has four digits, so write yyyy",
    "Y": "Y is the year of a week; write yyyy",
    "D": "D is the day of the year; write dd for the day of the month",
    "k": "k counts hours from 1 to 24; write HH",
    "K": "K counts hours from 0 to 11; write hh",
    **dict.fromkeys("zZX", "times have no zone in a job"),
    **dict.fromkeys("GwWFu", "eras, and days and weeks by their numbers, are not read"),
}
"""Letters of SimpleDateFormat that are not read, or not so often, with what to do."""
_TWO_NUMBERS = re.compile(r"(?=%-[a-zA-Z]%-?[YymdHIMSL]|%[YymdHIMSL]%-)")
_SAME = {"y": "Y", "b": "m", "B": "m", "A": "a", "I": "H"}
"""Directives of one part of a time."""
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
class _Pattern:
    """`regex` finds the values that `groups` name, and texts of values that exist by themselves."""

    regex: str
    groups: tuple[str, ...]


@cache
def _compiled(pattern: str) -> _Pattern:
    pieces = _pieces(pattern)
    parts, groups = [], []
    for number, piece in enumerate(pieces):
        letter = piece.removeprefix("%").removeprefix("-")
        if not piece.startswith("%") or piece == "%%":
            # As many blanks as there are: Java's parser skips those before a number.
            parts.append(re.sub(r"(?:\\ )+", r"\\s+", re.escape(piece.replace("%%", "%"))))
            continue
        beside = [pieces[n] for n in (number - 1, number + 1) if 0 <= n < len(pieces)]
        name, texts = _group(letter, fixed=any(map(_is_number, beside)))
        parts.append(f"(?P<{name}>{texts})")
        groups.append(name)
    return _Pattern(f"^(?i:{''.join(parts)})$", tuple(groups))


def _pieces(pattern: str) -> list[str]:
    return [piece for piece in re.split(f"({_DIRECTIVE.pattern})", pattern) if piece]


def _is_number(piece: str) -> bool:
    return piece.startswith("%") and piece[-1] in {*_NUMBERS, "Y", "y", "L"}


def _group(letter: str, *, fixed: bool) -> tuple[str, str]:
    if letter in _NUMBERS:
        name = _NUMBERS[letter]
        return name, _SMALL[name][fixed]
    if letter.lower() in _NAMES:
        name, starts, ends = _NAMES[letter.lower()]
        return name, "|".join(f"{a}(?:{b})?" for a, b in zip(starts, ends, strict=True))
    others = {
        "Y": ("year", "[0-9]{4}"),
        "y": ("short_year", "[0-9]{2}"),
        "p": ("am_or_pm", "am|pm"),
        "L": ("milli", "[0-9]{3}|0"),
    }
    return others[letter]


def java_parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a date pattern of Java, such as `dd.MM.yyyy`: (text, whether it is letters of a time).

    Text in single quotes is literal, and comes without them.

    Raises:
        ValueError: a quote without its end. Its argument is what remains of the pattern.
    """
    position = 0
    for match in _JAVA_PART.finditer(pattern):
        if match.start() != position:
            break
        position = match.end()
        quoted, letter, _ = match.groups()
        if quoted is not None:
            yield quoted.replace("''", "'") or "'", False
        else:
            yield match.group(), letter is not None
    if position != len(pattern):
        raise ValueError(pattern[position:])


def parsed(texts: pa.Array, pattern: str) -> pa.Array:
    """Times in microseconds; null for a text that the pattern does not fit, or whose day does not exist."""
    letters = set(re.findall("[A-Za-z]", "".join(_DIRECTIVE.findall(pattern))))
    if not set("Ymd") <= letters <= set("YmdHMS"):
        return _by_parts(texts, pattern)
    moments = pc.strptime(texts, format=pattern.replace("%-", "%"), unit="us", error_is_null=True)
    # Arrow takes second 60, and makes 2 March of 31 February (findings/arrow-strptime-31-february.sh): such texts are
    # checked part by part.
    fits = pc.match_substring_regex(texts, re.sub(r"\?P<\w+>", "?:", _compiled(pattern).regex))
    doubtful = pc.or_(pc.invert(fits), pc.less_equal(pc.day(moments), 3))
    doubtful = pc.fill_null(pc.and_(doubtful, pc.is_valid(moments)), False)
    if not pc.any(doubtful, min_count=0).as_py():
        return moments
    return pc.replace_with_mask(moments, doubtful, _by_parts(texts.filter(doubtful), pattern))


def _by_parts(texts: pa.Array, pattern: str) -> pa.Array:
    compiled = _compiled(pattern)
    captures = pc.extract_regex(texts, pattern=compiled.regex)
    values = {name: pc.struct_field(captures, name) for name in compiled.groups}
    whole = {
        name: pc.cast(array, pa.int32())
        for name, array in values.items()
        if name not in ("month_name", "weekday", "am_or_pm")
    }
    year = _year(whole)
    month = whole.get("month", 1)
    if "month_name" in values:
        month = _position(values["month_name"], _MONTHS)
    day, hour = whole.get("day", 1), whole.get("hour", 0)
    if "half" in whole:
        hour = pc.if_else(pc.equal(whole["half"], 12), 0, whole["half"])
        if "am_or_pm" in values:
            afternoon = pc.equal(pc.ascii_lower(values["am_or_pm"]), "pm")
            hour = pc.if_else(afternoon, pc.add(hour, 12), hour)
    year_text = pc.utf8_lpad(_text(year), 4, "0")
    numbers = [month, day, hour, whole.get("minute", 0), whole.get("second", 0)]
    written = pc.binary_join_element_wise(year_text, *map(_text, numbers), " ")
    moments = pc.strptime(written, format="%Y %m %d %H %M %S", unit="us", error_is_null=True)
    if isinstance(moments, pa.Scalar):  # a pattern of nothing but fixed text
        moments = pa.repeat(moments, len(texts))
    exists = pc.and_(pc.equal(pc.day(moments), day), pc.greater(pc.year(moments), 0))
    if "weekday" in values:
        shown_day = pc.subtract(_position(values["weekday"], _WEEKDAYS), 1)
        exists = pc.and_(exists, pc.equal(pc.day_of_week(moments), shown_day))
    if "milli" in whole:
        millis = pc.multiply(pc.cast(whole["milli"], pa.int64()), 1000)
        moments = pc.add(moments, pc.cast(millis, pa.duration("us")))
    is_exact = pc.and_(pc.is_valid(captures), pc.fill_null(exists, False))
    return pc.if_else(is_exact, moments, pa.scalar(None, moments.type))


def _year(whole: dict[str, pa.Array]) -> pa.Array | int:
    if "year" in whole:
        return whole["year"]
    if "short_year" not in whole:
        return 1970
    century, most = divmod(datetime.now(UTC).year + _YEARS_AHEAD, 100)
    short = whole["short_year"]
    before = pc.if_else(pc.greater(short, most), 100 * (century - 1), 100 * century)
    return pc.add(before, short)


def _position(names: pa.Array, beginnings: tuple[str, ...]) -> pa.Array:
    """From 1 on, by the first three letters."""
    start = pc.utf8_slice_codeunits(pc.ascii_lower(names), 0, 3)
    return pc.add(pc.index_in(start, pa.array(beginnings)), 1)


def _text(number: pa.Array | int) -> pa.Array | str:
    return pc.cast(number, pa.string()) if isinstance(number, pa.Array) else str(number)


def formatted(column: pa.Array, pattern: str) -> pa.Array:
    """Timestamps, days and times of day as texts, cut to the second, or with `%L` to the millisecond."""
    if pa.types.is_timestamp(column.type):
        column = pc.local_timestamp(column) if column.type.tz else column
    elif pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("ms"))
    elif pa.types.is_time(column.type):
        column = pc.cast(pc.cast(column, pa.time64("us"), safe=False), pa.int64())
        column = pc.cast(column, pa.timestamp("us"))
    whole = pc.cast(pc.floor_temporal(column, unit="second"), pa.timestamp("s"))
    pieces: list[str] = []
    for piece in _pieces(pattern):
        is_own = piece in _OWN
        if pieces and not is_own and pieces[-1] not in _OWN:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    if len(pieces) == 1 and pieces[0] not in _OWN:
        return pc.strftime(whole, format=pattern)
    texts = [
        _OWN[piece](column) if piece in _OWN else pc.strftime(whole, format=piece)
        for piece in pieces
    ]
    return pc.binary_join_element_wise(*texts, "")


def strptime_pattern(pattern: str) -> str:
    """Java's date pattern as one in strptime's letters: `yyyy-MM-dd` is `%Y-%m-%d`; text in single quotes is literal.

    Raises:
        OptionError: a letter without a counterpart (`Z`, `w`, ...), or an unterminated quote.
    """
    pieces: list[str] = []
    try:
        for text, is_letters in java_parts(pattern):
            if not is_letters:
                pieces.append(text.replace("%", "%%"))
            elif text in _LETTERS:
                pieces.append(_LETTERS[text])
            else:
                raise _unknown(pattern, text)
    except ValueError as error:
        raise _unknown(pattern, str(error)) from None
    strptime_text = "".join(pieces)
    parts = re.findall(r"%-?([A-Za-z])", strptime_text.replace("%%", ""))
    if len(parts) != len({_SAME.get(part, part) for part in parts}):
        raise _refused(pattern, "names a part of the time twice", "each part once")
    if not parts:
        raise _refused(pattern, "names no part of a time", "letters such as yyyy-MM-dd")
    if _TWO_NUMBERS.search(strptime_text.replace("%%", "")):
        raise _refused(
            pattern, "does not say where a number ends", "two letters for each, such as yyyyMMdd"
        )
    return strptime_text


def _unknown(pattern: str, part: str) -> OptionError:
    letters = ", ".join(dict.fromkeys(_LETTERS))
    hint = _REFUSED.get(part[:1], "")
    return _refused(
        pattern, f"has {part!r}, which cannot be read", f"a date pattern of {letters}", hint
    )


def _refused(pattern: str, fault: str, takes: str, hint: str = "") -> OptionError:
    reason = f" ({hint})" if hint else ""
    return OptionError(
        f"date pattern {pattern!r} {fault}{reason}; it takes {takes}",
        option="format",
        got=pattern,
        takes=takes,
    )


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
    def from_text(cls, text: str) -> "TimePattern":
        """
        Raises:
            ValueError: a part that is not supported, a part twice, or no day.
        """
        return _of_text(text)

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
        parts = self._cut(texts) if is_fixed else self._matched(texts)
        pieces: list[Any] = []
        for letter, before in _ISO:
            if letter in parts:
                pieces += [before, parts[letter]]
            elif letter in "Hms" and parts.keys() & set(_BEHIND[letter]):
                pieces += [before, "00"]
        iso = pc.binary_join_element_wise(*pieces, "")
        # Arrow takes no other digits, no day that a month does not have, no hour 24 and no second 60.
        return iso.cast(pa.timestamp("us", "UTC" if self.has_zone else None))

    def _cut(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The bytes of each part of texts that all have the same length."""
        raw = texts.view(pa.binary())
        parts, position = {}, 0
        fits = []
        for part in self.parts:
            literal = part.text.encode()
            end = position + (part.digits or len(literal))
            piece = pc.binary_slice(raw, position, end)
            if part.letter:
                parts[part.letter] = piece.view(pa.string())
            else:
                fits.append(pc.equal(piece, literal))
            position = end
        fits.append(pc.equal(pc.binary_length(raw), position))
        for fit in fits:
            self._check(texts, fit)
        return parts

    def _matched(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The text of each part, with two digits."""
        pattern = "^" + "".join(part.regex for part in self.parts) + "$"
        self._check(texts, pc.match_substring_regex(texts, pattern))
        rows = pc.extract_regex(texts, pattern)
        parts = {
            part.letter: pc.struct_field(rows, part.letter) for part in self.parts if part.letter
        }
        return {
            letter: values if letter in "SZ" else pc.utf8_lpad(values, 2, "0")
            for letter, values in parts.items()
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
def _of_text(text: str) -> TimePattern:
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
