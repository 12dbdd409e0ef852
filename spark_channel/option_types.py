"""Types of option values: amounts, secrets, columns, paths, texts, times; and references, such as `${env:NAME}`."""

import codecs
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, SecretStr

from spark_channel.errors import OptionError
from spark_channel.serialization import parsed, written
from spark_channel.working_directory import absolute_path

__all__ = [
    "LARGEST",
    "LARGEST_AMOUNT",
    "TEXT_TAKES",
    "Amount",
    "Bounds",
    "ByteAmount",
    "CertificateFile",
    "Character",
    "ColumnList",
    "CommitMode",
    "DirtyAmount",
    "DiskPath",
    "Encoding",
    "FilePath",
    "Instant",
    "JobId",
    "OptionalCharacter",
    "Protection",
    "Secret",
    "Trait",
    "Url",
    "WriteMode",
    "Zone",
    "certificate_file",
    "has_reference",
    "has_utf8",
    "is_reference",
    "known_encoding",
    "parse_amount",
    "parse_day",
    "parse_transaction",
    "path_list",
    "protection_aims",
    "resolve_references",
    "resolve_secret",
    "secret_text",
    "separator",
    "without_references",
]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
LARGEST = 2**63 - 1
LARGEST_AMOUNT = 10**18
"""Of rows, bytes, and both per second: what the limits count in stays a number of 64 bits."""
_DECIMAL_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*([0-9]+(?:[._][0-9]+)*)\s*([kmgt]?i?)(b?)\s*", re.IGNORECASE)
_SEPARATORS = {"\\t": "\t", "\\0": "\0", "\\\\": "\\"}
_ROWS_TAKES = "a whole number of 1 or more, such as 50000 or 50k"
_BYTES_TAKES = "a size of 1 byte or more, such as 64MB, 64MiB or 67108864"
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")
_TRANSACTION = "NAME:VERSION, where the version is a number or a date"
TEXT_TAKES = "a text in UTF-8; a character of this one has no UTF-8 form"
_LONGEST_SECRET = 1 << 20
_NAME = re.compile(r"""\s*(?:"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^,"`]*[^,"`\s]))\s*(?:,|\Z)""")
_BOUND = re.compile(r"\s*([a-z][a-z0-9_]*)\s*<\s*([0-9][0-9._]*)\s*([A-Za-z]*)\s*")
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BOUNDS_TAKES = (
    "signals and what they may be, such as 'replication_lag<10s, slot_wal<2GiB, active_sessions<40'"
)
_AIM = re.compile(r"(?:p99<([0-9.]+)x|cpu<([0-9.]+)%)")
_AIMS_TAKES = "'auto', 'off', or aims, such as 'p99<1.25x', 'cpu<20%' or both with a comma"
_LONGEST_VALUE = 16 << 20


def parse_amount(value: object, *, bytes_: bool = False) -> int:
    """Read `50000`, `50k`, `1.5M`, `64MB` or `64MiB` as a whole number from 1 to 10**18.

    Raises:
        ValueError: not such a text, zero, negative, or a size unit on a number of rows.
    """
    takes = _BYTES_TAKES if bytes_ else _ROWS_TAKES
    match = _AMOUNT.fullmatch(str(value))
    if isinstance(value, bool) or match is None:
        raise ValueError(takes)
    number, unit, byte = match.group(1), match.group(2).lower(), match.group(3)
    if not bytes_ and (byte or unit.endswith("i")):
        raise ValueError(f"{takes}; {value!r} is a size")
    factor = {**_DECIMAL_UNITS, **_BINARY_UNITS}.get(unit)
    if factor is None or number.count(".") > 1:
        raise ValueError(takes)
    amount = Decimal(number.replace("_", "")) * factor
    if amount != int(amount) or not 1 <= amount <= LARGEST_AMOUNT:
        raise ValueError(f"{takes}, up to 10**18" if amount > LARGEST_AMOUNT else takes)
    return int(amount)


def _rows(value: object) -> int:
    return parse_amount(value)


def _bytes(value: object) -> int:
    return parse_amount(value, bytes_=True)


class Trait(Enum):
    """What other code must know of an option: part of the `Annotated` of its field, whoever wrote the connector."""

    HOLDS_LOGIN = "a url or a path: a login may be inside, and it is shown without it"
    SAME_ROWS = "how fast, for how long or as whom something is read: whatever it says, the rows are the same"
    NAMES_SOURCE = "secret, and it says what is read: another value means other rows"


