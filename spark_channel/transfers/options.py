"""Which options of a transfer are the reader's, the writer's, or the whole job's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.errors import OptionError
from spark_channel.jobs import resolve_references
from spark_channel.options import CommonOptions, ReadOptions, WriteOptions
from spark_channel.planning import Endpoint, EndpointPart, TransferSpec

__all__ = ["JobOptions", "job_options"]

_PLANNED = {"channels": "channels", "numpartitions": "channels", "channelspertask": "channels_per_task"}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """A transfer whose two ends hold only what is theirs. `job` is for the whole job, in Spark's spelling."""

    spec: TransferSpec
    job: Mapping[str, Any]

    @property
    def limits(self) -> dict[str, Any]:
        """The options of `job` that a reader takes, too."""
        own = set(CommonOptions.names())
        return {key: value for key, value in self.job.items() if key.lower() in own}


def job_options(spec: TransferSpec, more: Mapping[str, Any]) -> JobOptions:
    """Sort the options of both ends: those of the whole job may be given at either of them, or in `more`.

    Raises:
        OptionError: an option of the job that is given twice, with different values.
    """
    given = {**_of_spec(spec), **more}
    reader, writer = spec.reader, spec.writer
    if not reader.spark_format:
        reader = _sorted(reader, set(CommonOptions.names()) | set(_PLANNED), given)
    if not writer.spark_format:
        writer = _sorted(writer, set(WriteOptions.names()) - {"writer"}, given)
    planned: dict[str, Any] = {}
    for key in list(given):
        if (field := _PLANNED.get(key.lower())) is not None:
            planned[field] = given.pop(key)
    if planned:
        names = {"channels": "channels", "channels_per_task": "channelsPerTask"}
        parsed, _ = ReadOptions.parse({names[field]: value for field, value in planned.items()})
        spec = replace(spec, **{field: getattr(parsed, field) for field in planned})
    return JobOptions(replace(spec, reader=reader, writer=writer), given)


def _of_spec(spec: TransferSpec) -> dict[str, Any]:
    given = {
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
        given["maxDirtyRows"] = "unlimited"
    elif spec.max_dirty_rows == 0:
        given["maxDirtyRows"] = None  # the default, which an option may change
    return {key: value for key, value in given.items() if value is not None}


def _sorted(end: Endpoint, names: set[str], job: dict[str, Any]) -> Endpoint:
    """`end` without the options in `names`, which go into `job`."""
    own: dict[str, Any] = {}
    known = {key.lower(): key for key in job}
    for key, value in resolve_references(end.options).items():
        if key.lower() not in names:
            own[key] = value
            continue
        if value is None:
            continue
        earlier = known.get(key.lower())
        if earlier is not None and str(job[earlier]) != str(value):
            raise OptionError(
                f"option {key!r} is given in two places and differs; it is the whole job's: give it once",
                option=key,
            )
        job[earlier or key] = value
    parts = tuple(EndpointPart(resolve_references(part.options), part.urls) for part in end.parts)
    return replace(end, options=own, parts=parts)
