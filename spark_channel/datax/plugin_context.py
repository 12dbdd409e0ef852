"""The place of a plugin in a job file, and what it makes of its parameter."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_channel.datax.commit import CommitSetting
from spark_channel.datax.document import ColumnFormats
from spark_channel.datax.sections import JobSection, ineffective_keys, parse_section
from spark_channel.errors import JobFileError, OptionError
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Transformer

__all__ = ["ParsedPlugin", "PluginContext", "at"]


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
