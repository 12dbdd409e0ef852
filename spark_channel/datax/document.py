"""Job file: text, variables, frame."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from spark_channel.datax.values import (
    MANY,
    ONE,
    Fraction,
    JobSection,
    NotNegative,
    Positive,
    Speed,
    Text,
    Texts,
)
from spark_channel.errors import JobFileError, OptionError

__all__ = [
    "ColumnFormats",
    "Content",
    "JobFile",
    "Plugin",
    "Setting",
    "Step",
    "expand_data",
    "expand_text",
    "parse_parameters",
    "parse_text",
    "read_job_text",
    "unset_names",
]


# The frame of a job file: settings, contents, and DataX's core and common sections.


_ARROW = "batches of Arrow rows go through the channel, not records"
_SERVER = "no DataX server exists; progress goes to Spark's driver"


class SpeedSetting(JobSection):
    """`job.setting.speed`: the whole job's limits, and how many channels."""

    byte: Speed = None
    record: Speed = None
    channel: Positive | None = None


def _speed_setting(value: object) -> object:
    """DataX's older examples give the bytes alone: `"speed": 1048576`."""
    return (
        {"byte": value} if isinstance(value, (int, str)) and not isinstance(value, bool) else value
    )


class ErrorLimit(JobSection):
    record: NotNegative | None = None
    percentage: Fraction | None = None


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


class Setting(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "dryRun": "use `spark-channel run --dry-run`, or `plan`",
    }
    refused: ClassVar[dict[str, str]] = {
        "keyVersion": "DataX's encrypted values are not read; write ${env:NAME} or ${file:PATH} instead",
        "transaction": 'write it as "txn", as the option --txn: "NAME:VERSION"',
    }

    speed: Annotated[SpeedSetting, BeforeValidator(_speed_setting)] = SpeedSetting()
    error_limit: ErrorLimit | None = None
    commit: Annotated[Literal["job", "task"] | None, BeforeValidator(_word)] = None
    txn: Text | None = None


class Plugin(JobSection):
    name: Text
    parameter: dict[str, Any] = Field(default_factory=dict)


class WriterPlugin(Plugin):
    """A writer; in a list of them, with what happens when it fails."""

    on_slow: Literal["block"] = "block"
    on_failure: Literal["fail", "leave"] = "fail"


class Step(JobSection):
    name: Text
    parameter: dict[str, Any] = Field(default_factory=dict)


def _shape(value: object) -> str:
    return MANY if isinstance(value, list) else ONE


class Content(JobSection):
    """One reader, and the writers that each get all rows: an object, as in DataX, or a list of them."""

    reader: Plugin
    writer: Annotated[
        Annotated[WriterPlugin, Tag(ONE)] | Annotated[tuple[WriterPlugin, ...], Tag(MANY)],
        Discriminator(_shape),
    ]
    transformer: tuple[Step, ...] = ()

    @property
    def writers(self) -> tuple[WriterPlugin, ...]:
        return self.writer if isinstance(self.writer, tuple) else (self.writer,)


def _contents(value: object) -> object:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("an object with reader and writer, or a list of them")
    return value


class Job(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "preHandler": "Java handlers are not run",
        "postHandler": "Java handlers are not run",
        "jobInfo": "it only names the job in DataX's own reports",
    }

    setting: Setting = Setting()
    content: Annotated[tuple[Content, ...], BeforeValidator(_contents)]


class ChannelSpeed(JobSection):
    byte: Speed = None
    record: Speed = None


class ChannelSection(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "class": "there is one channel, the in-memory one",
        "flowControlInterval": "the limit is kept continuously, not by sleeps at an interval",
    }

    speed: ChannelSpeed = ChannelSpeed()
    capacity: Positive | None = None
    byte_capacity: Positive | None = None


class Transport(JobSection):
    ignored: ClassVar[dict[str, str]] = {"exchanger": _ARROW, "record": _ARROW}

    channel: ChannelSection = ChannelSection()


class TaskGroupSection(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "id": "Spark numbers its tasks",
        "sleepInterval": "nothing polls",
        "reportInterval": "progress is reported every second",
    }

    channel: Positive | None = None


class ContainerJob(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "mode": "the job runs on Spark",
        "reportInterval": "progress is reported every second",
        "sleepInterval": "nothing polls",
        "log": "see Spark's logging",
    }

    id: Text | None = None


