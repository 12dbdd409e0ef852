"""Query documents in the syntax of MongoDB's shell, as extended JSON.

The grammar is that of the Java driver's `Document.parse`, with comments: JSON, also with keys without quotes, single
quotes, commas before a closing bracket, `/regex/i`, `Infinity`, `NaN`, and constructors such as `ISODate("...")`.
Whatever else it finds, such as an operator or the call of a function, is refused with its place.
"""

import base64
import binascii
import math
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

__all__ = ["parse_query"]

_MOST_LEVELS = 200
"""What MongoDB's servers accept."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MILLI, _LAST_MILLI = -62_135_596_800_000, 253_402_300_799_999
_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TEXT = re.compile(
    r"""(?P<quote>["'])(?P<inside>(?:(?!(?P=quote))[^\\]|\\.)*)(?P=quote)""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED = {
    **dict(zip("bfnrt", "\b\f\n\r\t", strict=True)),
    **{character: character for character in "\"'\\/"},
}
_WORD = re.compile(r"(?:[^\W\d]|\$)(?:\w|\$)*")
_NUMBER = re.compile(r"(?:-Infinity|-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?)(?![\w.$])")
_DECIMAL = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|Infinity|NaN)")
_REGEX = re.compile(r"/((?:[^/\\\n]|\\.)+)/(\w*)")
_REGEX_OPTIONS = re.compile(r"(?:([imsx])(?!.*\1))*")
_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "Infinity": {"$numberDouble": "Infinity"},
    "NaN": {"$numberDouble": "NaN"},
    "MinKey": {"$minKey": 1},
    "MaxKey": {"$maxKey": 1},
}
_ZONE = r"(Z|(?:GMT|UTC)?[-+][0-9]{2}:?[0-9]{2}|GMT|UTC)"
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{3}))?)?"
    rf"{_ZONE}?)?"
)
_JAVA = re.compile(
    r"(\w{3}) (\w{3}) ([0-9]{1,2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) " + _ZONE
)
"""What `Date` of Java and of JavaScript shows."""
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_query(text: str, day_zone: str = "UTC") -> dict[str, Any]:
    """The query document in `text` as extended JSON, for MongoDB's own parser.

    `day_zone`: where a day without a time, `ISODate("2024-01-31")`, begins. The shell takes UTC, the Java driver the
    zone of its process.

    Raises:
        ValueError: `text` is not a query document; names line and column.
    """
    parser = _Parser(text, ZoneInfo(day_zone) if day_zone != "UTC" else UTC)
    parser.skip_blanks()
    if not parser.looks_at("{"):
        raise parser.fault("a query document begins with {")
    document = parser.value(0)
    if parser.place < len(text):
        raise parser.fault("the query document has ended before this")
    query: dict[str, Any] = document
    return query


