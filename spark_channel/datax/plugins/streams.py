"""streamreader and streamwriter: rows generated, and rows dropped."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import BeforeValidator

from spark_channel.datax.columns import column_type, time_patterns
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.sections import JobSection, refusal, refused
from spark_channel.datax.value_types import Positive, Text
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Output, RandomColumn, Select, strptime_pattern

__all__ = ["stream_reader", "stream_writer"]


_EXAMPLES = {True: "2024-01-01 00:00:00, 2024-12-31 23:59:59", False: "0, 10"}
_TWO_VALUES = re.compile(r"\s*(?:random\s+)?([^,]+?)\s*,\s*([^,]+?)\s*", re.IGNORECASE)


class MadeUpColumn(JobSection):
    type: Text = "string"
    value: Text | None = None
    random: Text | None = None
    date_format: Text | None = None


def _columns(value: object) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"type": "long", "value": 1}')
    return value


class StreamReader(JobSection):
    column: Annotated[tuple[MadeUpColumn, ...], BeforeValidator(_columns)]
    slice_record_count: Positive


class StreamWriter(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "print": "rows are counted and dropped, not printed",
        "visible": "rows are counted and dropped, not printed",
        "encoding": "rows are counted and dropped",
        "fieldDelimiter": "rows are counted and dropped",
    }
    refused: ClassVar[dict[str, str]] = {
        "path": "rows are dropped here; write files with txtfilewriter",
        "fileName": "rows are dropped here; write files with txtfilewriter",
        "recordNumBeforeSleep": "a pause after some rows is a limit: job.setting.speed.record",
        "sleepTime": "a pause after some rows is a limit: job.setting.speed.record",
    }


def stream_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    """As DataX: every channel makes `sliceRecordCount` rows, all of them equal but for `random` columns."""
    plugin = context.read(StreamReader, parameter)
    slices = context.channels
    if slices is None:
        context.warnings.append(
            f"{context.path}: streamreader makes sliceRecordCount rows for each channel, "
            "and no number of channels is set; it makes them once"
        )
    rows = plugin.slice_record_count * (slices or 1)
    if rows > 2**63 - 1:
        raise refusal(
            context.key("sliceRecordCount"),
            plugin.slice_record_count,
            "fewer than 2**63 rows in all",
        )
    outputs = tuple(_output(column, n, context) for n, column in enumerate(plugin.column))
    with at(context.key("column")):
        step = Labelled(Select(outputs), context.key("column"))
    return ParsedPlugin(Endpoint("generator", {"rows": str(rows), "schema": "id BIGINT"}), (step,))


def _output(column: MadeUpColumn, number: int, context: PluginContext) -> Output:
    path = f"{context.key('column')}[{number}]"
    kind = column_type(column.type, f"{path}.type")
    patterns: tuple[str, ...] = ()
    if pa.types.is_timestamp(kind):
        patterns = time_patterns(context.formats)
        if column.date_format is not None:
            with at(f"{path}.dateFormat"):
                patterns = (strptime_pattern(column.date_format),)
    if column.value is not None:
        if column.random is not None:
            context.ineffective.append(f"{path}.random (value is set, and wins)")
        with at(path):
            output = Output(None, f"c{number}", kind, patterns, column.value, exact=True)
            Select((output,))
            return output
    if column.random is None:
        raise refused(path, "neither value nor random", "one of them")
    return Output(
        None, f"c{number}", kind, random=_random(column.random, kind, patterns, f"{path}.random")
    )


def _random(text: str, kind: pa.DataType, patterns: tuple[str, ...], path: str) -> RandomColumn:
    two = _TWO_VALUES.fullmatch(text)
    if two is None:
        raise refusal(path, text, "two values with a comma between them, such as 0, 10")
    try:
        if pa.types.is_timestamp(kind):
            low, high = (_microseconds(value, patterns) for value in two.groups())
        else:
            low, high = (int(value) for value in two.groups())
    except ValueError:
        takes = "two times" if pa.types.is_timestamp(kind) else "two whole numbers"
        raise refusal(
            path, text, f"{takes}, such as {_EXAMPLES[pa.types.is_timestamp(kind)]}"
        ) from None
    limit = 100_000 if kind in (pa.string(), pa.binary()) else 2**53
    if low < 0 and not pa.types.is_timestamp(kind):
        raise refusal(path, text, "two whole numbers of 0 or more")
    if max(abs(low), abs(high)) > limit and not pa.types.is_timestamp(kind):
        raise refusal(path, text, f"numbers up to {limit}")
    with at(path):
        return RandomColumn(low, high)


def _microseconds(text: str, patterns: tuple[str, ...]) -> int:
    for pattern in patterns:
        try:
            moment = datetime.strptime(text, pattern).replace(tzinfo=UTC)
        except ValueError:
            continue
        return int(moment.timestamp()) * 1_000_000
    raise ValueError(text)


def stream_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    context.read(StreamWriter, parameter)
    return ParsedPlugin(Endpoint("discard"))