class Container(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "trace": "see Spark's UI",
        "model": "the job runs on Spark",
        "task": "Spark retries tasks: spark.task.maxFailures",
    }

    task_group: TaskGroupSection = TaskGroupSection()
    job: ContainerJob = ContainerJob()


class Core(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "dataXServer": _SERVER,
        "dsc": _SERVER,
        "statistics": "dirty rows are kept by the option dirtyRowsPath",
    }

    transport: Transport = Transport()
    container: Container = Container()


class ColumnFormats(JobSection):
    """`common.column`: Java date patterns, tried in this order when text becomes a time."""

    ignored: ClassVar[dict[str, str]] = {
        "timeZone": "times without zone stay as they are written, in every zone",
        "encoding": "text is UTF-8 inside; readers and writers have their own encoding",
    }

    datetime_format: Text | None = None
    date_format: Text | None = None
    time_format: Text | None = None
    extra_formats: Texts = ()


class Common(JobSection):
    column: ColumnFormats = ColumnFormats()


class JobFile(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "entry": "it sets the JVM of DataX; see --conf",
        "setting": "DataX reads job.setting alone",
        "plugin": "plugins are connectors here",
    }

    job: Job
    core: Core = Core()
    common: Common = Common()


# `${var}` in job files, and `-p "-Dvar=value"` on the command line.
#
# `${env:NAME}` and `${file:PATH}` are references to secrets: they stay as they are until a connector asks for the
# value, so that no plan and no message holds it.


_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_MOST_TEXT = 16 << 20
"""Characters of a job, in its file and with its variables put in: it is held in memory, several times."""
_MOST_NAMES = 20
_BRACED_OR_BARE = re.compile(r"\$\{([\w.-]+)\}|\$(\w+)")
_TAKES = '"-Dname=value", several of them separated by spaces'


def parse_parameters(text: str) -> dict[str, str]:
    """Read DataX's `-p` argument: `-Dday=2024-01-31 -Dtable=orders`; quotes keep spaces in a value.

    Raises:
        OptionError: something that is not `-Dname=value`; never shows a value.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(
            f"option '-p' takes {_TAKES}: {error}", option="-p", takes=_TAKES
        ) from None
    variables = {}
    for word in words:
        name, equals, value = word.removeprefix("-D").partition("=")
        if not word.startswith("-D") or not equals or _NAME.fullmatch(name) is None:
            raise OptionError(
                f"option '-p' got {name!r}; it takes {_TAKES}", option="-p", takes=_TAKES
            )
        variables[name] = value
    return variables


def unset_names(text: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The names of `${name}` in a text that no variable sets, each once."""
    names = (match.group(1) for match in _BRACED_OR_BARE.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name and name not in variables))