def parse_transaction(text: str, option: str) -> tuple[str, int]:
    """The name and version of a transaction id: `nightly:42`, or `nightly:2024-01-31`, which is version 20240131.

    Raises:
        OptionError: another text; names `option`.
    """
    name, _, version = text.strip().rpartition(":")
    day = parse_day(version)
    number = _whole(version) if day is None else day
    if not name.strip() or number is None:
        raise OptionError(
            f"option {option!r} got {text!r}; it takes {_TRANSACTION}",
            option=option,
            got=text,
            takes=_TRANSACTION,
        )
    return name.strip(), number


def _whole(text: str) -> int | None:
    return (
        int(text) if re.fullmatch(r"[0-9]{1,19}", text.strip()) and int(text) <= LARGEST else None
    )


def parse_day(text: str) -> int | None:
    """2024-01-31 and 20240131 as 20240131."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    digits = "".join(match.groups())
    try:
        datetime.strptime(digits, "%Y%m%d")
    except ValueError:
        return None
    return int(digits)


def has_utf8(text: str) -> bool:
    """Whether `text` can be sent: a byte of the environment that is not UTF-8 is half a character in Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def resolve_secret(value: object) -> SecretStr:
    """A secret; `${env:NAME}` and `${file:PATH}` become what they name.

    Raises:
        ValueError: the variable is not set, the file cannot be read, or a text has no UTF-8 form; says what is taken.
    """
    if isinstance(value, SecretStr):
        return value
    text = str(value)
    if not has_utf8(text):
        raise ValueError(TEXT_TAKES)
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return SecretStr(text)
    kind, name = match.groups()
    if kind == "env":
        if name not in os.environ:
            raise ValueError(f"a value; the environment variable {name} is not set on the driver")
        if not has_utf8(os.environ[name]):
            raise ValueError(f"a text in UTF-8; the environment variable {name} is not one")
        return SecretStr(os.environ[name])
    try:
        return SecretStr(_text_of(name))
    except OSError as error:
        raise ValueError(f"a readable file; {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"a text file in UTF-8; {name} is not one") from None


def _text_of(name: str) -> str:
    """
    Raises:
        OSError, UnicodeDecodeError: the file cannot be read. ValueError: it is too long; says what is taken.
    """
    with Path(absolute_path(name, uri=False)).open(encoding="utf-8") as file:
        content = file.read(_LONGEST_SECRET + 1)
    if len(content) > _LONGEST_SECRET:
        raise ValueError(f"a value of at most {_LONGEST_SECRET >> 20} MiB; {name} is longer")
    return content.rstrip("\r\n")


def secret_text(text: str) -> str:
    """What `${env:NAME}` or `${file:PATH}` names; "" if it names nothing."""
    if _REFERENCE.fullmatch(text) is None:
        return text
    try:
        return resolve_secret(text).get_secret_value()
    except ValueError:
        return ""


def _columns(value: object) -> tuple[str, ...]:
    takes = "column names separated by commas, or a JSON list of them; quote a name that contains a comma"
    if isinstance(value, (list, tuple)):
        names = [str(name) for name in value]
    elif str(value).lstrip().startswith("["):
        names = _json_names(str(value), takes)
    else:
        names = _split_names(str(value), takes)
    if not names or any(not name for name in names):
        raise ValueError(takes)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"each column once; {', '.join(sorted(twice))} occurs more than once")
    return tuple(names)


def _split_names(text: str, takes: str) -> list[str]:
    names, position = [], 0
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise ValueError(takes)
        quoted, ticked, plain = match.groups()
        names.append(
            plain or (quoted or "").replace('""', '"') or (ticked or "").replace("``", "`")
        )
        position = match.end()
    if text.rstrip().endswith(","):
        raise ValueError(takes)
    return names


