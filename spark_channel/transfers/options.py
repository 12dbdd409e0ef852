"""Separates a transfer's options: those of the reader, of each writer, and of the whole job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from spark_channel.connectors.base.registry import find_connector
from spark_channel.errors import OptionError
from spark_channel.option_types import resolve_references
from spark_channel.options import CommonOptions, Options, ReadOptions, WriteOptions
from spark_channel.planning import Endpoint, EndpointOverrides, Target, TransferSpec
from spark_channel.planning.transfer import SaveMode

__all__ = [
    "JobOptions",
    "TargetOptions",
    "job_options",
    "read_targets",
    "take_schema",
    "target_options",
]


_PLANNED = {
    "channels": "channels",
    "numpartitions": "channels",
    "channelspertask": "channels_per_task",
    "maxchannels": "max_channels",
}
_WHOLE = (
    "channels",
    "channelsPerTask",
    "maxChannels",
    "jobId",
    "capacityRows",
    "capacityBytes",
    "transactionRows",
)
_SPEEDS = {"rowspersecond": "rowsPerSecond", "bytespersecond": "bytesPerSecond"}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """A transfer whose two ends hold only what is theirs. `job` is for the whole job, in Spark's spelling."""

    spec: TransferSpec
    job: Mapping[str, Any]

    @property
    def limits(self) -> dict[str, Any]:
        """The options of `job` that a reader takes, too."""
        names = set(CommonOptions.names())
        return {key: value for key, value in self.job.items() if key.lower() in names}


def job_options(spec: TransferSpec, job_settings: Mapping[str, Any]) -> JobOptions:
    """Sort the options of both ends: those of the whole job may be given at either of them, or in `job_settings`.

    Raises:
        OptionError: an option of the job that is given twice, with different values.
    """
    whole_job = {**_of_spec(spec), **job_settings}
    reader, writer = spec.reader, spec.writer
    if not reader.spark_format:
        reader = _sorted(reader, set(CommonOptions.names()) | set(_PLANNED), whole_job)
    if not writer.spark_format:
        writer = _sorted(writer, set(WriteOptions.names()) - {"writer"}, whole_job)
    planned: dict[str, Any] = {}
    for key in list(whole_job):
        if (field := _PLANNED.get(key.lower())) is not None:
            planned[field] = whole_job.pop(key)
    if planned:
        names = {
            "channels": "channels",
            "channels_per_task": "channelsPerTask",
            "max_channels": "maxChannels",
        }
        parsed, _ = ReadOptions.parse({names[field]: value for field, value in planned.items()})
        spec = replace(spec, **{field: getattr(parsed, field) for field in planned})
    return JobOptions(replace(spec, reader=reader, writer=writer), whole_job)


def _of_spec(spec: TransferSpec) -> dict[str, Any]:
    whole_job = {
        "jobId": spec.job_id,
        "rowsPerSecond": spec.rows_per_second,
        "bytesPerSecond": spec.bytes_per_second,
        "sharedLimit": spec.shared_limit,
        "capacityRows": spec.capacity_rows,
        "capacityBytes": spec.capacity_bytes,
        "maxDirtyFraction": spec.max_dirty_fraction,
        "maxDirtyRows": spec.max_dirty_rows,
    }
    if spec.max_dirty_rows is None and spec.max_dirty_fraction is None:
        whole_job["maxDirtyRows"] = "unlimited"
    elif spec.max_dirty_rows == 0:
        whole_job["maxDirtyRows"] = None  # the default, which an option may change
    return {key: value for key, value in whole_job.items() if value is not None}


def _sorted(end: Endpoint, names: set[str], job: dict[str, Any]) -> Endpoint:
    """`end` without the options in `names`, which go into `job`."""
    own_options: dict[str, Any] = {}
    spellings = {key.lower(): key for key in job}
    for key, value in resolve_references(end.options).items():
        if key.lower() not in names:
            own_options[key] = value
            continue
        if value is None:
            continue
        earlier = spellings.get(key.lower())
        if earlier is not None and str(job[earlier]) != str(value):
            raise OptionError(
                f"option {key!r} is given in two places and differs; it is the whole job's: give it once",
                option=key,
            )
        job[earlier or key] = value
    parts = tuple(
        EndpointOverrides(resolve_references(part.options), part.urls) for part in end.parts
    )
    return replace(end, options=own_options, parts=parts)