class _Parser:
    """`place` is always behind what was read, and behind blanks and comments."""

    def __init__(self, text: str, day_zone: tzinfo) -> None:
        self.text = text
        self.place = 0
        self.day_zone = day_zone

    def fault(self, problem: str, position: int | None = None) -> ValueError:
        at = self.place if position is None else position
        line = self.text.count("\n", 0, at) + 1
        return ValueError(f"line {line}, column {at - self.text.rfind(chr(10), 0, at)}: {problem}")

    def looks_at(self, sign: str) -> bool:
        return self.text.startswith(sign, self.place)

    def skip_blanks(self) -> None:
        match = _BLANK.match(self.text, self.place)
        assert match is not None
        self.place = match.end()
        if self.looks_at("/*"):
            raise self.fault("a comment that begins here has no end")

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.place)
        if match is not None:
            self.place = match.end()
            self.skip_blanks()
        return match

    def expect(self, sign: str) -> None:
        if not self.looks_at(sign):
            raise self.fault(f"{sign} is expected, not {self.shown()}")
        self.place += len(sign)
        self.skip_blanks()

    def shown(self) -> str:
        return repr(self.text[self.place]) if self.place < len(self.text) else "the end"

    def value(self, level: int) -> Any:
        if level > _MOST_LEVELS:
            raise self.fault(f"it is nested deeper than {_MOST_LEVELS} levels")
        if self.looks_at("{"):
            return self._document(level)
        if self.looks_at("["):
            return self._list("[", "]", level)
        if self.looks_at('"') or self.looks_at("'"):
            return self._text()
        if self.looks_at("/"):
            return self._regex()
        number = self.take(_NUMBER)
        return self._word(level) if number is None else self._number(number)

    def _document(self, level: int) -> dict[str, Any]:
        self.expect("{")
        document: dict[str, Any] = {}
        while not self.looks_at("}"):
            if document:
                self.expect(",")
                if self.looks_at("}"):
                    break
            if self.looks_at('"') or self.looks_at("'"):
                key = self._text()
            elif (word := self.take(_WORD)) is not None:
                key = word.group()
            else:
                raise self.fault(f"a key is expected, not {self.shown()}")
            self.expect(":")
            document[key] = self.value(level + 1)
        self.expect("}")
        return document

    def _list(self, first: str, last: str, level: int) -> list[Any]:
        self.expect(first)
        items: list[Any] = []
        while not self.looks_at(last):
            if items:
                self.expect(",")
                if self.looks_at(last):
                    break
            items.append(self.value(level + 1))
        self.expect(last)
        return items

    def _text(self) -> str:
        start = self.place
        match = self.take(_TEXT)
        if match is None:
            raise self.fault("a text that begins here has no end")
        inside = match["inside"]

        def unescaped(escape: re.Match[str]) -> str:
            code, sign = escape.groups()
            if code is None and sign not in _ESCAPED:
                where = start + 1 + escape.start()
                raise self.fault(f"{escape.group()} is not an escape of JSON", where)
            return chr(int(code, 16)) if code else _ESCAPED[sign]

        unescaped_text = _ESCAPE.sub(unescaped, inside)
        try:
            return unescaped_text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self.fault("half of a surrogate pair in a text", start) from None

    def _number(self, match: re.Match[str]) -> object:
        text = match.group()
        if text == "-Infinity":
            return {"$numberDouble": text}
        if match.group(1) or match.group(2):
            if math.isinf(float(text)):
                raise self.fault(f"{text} is too large for a double", match.start())
            return float(text)
        return _whole(text, 64, lambda problem: self.fault(problem, match.start()))

    def _regex(self) -> dict[str, Any]:
        start = self.place
        match = self.take(_REGEX)
        if match is None:
            raise self.fault("a regular expression that begins here has no end")
        return _regular(match[1], match[2], lambda problem: self.fault(problem, start))

    def _word(self, level: int) -> object:
        start = self.place
        match = self.take(_WORD)
        if match is None:
            raise self.fault(f"a value is expected, not {self.shown()}")
        name, new = match.group(), False
        if name == "new":
            new, match = True, self.take(_WORD)
            if match is None:
                raise self.fault(f"the name of a type is expected after new, not {self.shown()}")
            name = match.group()
        if name in _CONSTANTS and not new and not self.looks_at("("):
            return _CONSTANTS[name]

        def fault(problem: str) -> ValueError:
            return self.fault(problem, start)

        make = _CONSTRUCTORS.get(name)
        if make is None:
            raise fault(f"{name} is not known here; {_KNOWN}")
        if name == "Date" and not new:
            raise fault("Date(...) without new is the present time as a text; write new Date(...)")
        if not self.looks_at("("):
            raise fault(f"( is expected behind {name}, not {self.shown()}")
        return make(_Call(name, self._list("(", ")", level), fault, self.day_zone))


@dataclass(frozen=True, slots=True)
class _Call:
    """A constructor with its arguments, and what makes an error of its place."""

    name: str
    given: list[Any]
    fault: Callable[[str], ValueError]
    day_zone: tzinfo

    def takes(self, values: str) -> ValueError:
        return self.fault(f"{self.name} takes {values}")

    def one(self, kinds: type | tuple[type, ...], description: str) -> Any:
        if len(self.given) != 1 or not _is_a(self.given[0], kinds):
            raise self.takes(description)
        return self.given[0]


