"""All that keeps a job file from running, not only the first of it. Opens nothing but the file."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_channel.datax.commit import CommitSetting
from spark_channel.datax.document import Content, JobFile
from spark_channel.datax.json_text import parse_text, read_job_text
from spark_channel.datax.load import loaded_of, plugin_contexts, settings_of
from spark_channel.datax.loaded_job import LoadedJob
from spark_channel.datax.plugins import UnknownPluginError, find_plugin
from spark_channel.datax.sections import parse_section
from spark_channel.datax.transformers import job_transformers
from spark_channel.datax.variables import unset_names
from spark_channel.errors import ChannelError, JobFileError

__all__ = ["JobFileCheck", "check_job_file"]


_STAND_IN = 2_718_281
"""In place of the first variable that is not set, and the next number for the next: also a part of a text."""
_PATH = re.compile(r"\w+(?:\.\w+|\[\d+\])*")
_PART = re.compile(r"(\w+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class JobFileCheck:
    """`loaded` is None when there are `faults`; `missing` are the names of plugins that are not here.

    `unset`: variables that are not set, by what stands for them in all these texts: see `shown`.
    """

    loaded: LoadedJob | None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unset: Mapping[str, str] = field(default_factory=dict)

    def shown(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The texts with `${name}` for variables that are not set."""
        return tuple(_restored(text, self.unset) for text in texts)


def _restored(text: str, unset: Mapping[str, str]) -> str:
    for stand_in, name in unset.items():
        text = text.replace(stand_in, f"${{{name}}}")
    return text


class _Faults:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.missing: dict[str, None] = {}

    def check(self, work: Callable[[], object]) -> None:
        """Do `work`, and keep what it raises."""
        try:
            work()
        except UnknownPluginError as error:
            self.missing[error.plugin] = None
            self.found[str(error)] = None
        except JobFileError as error:
            self.found.update(dict.fromkeys((str(error), *error.others)))
        except ChannelError as error:
            self.found[str(error)] = None
        except RecursionError:
            self.found["job: nested too deeply"] = None


def check_job_file(path: Path, variables: Mapping[str, str]) -> JobFileCheck:
    """Whether the first content of the job in a file runs, as far as its text shows.

    A variable that is not set is a note, and so is what is at fault with it alone.
    """
    try:
        text = read_job_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return JobFileCheck(None, (f"cannot be read: {reason}",))
    unset = {
        str(_STAND_IN + number): name for number, name in enumerate(unset_names(text, variables))
    }
    faults = _Faults()
    values = {**variables, **{name: stand_in for stand_in, name in unset.items()}}
    data: Any = None
    loaded: LoadedJob | None = None

    def parse() -> None:
        nonlocal data
        data = parse_text(text, values, str(path))

    def load() -> None:
        nonlocal loaded
        loaded = loaded_of(parse_section(JobFile, data, ""), path.stem, False, CommitSetting())

    faults.check(parse)
    if not faults.found:
        faults.check(load)
        if faults.found:  # with the first fault: all others are looked for
            _look_at_all(data, faults)
    names = ", ".join(f"${{{name}}}" for name in unset.values())
    notes = (f"{names} not set: give -p",) if unset else ()
    own_faults = [fault for fault in faults.found if not _depends(fault, data, unset)]
    dependent = tuple(
        f"depends on {names}: {fault}" for fault in faults.found if fault not in own_faults
    )
    warnings = loaded.warnings if loaded is not None else ()
    remarks = (*notes, *dependent, *warnings)
    return JobFileCheck(loaded, tuple(own_faults), remarks, tuple(faults.missing), unset)


def _look_at_all(data: object, faults: _Faults) -> None:
    """Each part by itself, so that a fault of one hides none of another."""
    job: JobFile | None = None

    def parse() -> None:
        nonlocal job
        job = parse_section(JobFile, data, "")

    faults.check(parse)
    if job is None:
        content = _first_content(data)
        if content is None:
            return
        # Its frame is broken somewhere: the readable part of the first content is checked all the same.
        job = _frame(content)
        if job is None:
            return
    content, path, ineffective = job.job.content[0], "job.content[0]", list[str]()
    settings = settings_of(job, [])
    context_of = plugin_contexts(job, path, settings, [], ineffective, CommitSetting())
    reader = content.reader
    faults.check(
        lambda: find_plugin(reader.name, "reader", f"{path}.reader.name")(
            reader.parameter, context_of("reader", reader)
        )
    )
    for number, step in enumerate(content.transformer):
        faults.check(lambda step=step, number=number: _one_step(step, number, path, ineffective))  # type: ignore[misc] # mypy infers no lambda with a default
    for number, plugin in enumerate(content.writers):
        half = f"writer[{number}]" if isinstance(content.writer, tuple) else "writer"
        faults.check(
            lambda plugin=plugin, half=half: find_plugin(
                plugin.name, "writer", f"{path}.{half}.name"
            )(  # type: ignore[misc] # mypy infers no lambda with a default
                plugin.parameter, context_of(half, plugin)
            )
        )


def _one_step(step: Any, number: int, path: str, ineffective: list[str]) -> None:
    """As the step at its own place of the list."""
    try:
        job_transformers((step,), f"{path}.transformer", ineffective)
    except JobFileError as error:
        step_path = f"{path}.transformer[{number}]"
        raise JobFileError(str(error).replace(f"{path}.transformer[0]", step_path)) from None


def _first_content(data: Any) -> Content | None:
    try:
        content = data["job"]["content"]
        return parse_section(
            Content, content[0] if isinstance(content, list) else content, "job.content[0]"
        )
    except (JobFileError, KeyError, IndexError, TypeError):
        return None


def _frame(content: Content) -> JobFile | None:
    try:
        return parse_section(JobFile, {"job": {"content": [content]}}, "")
    except JobFileError:
        return None


def _depends(fault: str, data: Any, unset: Iterable[str]) -> bool:
    """Whether the value at the path that a fault names contains a variable that is not set."""
    match = _PATH.match(fault)
    if match is None or data is None:
        return any(variable in fault for variable in unset)
    value = data
    for name, number in _PART.findall(match.group()):
        try:
            value = value[name] if name else value[int(number)]
        except (KeyError, IndexError, TypeError):
            break
    return any(variable in str(value) for variable in unset)