def expand_text(text: str, variables: Mapping[str, str], source: str) -> str:
    """Put values in as text, before the JSON is read: a value may be a number, or a part of a list.

    `$name` without braces counts only when it is set, so that regular expressions stay whole.

    Raises:
        JobFileError: a `${name}` that is not set; names the place and such names. Or the text becomes too long.
    """

    def place(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        return f"{source}: line {line}, column {column}"

    return _expand(text, variables, place, _Length(source))


def expand_data(data: object, variables: Mapping[str, str]) -> object:
    """The same in every text of JSON data that was never a file; keys stay.

    Raises:
        JobFileError: a `${name}` that is not set; names the JSON path. Or the texts become too long.
    """
    length = _Length("job")

    def expanded(inside: object, path: str) -> object:
        if isinstance(inside, str):
            return _expand(inside, variables, lambda _match: path, length, lambda: path)
        if isinstance(inside, dict):
            return {
                key: expanded(value, f"{path}.{key}" if path else str(key))
                for key, value in inside.items()
            }
        if isinstance(inside, list):
            return [expanded(value, f"{path}[{n}]") for n, value in enumerate(inside)]
        return inside

    return expanded(data, "")


class _Length:
    """Counts the characters of a job before they are made."""

    def __init__(self, source: str) -> None:
        self._source, self._count = source, 0

    def add(self, count: int, path_of: Callable[[], str] | None = None) -> None:
        """
        Raises:
            JobFileError: there are too many; names the place of the text that is one too much.
        """
        self._count += count
        if self._count > _MOST_TEXT:
            where = self._source if path_of is None else path_of()
            raise JobFileError(
                f"{where}: the job has more than {_MOST_TEXT >> 20} MiB of text with its variables put in; "
                "shorten their values ('-p'), or split the job"
            )


def _expand(
    text: str,
    variables: Mapping[str, str],
    path_of: Callable[[re.Match[str]], str],
    length: _Length,
    whole: Callable[[], str] | None = None,
) -> str:
    length.add(len(text), whole)
    unset: dict[str, re.Match[str]] = {}
    for match in _BRACED_OR_BARE.finditer(text):
        if match.group(1) and match.group(1) not in variables:
            unset.setdefault(match.group(1), match)
    if unset:
        names = list(unset)
        names_shown = ", ".join(f"${{{name}}}" for name in names[:_MOST_NAMES])
        names_shown += f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        verb = "is" if len(names) == 1 else "are"
        raise JobFileError(
            f'{path_of(unset[names[0]])}: {names_shown} {verb} not set; give -p "-D{names[0]}=..." or '
            f"variables={{{names[0]!r}: ...}}. A secret may be given as ${{env:NAME}} or ${{file:PATH}}"
        )

    def value(match: re.Match[str]) -> str:
        replacement = variables.get(match.group(1) or match.group(2), match.group())
        length.add(len(replacement), lambda: path_of(match))
        return replacement

    return _BRACED_OR_BARE.sub(value, text)


# From a job file's text to plain JSON data, with what DataX's own parser forgives.


_STRING = r"""(?:"(?:\\.|[^"\\])*+"|'(?:\\.|[^'\\])*+')"""
_UNCLOSED = r"""["'].*|/\*.*"""
"""A text or a comment that does not end takes the rest: it is looked at once, not again from each quote in it."""
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*+|/\*.*?\*/|(?P<unclosed>{_UNCLOSED})", re.DOTALL)
_LOOSE = re.compile(
    rf"{_STRING}|(?P<unclosed>{_UNCLOSED})|(?P<commas>,[\s,]*+)|(?<![\w$-])[A-Za-z_$][\w$-]*+(?=\s*+:)",
    re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_INSIDE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|(.))|(")""", re.DOTALL)
_ESCAPED = {"'": "'", "v": "\\u000b", "0": "\\u0000"}


def read_job_text(path: Path) -> str:
    """The text of a job file, of which no more is read than a job may have.

    Raises:
        OSError, ValueError: it cannot be read, or is not UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        return file.read(_MOST_TEXT + 1)


def parse_text(text: str, variables: dict[str, str], source: str) -> Any:
    """Parse JSON with what DataX's own parser forgives, and `${var}` put in as text.

    It forgives comments, commas too many, single quotes, keys without quotes, `\\x01`, and line ends in texts:
    findings/fastjson-forgives.sh

    Raises:
        JobFileError: broken JSON, with line and column; a variable that is not set.
    """
    _Length(source).add(len(text))
    bare = expand_text(_COMMENT.sub(_blank, text.removeprefix("\ufeff")), variables, source)
    try:
        return json.loads(_LOOSE.sub(_strict, bare), parse_constant=_no_constant, strict=False)
    except json.JSONDecodeError as error:
        raise JobFileError(
            f"{source}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise JobFileError(f"{source}: nested too deeply") from None
    except ValueError as error:
        raise JobFileError(f"{source}: not JSON: {error}") from None


def _blank(match: re.Match[str]) -> str:
    """Strings stay; the rest becomes spaces, so that lines and columns stay what they are."""
    piece = match.group()
    is_kept = piece[0] in "\"'" or match["unclosed"]
    return piece if is_kept else _NOT_NEWLINE.sub(" ", piece)


def _strict(match: re.Match[str]) -> str:
    """A string or a key as JSON writes it; a comma too many as a space."""
    piece = match.group()
    if match["unclosed"]:
        return piece
    if match["commas"]:
        ends = match.string[match.end() : match.end() + 1] in ("}", "]")
        last = len(piece) if ends else piece.rindex(",")
        return piece[:last].replace(",", " ") + piece[last:]
    if piece[0] not in "\"'":
        return f'"{piece}"'
    return f'"{_INSIDE.sub(_escape, piece[1:-1])}"'


def _escape(match: re.Match[str]) -> str:
    code, sign, quote = match.groups()
    if quote:  # between single quotes
        return '\\"'
    return f"\\u00{code}" if code else _ESCAPED.get(sign, match.group())


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")
