"""The targets of `transfer(writer=[...])`: which options are each target's own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from spark_channel.errors import OptionError
from spark_channel.options import ByteAmount, Options, WriteOptions
from spark_channel.planning import Endpoint, Target, TransferSpec
from spark_channel.planning.spec import SaveMode
from spark_channel.transfers.options import JobOptions, job_options

__all__ = ["TargetOptions", "read_targets", "target_options"]

_WHOLE = ("channels", "channelsPerTask", "jobId", "capacityRows", "capacityBytes", "transactionRows")
_SPEEDS = {"rowspersecond": "rowsPerSecond", "bytespersecond": "bytesPerSecond"}


class TargetOptions(Options):
    """What a writer takes beside its own options when there are several."""

    on_slow: Literal["block", "spill"] = Field(
        "block",
        description="while this target has no room, `block` stops the reading for all; `spill` keeps its rows on disk",
    )
    on_failure: Literal["fail", "leave"] = Field(
        "fail",
        description="when this target fails, `fail` ends the job; `leave` continues without it, and removes its rows",
    )
    spill_bytes: ByteAmount = Field(
        1 << 30,
        description="with onSlow=spill: the most on disk for each task that is read, of which a channel has two at "
        "most; then it blocks",
    )


def read_targets(writers: Sequence[Mapping[str, Any]], mode: SaveMode) -> tuple[Target, ...]:
    """The targets that a list of writers names.

    Raises:
        OptionError: none, one twice, or a policy that makes no sense.
    """
    if not writers:
        raise OptionError(
            "option 'writer' is an empty list; it takes a writer, or a list of them", option="writer"
        )
    targets: list[Target] = []
    for number, given in enumerate(writers):
        place = f"writer[{number}]"
        if not isinstance(given, Mapping):
            raise OptionError(
                f"option '{place}' got {type(given).__name__}; it takes the options of a writer", option=place
            )
        known = TargetOptions.names()
        policy, _ = TargetOptions.parse({key: value for key, value in given.items() if key.lower() in known})
        end = Endpoint.parse(
            "writer", {key: value for key, value in given.items() if key.lower() not in known}
        )
        if end in [each.writer for each in targets]:
            raise OptionError(
                f"option '{place}' is the same target as one before it: give each once", option=place
            )
        targets.append(
            Target(
                end,
                save_mode=mode,
                on_slow=policy.on_slow,
                on_failure=policy.on_failure,
                spill_bytes=policy.spill_bytes,
            )
        )
    return tuple(targets)


def target_options(spec: TransferSpec, number: int, more: Mapping[str, Any]) -> JobOptions:
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
            option="format", got=target.writer.name,
        )  # fmt: skip
    own = {key.lower(): key for key in target.writer.options}
    for name in _WHOLE:
        if name.lower() in own:
            raise OptionError(
                f"option {own[name.lower()]!r} of writer[{number}] is the whole job's: "
                "give it to transfer(), or in the reader",
                option=name,
            )
    names = {name for name in WriteOptions.names() if name in own}
    given = dict(target.writer.options)
    for name, option in _SPEEDS.items():
        if name in own:
            given[own[name]] = _slower(option, given[own[name]], [spec.reader.options, more])
    reader = {key: value for key, value in spec.reader.options.items() if key.lower() not in names}
    one = replace(
        spec,
        reader=replace(spec.reader, options=reader),
        writer=replace(target.writer, options=given),
        transformers=(*spec.transformers, *target.transformers),
        save_mode=target.save_mode,
        targets=(),
    )
    return job_options(one, {key: value for key, value in more.items() if key.lower() not in names})


def _slower(option: str, own: Any, whole: Sequence[Mapping[str, Any]]) -> Any:
    """The target's speed, but not above the whole job's."""
    others = [value for each in whole for key, value in each.items() if key.lower() == option.lower()]
    field = WriteOptions.names()[option.lower()]
    speeds = [getattr(WriteOptions.parse({option: value})[0], field) for value in (own, *others)]
    return min((speed for speed in speeds if speed is not None), default=None)
