"""A job file becomes the transfers that it asks for. Opens nothing but the file."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from spark_channel.connectors.base.registry import is_database
from spark_channel.datax.columns import in_64_bits, time_patterns, time_texts
from spark_channel.datax.commit import CommitSetting, transaction_of_job
from spark_channel.datax.document import Content, JobFile, Plugin
from spark_channel.datax.end_settings import dirty_limit, with_end
from spark_channel.datax.json_text import parse_text, read_job_text
from spark_channel.datax.loaded_job import LoadedJob
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.plugins import find_plugin
from spark_channel.datax.plugins.compatibility import with_local_times
from spark_channel.datax.sections import ineffective_keys, parse_section, refusal, refused
from spark_channel.datax.transformers import job_transformers
from spark_channel.datax.variables import expand_data
from spark_channel.errors import JobFileError, OptionError
from spark_channel.planning import Endpoint, Target, TransferSpec, channel_count

__all__ = ["load_job", "loaded_of", "plugin_contexts", "settings_of"]


Source = str | os.PathLike[str] | Mapping[str, Any]


def load_job(
    source: Source,
    variables: Mapping[str, Any] | None = None,
    *,
    all_content: bool = False,
    commit: str | None = None,
    txn: str | None = None,
) -> LoadedJob:
    """Read a DataX job: a path, JSON text, or the data itself; `variables` are put in for `${name}`.

    DataX runs the first entry of `job.content`; `all_content` makes a transfer of each. `commit` ("job" or "task") and
    `txn` ("name:version") count instead of the same keys of `job.setting`.

    Raises:
        OptionError: `commit` or `txn` that is neither.
        JobFileError: the file is not there, is not JSON, or asks for what cannot be done; names the place.
    """
    values = {name: _as_text(value) for name, value in (variables or {}).items()}
    name, data = _read(source, values)
    try:
        job = parse_section(JobFile, data, "")
        return loaded_of(job, name, all_content, _commit(job, values, commit, txn))
    except RecursionError:
        raise JobFileError(f"{name}: nested too deeply") from None


def _commit(
    job: JobFile, values: Mapping[str, str], commit: str | None, txn: str | None
) -> CommitSetting:
    setting = job.job.setting
    if commit not in (None, "job", "task"):
        raise OptionError(
            f"option '--commit' got {commit!r}; it takes job or task",
            option="--commit",
            got=commit,
            takes="job or task",
        )
    mode = cast(Literal["job", "task"] | None, commit or setting.commit)
    if txn is not None:
        return CommitSetting(mode, transaction_of_job(txn, values, "--txn"))
    if setting.txn is None:
        return CommitSetting(mode)
    path = "job.setting.txn"
    with at(path):
        return CommitSetting(mode, transaction_of_job(setting.txn, values, path))


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(source: Source, variables: dict[str, str]) -> tuple[str, Any]:
    if isinstance(source, Mapping):
        try:
            return "job", expand_data(_plain(source, ""), variables)
        except RecursionError:
            raise JobFileError("job: nested too deeply") from None
    if isinstance(source, str) and (
        source.removeprefix("\ufeff").lstrip()[:1] in ("{", "[") or "\n" in source
    ):
        return "job", parse_text(source, variables, "job")
    path = Path(source)
    if str(source).lower().startswith(("http:", "https:")):
        raise JobFileError("a job is a file or its text; fetch it from its url first")
    try:
        text = read_job_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobFileError(f"{path}: cannot be read: {reason}") from None
    return path.stem, parse_text(text, variables, str(path))


def _plain(data: object, path: str) -> object:
    """JSON data with lists for tuples and text for paths.

    Raises:
        JobFileError: a key that is not text, or a value that JSON has no word for.
    """
    if isinstance(data, Mapping):
        plain = {}
        for key, value in data.items():
            if not isinstance(key, str):
                raise JobFileError(f"{path or 'job'}: key {key!r} is not text")
            plain[key] = _plain(value, f"{path}.{key}" if path else key)
        return plain
    if isinstance(data, (list, tuple)):
        return [_plain(value, f"{path}[{number}]") for number, value in enumerate(data)]
    if isinstance(data, os.PathLike):
        return os.fspath(data)
    if data is None or isinstance(data, (str, int, float, bool)):
        return data
    raise refusal(
        path, type(data).__name__, "what JSON can hold: text, numbers, true, false, lists, objects"
    )


def loaded_of(job: JobFile, name: str, all_content: bool, commit: CommitSetting) -> LoadedJob:
    warnings: list[str] = []
    contents = job.job.content
    ineffective = [
        text for text in ineffective_keys(job) if all_content or not _of_later_content(text)
    ]
    if len(contents) > 1 and not all_content:
        others = ", ".join(
            f"job.content[{n}] ({content.reader.name} to {', '.join(writer.name for writer in content.writers)})"
            for n, content in enumerate(contents[1:], 1)
        )
        warnings.append(
            f"only job.content[0] runs, as in DataX; left out: {others}. --all-content runs each"
        )
    settings = settings_of(job, warnings)
    chosen = contents if all_content else contents[:1]
    specs = tuple(
        _spec(job, content, f"job.content[{number}]", settings, warnings, ineffective, commit)
        for number, content in enumerate(chosen)
    )
    if ineffective:
        warnings.append("without effect: " + "; ".join(dict.fromkeys(ineffective)))
    return LoadedJob(specs, tuple(dict.fromkeys(warnings)), name)


def _of_later_content(text: str) -> bool:
    return text.startswith("job.content[") and not text.startswith("job.content[0]")


def settings_of(job: JobFile, warnings: list[str]) -> dict[str, Any]:
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


def _judged_whole(
    settings: Mapping[str, Any], commit: CommitSetting, target: Endpoint, warnings: list[str]
) -> dict[str, Any]:
    """With `commit=job` a database judges all rows at once, so that one bad row refuses them all.

    Raises:
        JobFileError: the job allows refused rows.
    """
    if commit.mode != "job" or not is_database(target.name):
        return {}
    if settings["max_dirty_rows"] or settings.get("max_dirty_fraction"):
        raise refused(
            "job.setting.errorLimit",
            "a number of rows that may be refused, with commit job",
            "record 0, or none: the rows are published together, and one refused row refuses them all; or commit task",
        )
    if settings["max_dirty_rows"] is None:
        warnings.append(
            "commit job: one row that the target refuses ends the job, and nothing is written"
        )
    return {"max_dirty_rows": 0}


def plugin_contexts(
    job: JobFile,
    path: str,
    settings: Mapping[str, Any],
    warnings: list[str],
    ineffective: list[str],
    commit: CommitSetting,
) -> Callable[[str, Plugin], PluginContext]:
    """What gives a plugin of the content at `path` its place."""
    channels = channel_count(
        rows_per_second=settings["rows_per_second"],
        bytes_per_second=settings["bytes_per_second"],
        channel_rows_per_second=settings["channel_rows_per_second"],
        channel_bytes_per_second=settings["channel_bytes_per_second"],
        channels=settings["channels"],
    )

    def place(half: str, plugin: Plugin) -> PluginContext:
        where = f"{path}.{half}.parameter"
        return PluginContext(
            where, plugin.name, job.common.column, channels, commit, warnings, ineffective
        )

    return place


def _spec(
    job: JobFile,
    content: Content,
    path: str,
    settings: dict[str, Any],
    warnings: list[str],
    ineffective: list[str],
    commit: CommitSetting,
) -> TransferSpec:
    context_of = plugin_contexts(job, path, settings, warnings, ineffective, commit)
    read = find_plugin(content.reader.name, "reader", f"{path}.reader.name")
    reader = read(content.reader.parameter, context_of("reader", content.reader))
    steps = job_transformers(content.transformer, f"{path}.transformer", ineffective)
    ends = _writers(content, path, context_of)
    targets = tuple(
        Target(
            end.endpoint,
            end.transformers,
            end.save_mode,
            plugin.on_failure,
        )
        for plugin, (_, end) in zip(content.writers, ends, strict=True)
    )
    source, first = reader.endpoint, targets[0]
    if len(ends) > 1 or not ends[0][1].exact_numbers:
        reader = replace(reader, transformers=in_64_bits(reader.transformers))
    if reader.every_column:
        count = next((end.columns for _, end in ends if end.columns), 1)
        source = replace(source, options={**source.options, "columnsIfEmpty": str(count)})
        reader = replace(reader, endpoint=source)
    if any(end.local_times for _, end in ends):
        source = with_local_times(source)
        if source != reader.endpoint and not all(end.local_times for _, end in ends):
            raise refused(
                f"{path}.writer",
                "writers of texts beside others: "
                f"{content.reader.name} gives texts the times of its session, and others exact ones",
                "writers of one kind, and a separate job for the others",
            )
    if reader.splits_per_channel is not None:
        settings = {**settings, "splits_per_channel": reader.splits_per_channel}
    settings = with_end(settings, reader, f"{path}.reader.parameter")
    if len(ends) == 1:  # several writers have one each
        settings = with_end(settings, ends[0][1], ends[0][0])
    settings = {**settings, **dirty_limit(settings, ends, warnings)}
    if commit:
        commit_options = commit.options(int(path[len("job.content[") : -1]))
        for plugin, target in zip(content.writers, targets, strict=True):
            if target.writer.spark_format:
                raise refused(
                    f"{path}.writer",
                    f"commit or txn with {plugin.name}, which Spark writes",
                    "neither: Spark's own writers have no transaction",
                )
            settings = {**settings, **_judged_whole(settings, commit, target.writer, warnings)}
        targets = tuple(
            replace(
                target,
                writer=replace(target.writer, options={**target.writer.options, **commit_options}),
            )
            for target in targets
        )
        first = targets[0]
    several = len(targets) > 1
    return TransferSpec(
        source,
        first.writer,
        (*reader.transformers, *steps, *(() if several else first.transformers)),
        save_mode=first.save_mode,
        targets=targets if several else (),
        time_patterns=time_patterns(job.common.column),
        time_texts=time_texts(job.common.column),
        **settings,
    )


def _writers(
    content: Content, path: str, context_of: Callable[[str, Plugin], PluginContext]
) -> list[tuple[str, ParsedPlugin]]:
    """The writers with the paths of their parameters."""
    if not content.writers:
        raise refusal(f"{path}.writer", [], "a writer, or a list of them")
    writers = []
    for number, plugin in enumerate(content.writers):
        half = f"writer[{number}]" if isinstance(content.writer, tuple) else "writer"
        write = find_plugin(plugin.name, "writer", f"{path}.{half}.name")
        writers.append(
            (f"{path}.{half}.parameter", write(plugin.parameter, context_of(half, plugin)))
        )
    return writers