class TargetOptions(Options):
    """Options that each of several writers accepts in addition to its own."""

    on_slow: Literal["block"] = Field(
        "block", description="while this target has no room, the reading stops for all"
    )
    on_failure: Literal["fail", "leave"] = Field(
        "fail",
        description="when this target fails, `fail` ends the job; `leave` continues without it, and removes its rows",
    )


def read_targets(writers: Sequence[Mapping[str, Any]], mode: SaveMode) -> tuple[Target, ...]:
    """The targets that a list of writers names.

    Raises:
        OptionError: none, one twice, or a policy that makes no sense.
    """
    if not writers:
        raise OptionError(
            "option 'writer' is an empty list; it takes a writer, or a list of them",
            option="writer",
        )
    targets: list[Target] = []
    for number, options in enumerate(writers):
        option = f"writer[{number}]"
        if not isinstance(options, Mapping):
            raise OptionError(
                f"option '{option}' got {type(options).__name__}; it takes the options of a writer",
                option=option,
            )
        target_names = TargetOptions.names()
        policy, _ = TargetOptions.parse(
            {key: value for key, value in options.items() if key.lower() in target_names}
        )
        end = Endpoint.parse(
            "writer",
            {key: value for key, value in options.items() if key.lower() not in target_names},
        )
        if end in [target.writer for target in targets]:
            raise OptionError(
                f"option '{option}' is the same target as one before it: give each once",
                option=option,
            )
        targets.append(Target(end, save_mode=mode, on_failure=policy.on_failure))
    return tuple(targets)


def target_options(spec: TransferSpec, number: int, job_settings: Mapping[str, Any]) -> JobOptions:
    """The options of one target's own part of the job: what it does not say, the whole job's say for it.

    Raises:
        OptionError: an option that cannot differ between targets, or a format of Spark.
    """
    target = spec.targets[number]
    if target.writer.spark_format:
        raise OptionError(
            f"option 'writer[{number}]' has format {target.writer.name!r}: "
            "of several targets each is written by a connector of spark-channel. "
            "Name one with 'name', or write it by a separate transfer",
            option="format",
            got=target.writer.name,
        )
    spellings = {key.lower(): key for key in target.writer.options}
    for name in _WHOLE:
        if name.lower() in spellings:
            raise OptionError(
                f"option {spellings[name.lower()]!r} of writer[{number}] is the whole job's: "
                "give it to transfer(), or in the reader",
                option=name,
            )
    names = {name for name in WriteOptions.names() if name in spellings}
    own_options = dict(target.writer.options)
    for name, option in _SPEEDS.items():
        if name in spellings:
            own_options[spellings[name]] = _slower(
                option, own_options[spellings[name]], [spec.reader.options, job_settings]
            )
    reader = {key: value for key, value in spec.reader.options.items() if key.lower() not in names}
    one = replace(
        spec,
        reader=replace(spec.reader, options=reader),
        writer=replace(target.writer, options=own_options),
        transformers=(*spec.transformers, *target.transformers),
        save_mode=target.save_mode,
        targets=(),
    )
    return job_options(
        one, {key: value for key, value in job_settings.items() if key.lower() not in names}
    )


def _slower(option: str, own_speed: object, whole: Sequence[Mapping[str, Any]]) -> object:
    """The target's speed, but not above the whole job's."""
    others = [
        value
        for options in whole
        for key, value in options.items()
        if key.lower() == option.lower()
    ]
    field = WriteOptions.names()[option.lower()]
    speeds = [
        getattr(WriteOptions.parse({option: value})[0], field) for value in (own_speed, *others)
    ]
    return min((speed for speed in speeds if speed is not None), default=None)


def take_schema(named: dict[str, Any]) -> str | None:
    """`schema` as `spark.read.schema` takes it, out of a reader's options; None = the reader finds its own.

    A connector that has an option of that name keeps it.
    """
    key = next((key for key in named if key.lower() == "schema"), None)
    if key is None or "schema" in find_connector(named, "reader").options_class("reader").names():
        return None
    return str(named.pop(key))
