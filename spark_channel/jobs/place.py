"""The place of a plugin in a job file, and what it makes of its parameter."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_channel.errors import JobFileError, OptionError
from spark_channel.jobs.document import ColumnFormats
from spark_channel.jobs.leftovers import leftovers
from spark_channel.jobs.once import Commit
from spark_channel.jobs.values import Section, parse_section
from spark_channel.planning import Endpoint
from spark_channel.planning.spec import SaveMode
from spark_channel.transform import Transformer

__all__ = ["End", "Place", "at"]


_S = TypeVar("_S", bound=Section)


@dataclass(frozen=True, slots=True)
class End:
    """One end as a plugin understood it. A reader's transformers come first in the job, a writer's last.

    `local_times`: a writer of texts, which wants instants as the reader's session shows them. `of_job`: settings of the
    whole job that its options have. `own_dirty_limit`: its options say how many rows may be refused; `no_dirty_rows`:
    why the target can leave none out, "" = it can.
    """

    endpoint: Endpoint
    transformers: tuple[Transformer, ...] = ()
    save_mode: SaveMode = "append"
    splits_per_channel: int | None = None
    local_times: bool = False
    of_job: Mapping[str, Any] = field(default_factory=dict)
    own_dirty_limit: bool = False
    no_dirty_rows: str = ""


@dataclass(slots=True)
class Place:
    """A plugin's parameter: its JSON path and the settings that it may need.

    `warnings` are whole sentences; `left` collects keys without effect, which share one warning.
    """

    path: str
    plugin: str
    formats: ColumnFormats = field(default_factory=ColumnFormats)
    channels: int | None = None
    commit: Commit = field(default_factory=Commit)
    warnings: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def read(self, model: type[_S], parameter: dict[str, Any]) -> _S:
        """The parameter as `model`; keys without effect are noted.

        Raises:
            JobFileError: a bad value, or a key whose meaning cannot be kept.
        """
        parsed = parse_section(model, parameter, self.path)
        self.left.extend(leftovers(parsed, self.path))
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
