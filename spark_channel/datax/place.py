"""Where a plugin is in a job; how it commits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from spark_channel.datax.document import ColumnFormats
from spark_channel.datax.values import JobSection, ineffective_keys, parse_section
from spark_channel.errors import JobFileError, OptionError
from spark_channel.option_types import parse_day, parse_transaction
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Transformer

__all__ = [
    "CommitSetting",
    "ParsedPlugin",
    "PluginContext",
    "at",
    "transaction_of_job",
]


# How a job commits, and the pair of name and version under which a rerun writes nothing twice.


_TAKES = "NAME:VERSION, the version a whole number or a date; NAME alone takes the one date among the values of -p"


@dataclass(frozen=True, slots=True)
class CommitSetting:
    """`mode`: `job` or `task`; None = the writer's choice. `transaction`: name and version; None = each run adds."""

    mode: Literal["job", "task"] | None = None
    transaction: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        return self.mode is not None or self.transaction is not None

    def options(self, content: int = 0) -> dict[str, Any]:
        """As options of the job; each of several contents has its own name."""
        options: dict[str, Any] = {} if self.mode is None else {"commit": self.mode}
        if self.transaction is not None:
            name, version = self.transaction
            options["txn"] = f"{name}#{content}:{version}" if content else f"{name}:{version}"
        return options


def transaction_of_job(text: str, variables: Mapping[str, Any], option: str) -> tuple[str, int]:
    """`nightly:42`, `nightly:2024-01-31`, or `nightly` where one of `variables` is a date.

    Raises:
        OptionError: another text, or no date or several; names `option`.
    """
    _, colon, _ = text.strip().rpartition(":")
    if not colon:
        name = text.strip()
        dates = {day for value in variables.values() if (day := parse_day(str(value))) is not None}
        if name and len(dates) == 1:
            return name, dates.pop()
        count = "several" if dates else "none"
        raise OptionError(
            f"option {option!r} got {text!r} without a version, and {count} of the values of -p is a date; it takes "
            f"{_TAKES}",
            option=option,
            got=text,
            takes=_TAKES,
        )
    return parse_transaction(text, option)


# The place of a plugin in a job file, and what it makes of its parameter.


_S = TypeVar("_S", bound=JobSection)


@dataclass(frozen=True, slots=True)
class ParsedPlugin:
    """One end as a plugin understood it. A reader's transformers come first in the job, a writer's last.

    `local_times`: a writer of texts, which wants instants as the reader's session shows them. `of_job`: settings of the
    whole job that its options have. `own_dirty_limit`: its options say how many rows may be refused; `no_dirty_rows`:
    why the target can leave none out, "" = it can. `columns`: how many a writer names; None = it takes any number.
    `every_column`: a reader of files returns all columns, whose number an empty file does not show. `exact_numbers`: a
    writer that takes `double` as text and `long` of any size, as the reader found them.
    """

    endpoint: Endpoint
    transformers: tuple[Transformer, ...] = ()
    save_mode: SaveMode = "append"
    splits_per_channel: int | None = None
    local_times: bool = False
    of_job: Mapping[str, Any] = field(default_factory=dict)
    own_dirty_limit: bool = False
    no_dirty_rows: str = ""
    columns: int | None = None
    every_column: bool = False
    exact_numbers: bool = False


@dataclass(slots=True)
class PluginContext:
    """A plugin's parameter: its JSON path and the settings that it may need.

    `warnings` are whole sentences; `ineffective` collects keys without effect, which share one warning.
    """

    path: str
    plugin: str
    formats: ColumnFormats = field(default_factory=ColumnFormats)
    channels: int | None = None
    commit: CommitSetting = field(default_factory=CommitSetting)
    warnings: list[str] = field(default_factory=list)
    ineffective: list[str] = field(default_factory=list)

    def read(self, model: type[_S], parameter: dict[str, Any]) -> _S:
        """The parameter as `model`; keys without effect are noted.

        Raises:
            JobFileError: a bad value, or a key whose meaning cannot be kept.
        """
        parsed = parse_section(model, parameter, self.path)
        self.ineffective.extend(ineffective_keys(parsed, self.path))
        return parsed

    def key(self, name: str) -> str:
        """The JSON path of a key of the parameter."""
        return f"{self.path}.{name}"

    def missing(self, name: str, takes: str) -> JobFileError:
        return JobFileError(f"{self.key(name)} is missing; {self.plugin} takes {takes}")


@contextmanager
def at(path: str) -> Iterator[None]:
    """An option error inside becomes a job file error at `path`."""
    try:
        yield
    except OptionError as error:
        raise JobFileError(f"{path}: {error}") from error