def _is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _whole(text: str, bits: int, fault: Callable[[str], ValueError]) -> int:
    if re.fullmatch(r"[-+]?[0-9]+", text) is None:
        raise fault(f"{text!r} is not a whole number")
    if len(text) > 40 or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise fault(f"a whole number has at most {bits} bits")
    return int(text)


def _regular(pattern: str, options: str, fault: Callable[[str], ValueError]) -> dict[str, Any]:
    if _REGEX_OPTIONS.fullmatch(options) is None:
        raise fault(
            f"a regular expression takes the options i, m, s and x, each once, not {options!r}"
        )
    if "\0" in pattern:
        raise fault("a regular expression cannot hold a NUL")
    return {"$regularExpression": {"pattern": pattern, "options": "".join(sorted(options))}}


def _object_id(call: _Call) -> dict[str, Any]:
    text = call.one(str, "24 hexadecimal digits as a text")
    if re.fullmatch(r"[0-9A-Fa-f]{24}", text) is None:
        raise call.takes(f"24 hexadecimal digits, not {text!r}")
    return {"$oid": text.lower()}


def _long(call: _Call) -> dict[str, Any]:
    number = call.one((str, int), "one whole number, or one as a text")
    return {"$numberLong": str(_whole(str(number), 64, call.fault))}


def _int(call: _Call) -> dict[str, Any]:
    number = call.one((str, int), "one whole number, or one as a text")
    return {"$numberInt": str(_whole(str(number), 32, call.fault))}


def _decimal(call: _Call) -> dict[str, Any]:
    text = str(call.one((str, int, float), "one number, or one as a text"))
    if _DECIMAL.fullmatch(text) is None:
        raise call.takes(f"a number, not {text!r}")
    return {"$numberDecimal": text}


def _timestamp(call: _Call) -> dict[str, Any]:
    arguments = call.given
    if len(arguments) == 1 and isinstance(arguments[0], dict) and set(arguments[0]) == {"t", "i"}:
        arguments = [arguments[0]["t"], arguments[0]["i"]]
    if len(arguments) != 2 or not all(
        _is_a(argument, int) and 0 <= argument < 2**32 for argument in arguments
    ):
        raise call.takes("two whole numbers of 32 bits: seconds, and a count")
    return {"$timestamp": {"t": arguments[0], "i": arguments[1]}}


def _binary(call: _Call) -> dict[str, Any]:
    return _bytes(call, "Base64", lambda text: base64.b64decode(text, validate=True))


def _hexadecimal(call: _Call) -> dict[str, Any]:
    return _bytes(call, "hexadecimal digits", binascii.unhexlify)


def _bytes(call: _Call, form: str, decoded: Callable[[str], bytes]) -> dict[str, Any]:
    arguments = call.given
    takes = f"a subtype from 0 to 255, and a text in {form}"
    if len(arguments) != 2 or not _is_a(arguments[0], int) or not isinstance(arguments[1], str):
        raise call.takes(takes)
    if not 0 <= arguments[0] <= 255:
        raise call.takes(takes)
    try:
        content = decoded(arguments[1])
    except ValueError:
        raise call.takes(takes) from None
    return _stored(content, arguments[0])


def _stored(content: bytes, subtype: int) -> dict[str, Any]:
    return {"$binary": {"base64": base64.b64encode(content).decode(), "subType": f"{subtype:02x}"}}


def _uuid(call: _Call) -> dict[str, Any]:
    text = call.one(str, "32 hexadecimal digits as a text")
    try:
        return _stored(uuid.UUID(text).bytes, 4)
    except ValueError:
        raise call.takes(f"32 hexadecimal digits, not {text!r}") from None


def _regexp(call: _Call) -> dict[str, Any]:
    if len(call.given) not in (1, 2) or not all(
        isinstance(argument, str) for argument in call.given
    ):
        raise call.takes("a pattern as a text, and options as another")
    return _regular(call.given[0], "".join(call.given[1:]), call.fault)


def _key(name: str) -> Callable[[_Call], dict[str, Any]]:
    def make(call: _Call) -> dict[str, Any]:
        if call.given:
            raise call.takes("nothing")
        return {name: 1}

    return make


def _iso_date(call: _Call) -> dict[str, Any]:
    if not call.given:
        return _date(int(time.time() * 1000))
    return _instant(call, call.one(str, "a time as a text, such as 2024-01-31T00:00:00Z"))