def _json_names(text: str, takes: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(takes) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(takes)
    return names


Amount = Annotated[int, BeforeValidator(_rows)]
"""Rows, as `parse_amount` reads them."""
ByteAmount = Annotated[int, BeforeValidator(_bytes)]
"""Bytes, as `parse_amount(..., bytes_=True)` reads them."""
Secret = Annotated[SecretStr, BeforeValidator(resolve_secret)]
"""A value that no message, `repr` or log shows; `${env:NAME}` and `${file:PATH}` are resolved."""
Url = Annotated[str, Trait.HOLDS_LOGIN]
"""A url or a path: messages, `repr` and logs show it without a login, and without secret parameters."""
ColumnList = Annotated[tuple[str, ...], BeforeValidator(_columns)]


def _disk_path(value: object) -> str:
    return absolute_path(str(value), uri=False)


def _file_path(value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("a path or a uri, as text")
    return absolute_path(str(value))


def certificate_file(value: object) -> str:
    """An absolute path; libpq's `system`, which names no file, stays."""
    return str(value) if value in ("", "system") else _disk_path(value)


DiskPath = Annotated[str, BeforeValidator(_disk_path)]
"""A file on a local disk; a relative one is made absolute in the driver's working directory."""
CertificateFile = Annotated[str, BeforeValidator(certificate_file)]
"""A file of certificates or a key on a local disk, as `DiskPath`."""
FilePath = Annotated[str, BeforeValidator(_file_path), Trait.HOLDS_LOGIN]
"""A path or a uri; a relative path is made absolute in the driver's working directory."""


def _job_id(value: object) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", str(value)):
        raise ValueError("1 to 64 letters, digits, '_', '-' or '.': it names files")
    return str(value)


JobId = Annotated[str, BeforeValidator(_job_id)]


def _dirty_amount(value: object) -> int:
    text = str(value).strip().lower()
    if text == "unlimited":
        return LARGEST
    try:
        return 0 if text == "0" else parse_amount(value)
    except ValueError:
        raise ValueError(
            "a whole number of 0 or more, such as 100 or 10k, or 'unlimited'"
        ) from None


DirtyAmount = Annotated[int, BeforeValidator(_dirty_amount)]
"""How many rows may be refused; 2**63-1 stands for `unlimited`."""


def _bounds(value: object) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {str(name): float(bound) for name, bound in value.items()}
    bounds: dict[str, float] = {}
    for part in str(value).split(","):
        match = _BOUND.fullmatch(part)
        if match is None or match.group(1) in bounds:
            raise ValueError(_BOUNDS_TAKES)
        name, number, unit = match.groups()
        if unit.lower() in _TIMES:
            try:
                bounds[name] = float(number) * _TIMES[unit.lower()]
            except ValueError:
                raise ValueError(_BOUNDS_TAKES) from None
        else:
            try:
                bounds[name] = float(parse_amount(number + unit, bytes_=True) if unit else number)
                if not bounds[name]:
                    raise ValueError(number)
            except ValueError:
                raise ValueError(_BOUNDS_TAKES) from None
    return bounds


def protection_aims(text: str) -> dict[str, float]:
    """The aims of option `protect`: `p99`, how many times slower others may be, and `work`, of a core; {} for `auto`.

    Raises:
        ValueError: an aim that makes no sense.
    """
    aims: dict[str, float] = {}
    for part in "" if text in ("auto", "off") else text.split(","):
        match = _AIM.fullmatch(part)
        if match is None:
            raise ValueError(_AIMS_TAKES)
        times, percent = match.groups()
        name = "p99" if times else "work"
        try:
            value = float(times) if times else float(percent) / 100
        except ValueError:
            raise ValueError(_AIMS_TAKES) from None
        if name in aims:
            raise ValueError(_AIMS_TAKES)
        if times and not 1.05 <= value <= 100:
            raise ValueError("for 'p99' a number of times from 1.05 to 100, such as 'p99<1.25x'")
        if percent and not 0 < value <= 1000:
            raise ValueError("for 'cpu' a part of one core above 0, such as 'cpu<20%'")
        aims[name] = value
    return aims


def _protection(value: object) -> str:
    text = "".join(str(value).split()).lower()
    protection_aims(text)
    return text


Protection = Annotated[str, BeforeValidator(_protection)]
"""`auto`, `off`, or aims; see `protection_aims`."""
Bounds = Annotated[Mapping[str, float], BeforeValidator(_bounds)]
"""What signals may be, by their names; times in seconds, sizes in bytes."""
CommitMode = Literal["job", "task"]
WriteMode = Literal["insert", "upsert", "skipExisting", "apply"]


def path_list(value: object) -> tuple[str, ...]:
    takes = "a JSON list of paths"
    if isinstance(value, (list, tuple)):
        paths = list(value)
    else:
        try:
            paths = json.loads(str(value))
        except (ValueError, RecursionError):
            raise ValueError(takes) from None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError(takes)
    return tuple(absolute_path(path) for path in paths)


def _instant(value: object) -> datetime:
    text = str(value)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as 2020-06-01T13:00:00") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=ZoneInfo("UTC"))


def _character(value: object) -> str:
    text = _SEPARATORS.get(str(value), str(value))
    if len(text) != 1 or not text.isascii() or text in "\r\n":
        raise ValueError(r"one ASCII character, or \t")
    return text


def separator(value: object) -> str:
    text = _SEPARATORS.get(str(value), str(value))
    if not text or len(text) > 100 or "\n" in text or "\r" in text:
        raise ValueError(r"a text without line ends, or \t")
    return text


def _character_or_none(value: object) -> str:
    return "" if str(value) in ("", "\0", "\\u0000") else _character(value)


def known_encoding(value: object) -> str:
    try:
        return codecs.lookup(str(value)).name
    except LookupError:
        raise ValueError("an encoding that Python knows, such as UTF-8 or ISO-8859-1") from None


def _zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError("a time zone such as UTC or Europe/Berlin") from None
    return str(value)


Character = Annotated[str, BeforeValidator(_character)]
OptionalCharacter = Annotated[str, BeforeValidator(_character_or_none)]
Encoding = Annotated[str, BeforeValidator(known_encoding)]
Zone = Annotated[str, BeforeValidator(_zone)]
Instant = Annotated[datetime, BeforeValidator(_instant)]


def resolve_references(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every reference replaced, also inside a longer text such as a url.

    For the process that opens the source or the target, and for Spark's own formats, which know no
    references. The result holds secrets: it belongs in no plan, message or log.

    Raises:
        OptionError: a variable that is not set, a file that cannot be read, or more text than an option has; names
            it, shows no value.
    """
    return {key: _References(key).resolved(value) for key, value in options.items()}


def is_reference(text: str) -> bool:
    """Whether `text` is `${env:NAME}` or `${file:PATH}` and no more: what it names may be secret, its name is not."""
    return _REFERENCE.fullmatch(text) is not None


def has_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def without_references(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with a word in place of every reference, for a look at them before the job runs."""
    return {
        key: _REFERENCE.sub("reference", value) if isinstance(value, str) else value
        for key, value in options.items()
    }


def _json_in(text: str) -> object:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        return None


class _References:
    """Replaces the references in one option's value, whose text is counted before it is made."""

    def __init__(self, option: str) -> None:
        self._option, self._length = option, 0

    def resolved(self, value: object) -> object:
        if not isinstance(value, str) or _REFERENCE.search(value) is None:
            return value
        json_value = _json_in(value)
        if json_value is not None:  # a value with a quote or a backslash must not end its text
            return written(self._inside(json_value))
        return _REFERENCE.sub(lambda match: self._counted(match.group(1), match.group(2)), value)

    def _inside(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: self._inside(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._inside(item) for item in value]
        return self.resolved(value)

    def _counted(self, kind: str, name: str) -> str:
        text = _value(self._option, kind, name)
        self._length += len(text)
        if self._length > _LONGEST_VALUE:
            takes = f"at most {_LONGEST_VALUE >> 20} MiB of text"
            raise OptionError(
                f"option {self._option!r} has references to more than {_LONGEST_VALUE >> 20} MiB of text: shorten "
                "what they name, or name it once",
                option=self._option,
                takes=takes,
            )
        return text


def _value(option: str, kind: str, name: str) -> str:
    if kind == "env":
        if name not in os.environ:
            raise OptionError(
                f"option {option!r}: the environment variable {name} is not set on the driver",
                option=option,
                takes=f"the environment variable {name}",
            )
        return os.environ[name]
    try:
        return _text_of(name)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "cannot be read: it is not UTF-8 text"
    except ValueError:
        reason = f"has more than {_LONGEST_SECRET >> 20} MiB"
    raise OptionError(f"option {option!r}: {name} {reason}", option=option, takes="a readable file")
