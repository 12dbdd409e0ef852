"""A job file becomes the transfers that it asks for. Opens nothing but the file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_channel.errors import JobFileError
from spark_channel.jobs.document import Content, JobFile, Plugin
from spark_channel.jobs.leftovers import leftovers
from spark_channel.jobs.place import Place
from spark_channel.jobs.plugins import find_plugin, readers, writers
from spark_channel.jobs.plugins.own_databases import with_local_times
from spark_channel.jobs.text import parse_text
from spark_channel.jobs.transformers import job_transformers
from spark_channel.jobs.values import parse_section, refusal
from spark_channel.jobs.variables import expand_data
from spark_channel.planning import TransferSpec, channel_count

__all__ = ["LoadedJob", "load_job"]

Source = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """What a job file asks for: one transfer for each content that runs, and what the user should know."""

    specs: tuple[TransferSpec, ...]
    warnings: tuple[str, ...] = ()
    name: str = "job"

    @property
    def spec(self) -> TransferSpec:
        """The first transfer, which is the only one unless all contents were asked for."""
        return self.specs[0]


def load_job(
    source: Source, variables: Mapping[str, Any] | None = None, *, all_content: bool = False
) -> LoadedJob:
    """Read a DataX job: a path, JSON text, or the data itself; `variables` are put in for `${name}`.

    DataX runs the first entry of `job.content`; `all_content` makes a transfer of each.

    Raises:
        JobFileError: the file is not there, is no JSON, or asks for what cannot be done; names the place.
    """
    values = {name: _as_text(value) for name, value in (variables or {}).items()}
    name, data = _read(source, values)
    try:
        job = parse_section(JobFile, data, "")
        return _loaded(job, name, all_content)
    except RecursionError:
        raise JobFileError(f"{name}: nested too deeply") from None


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(source: Source, variables: dict[str, str]) -> tuple[str, Any]:
    if isinstance(source, Mapping):
        try:
            return "job", expand_data(_plain(source, ""), variables)
        except RecursionError:
            raise JobFileError("job: nested too deeply") from None
    if isinstance(source, str) and (source.lstrip()[:1] in ("{", "[") or "\n" in source):
        return "job", parse_text(source, variables, "job")
    path = Path(source)
    if str(source).lower().startswith(("http:", "https:")):
        raise JobFileError("a job is a file or its text; fetch it from its url first")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise JobFileError(f"{path}: cannot be read: {reason}") from None
    return path.stem, parse_text(text, variables, str(path))


def _plain(data: Any, path: str) -> Any:
    """JSON data with lists for tuples and text for paths.

    Raises:
        JobFileError: a key that is no text, or a value that JSON has no word for.
    """
    if isinstance(data, Mapping):
        made = {}
        for key, value in data.items():
            if not isinstance(key, str):
                raise JobFileError(f"{path or 'job'}: key {key!r} is no text")
            made[key] = _plain(value, f"{path}.{key}" if path else key)
        return made
    if isinstance(data, (list, tuple)):
        return [_plain(value, f"{path}[{number}]") for number, value in enumerate(data)]
    if isinstance(data, os.PathLike):
        return os.fspath(data)
    if data is None or isinstance(data, (str, int, float, bool)):
        return data
    raise refusal(path, type(data).__name__, "what JSON can hold: text, numbers, true, false, lists, objects")


def _loaded(job: JobFile, name: str, all_content: bool) -> LoadedJob:
    warnings: list[str] = []
    contents = job.job.content
    left = [text for text in leftovers(job) if all_content or not _of_later_content(text)]
    if len(contents) > 1 and not all_content:
        others = ", ".join(
            f"job.content[{n}] ({content.reader.name} to {content.writer.name})"
            for n, content in enumerate(contents[1:], 1)
        )
        warnings.append(f"only job.content[0] runs, as in DataX; left out: {others}. --all-content runs each")
    settings = _settings(job, warnings)
    chosen = contents if all_content else contents[:1]
    specs = tuple(
        _spec(job, content, f"job.content[{number}]", settings, warnings, left)
        for number, content in enumerate(chosen)
    )
    if left:
        warnings.append("without effect: " + "; ".join(dict.fromkeys(left)))
    return LoadedJob(specs, tuple(dict.fromkeys(warnings)), name)


def _of_later_content(text: str) -> bool:
    return text.startswith("job.content[") and not text.startswith("job.content[0]")


def _settings(job: JobFile, warnings: list[str]) -> dict[str, Any]:
    speed = job.job.setting.speed
    channel = job.core.transport.channel
    errors = job.job.setting.error_limit
    settings: dict[str, Any] = {
        "channels": speed.channel,
        "rows_per_second": speed.record,
        "bytes_per_second": speed.byte,
        "channel_rows_per_second": channel.speed.record,
        "channel_bytes_per_second": channel.speed.byte,
        "capacity_rows": channel.capacity,
        "capacity_bytes": channel.byte_capacity,
        "channels_per_task": job.core.container.task_group.channel or 1,
        "max_dirty_rows": None,
    }
    if errors is not None:
        settings["max_dirty_rows"] = errors.record
        if errors.record is None:
            settings["max_dirty_fraction"] = errors.percentage
        elif errors.percentage is not None:
            warnings.append(
                "job.setting.errorLimit.percentage has no effect, as in DataX, since record is set too"
            )
    job_id = job.core.container.job.id
    if job_id is not None and job_id.strip() not in ("", "-1"):
        settings["job_id"] = job_id.strip()
    return settings


def _spec(
    job: JobFile,
    content: Content,
    path: str,
    settings: dict[str, Any],
    warnings: list[str],
    left: list[str],
) -> TransferSpec:
    def place(half: str, plugin: Plugin) -> Place:
        where = f"{path}.{half}.parameter"
        return Place(where, plugin.name, job.common.column, channels, warnings, left)

    channels = channel_count(
        rows_per_second=settings["rows_per_second"],
        bytes_per_second=settings["bytes_per_second"],
        channel_rows_per_second=settings["channel_rows_per_second"],
        channel_bytes_per_second=settings["channel_bytes_per_second"],
        channels=settings["channels"],
    )
    read = find_plugin(content.reader.name, readers(), f"{path}.reader.name")
    write = find_plugin(content.writer.name, writers(), f"{path}.writer.name")
    reader = read(content.reader.parameter, place("reader", content.reader))
    steps = job_transformers(content.transformer, f"{path}.transformer", left)
    writer = write(content.writer.parameter, place("writer", content.writer))
    if reader.splits_per_channel is not None:
        settings = {**settings, "splits_per_channel": reader.splits_per_channel}
    return TransferSpec(
        with_local_times(reader.endpoint) if writer.local_times else reader.endpoint,
        writer.endpoint,
        (*reader.transformers, *steps, *writer.transformers),
        save_mode=writer.save_mode,
        **settings,
    )