def _new_date(call: _Call) -> dict[str, Any]:
    """As in Java's driver: numbers are UTC, and the months begin with 0."""
    arguments = call.given
    if not arguments:
        return _date(int(time.time() * 1000))
    if len(arguments) == 1 and isinstance(arguments[0], str):
        return _instant(call, arguments[0])
    if (
        not all(_is_a(argument, int) for argument in arguments)
        or len(arguments) == 2
        or len(arguments) > 7
    ):
        raise call.takes("a text, milliseconds, or year, month from 0, day, hours, minutes, ...")
    if len(arguments) == 1:
        if not _FIRST_MILLI <= arguments[0] <= _LAST_MILLI:
            raise call.takes("milliseconds of the years from 1 to 9999")
        return _date(arguments[0])
    year, month, day, *time_parts = arguments
    if not 100 <= year <= 9999:
        raise call.takes(f"a year from 100 to 9999, not {year}")
    hours, minutes, seconds, millis = (*time_parts, 0, 0, 0, 0)[:4]
    try:
        # As in Java and JavaScript, month 12 is the next January, and day 0 the last of the month before.
        first = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        return _millis(first + timedelta(day - 1, seconds, 0, millis, minutes, hours))
    except (ValueError, OverflowError):
        raise call.takes("a time in the years from 1 to 9999") from None


def _instant(call: _Call, text: str) -> dict[str, Any]:
    """Of ISO 8601, or as Java and JavaScript show a date."""
    iso = _ISO.fullmatch(text)
    if iso is not None and iso[4] is not None and iso[8] is None and call.name == "Date":
        raise call.takes(f"a time with Z or an offset, not {text!r}, which depends on a zone")
    try:
        moment = _java_date(text) if iso is None else _iso_time(iso, call)
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        raise call.takes(
            f"a time such as 2024-01-31T00:00:00Z or 2024-01-31T00:00:00.000+08:00, not {text!r}"
        )
    return _millis(moment)


def _iso_time(match: re.Match[str], call: _Call) -> datetime:
    numbers = [int(digits or 0) for digits in match.groups()[:7]]
    year, month, day, hour, minute, second, millis = numbers
    zone = _offset(match[8])
    if match[4] is None and call.name == "ISODate":
        zone = call.day_zone
    return datetime(year, month, day, hour, minute, second, 1000 * millis, zone)


def _java_date(text: str) -> datetime | None:
    match = _JAVA.fullmatch(text)
    if match is None:
        return None
    year, month, day = int(match[4]), _MONTHS.index(match[2]) + 1, int(match[3])
    zone = _offset(match[8])
    moment = datetime(year, month, day, int(match[5]), int(match[6]), int(match[7]), tzinfo=zone)
    return moment if _WEEKDAYS[moment.weekday()] == match[1] else None


def _offset(zone: str | None) -> tzinfo:
    digits = re.sub(r"GMT|UTC|[Z:]", "", zone or "")
    if not digits:
        return UTC
    size = timedelta(hours=int(digits[1:3]), minutes=int(digits[3:5]))
    return timezone(-size if digits.startswith("-") else size)


def _millis(when: datetime) -> dict[str, Any]:
    return _date((when - _EPOCH) // timedelta(milliseconds=1))


def _date(millis: int) -> dict[str, Any]:
    return {"$date": {"$numberLong": str(millis)}}


_CONSTRUCTORS: dict[str, Callable[[_Call], dict[str, Any]]] = {
    "ObjectId": _object_id,
    "ISODate": _iso_date,
    "Date": _new_date,
    "NumberLong": _long,
    "NumberInt": _int,
    "NumberDecimal": _decimal,
    "Timestamp": _timestamp,
    "BinData": _binary,
    "HexData": _hexadecimal,
    "UUID": _uuid,
    "RegExp": _regexp,
    "MinKey": _key("$minKey"),
    "MaxKey": _key("$maxKey"),
}
_KNOWN = f"values are JSON, /regex/i, {', '.join(sorted(_CONSTRUCTORS))}, Infinity and NaN"
