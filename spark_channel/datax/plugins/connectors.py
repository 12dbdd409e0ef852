"""Our connectors as plugins; stream plugins."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import BeforeValidator

from spark_channel.connectors.base.connector import Connector, DataxCompatibility
from spark_channel.connectors.base.registry import all_connectors, connector_names, find_connector
from spark_channel.datax.columns import column_type, time_patterns
from spark_channel.datax.place import ParsedPlugin, PluginContext, at
from spark_channel.datax.values import JobSection, Positive, Text, refusal, refused
from spark_channel.errors import ChannelError, JobFileError, OptionError
from spark_channel.option_types import has_reference, without_references
from spark_channel.options import Options, WriteOptions
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import (
    Labelled,
    Output,
    RandomColumn,
    Select,
    Transformer,
    strptime_pattern,
)
from spark_channel.transform.convert import ShortDecimals, local_zone

__all__ = [
    "connector_plugin",
    "decimal_steps",
    "declared_plugins",
    "duplicate_options",
    "mode_options",
    "reading_options",
    "stream_reader",
    "stream_writer",
    "with_local_times",
    "writing_options",
    "zone_options",
]


# Connectors by their own names: `parameter` holds the connector's own options, as `transfer()` takes them.


_MODES: dict[str, SaveMode] = {
    "append": "append",
    "overwrite": "overwrite",
    "errorifexists": "errorIfExists",
    "error": "errorIfExists",
}
_OF_JOB = (
    "channels",
    "channels_per_task",
    "rows_per_second",
    "bytes_per_second",
    "capacity_rows",
    "capacity_bytes",
    "job_id",
)
"""Options that settings of the job mean, too."""
_TOGETHER = "with commit job, the rows are published together, and one refused row refuses them all"


def connector_plugin(
    name: str, half: str
) -> Callable[[dict[str, Any], PluginContext], ParsedPlugin] | None:
    """The plugin of the connector `name`; None = there is none of that name that has this half."""
    if name not in connector_names(half):
        return None
    return partial(
        _reader if half == "reader" else _writer, find_connector({half: name}, half), name
    )


def declared_plugins(
    half: str,
) -> dict[str, Callable[[dict[str, Any], PluginContext], ParsedPlugin]]:
    """By their names, those of connectors that declare names of DataX and speak no SQL."""
    builder = _reader if half == "reader" else _writer
    return {
        f"{name}{half}": partial(builder, connector, connector.name)
        for connector in all_connectors()
        if not connector.dialect and getattr(connector, half)
        for name in connector.datax
    }


def _reader(
    connector: Connector, name: str, parameter: dict[str, Any], context: PluginContext
) -> ParsedPlugin:
    plugin = _Given(connector, "reader", parameter, context)
    return ParsedPlugin(Endpoint(name, plugin.options), of_job=plugin.of_job())


def _writer(
    connector: Connector, name: str, parameter: dict[str, Any], context: PluginContext
) -> ParsedPlugin:
    mode: SaveMode = "append"
    remaining = {}
    for key, value in parameter.items():
        if key.lower() != "mode":
            remaining[key] = value
        elif value is not None:
            save_mode = _MODES.get(str(value).strip().lower())
            if save_mode is None:
                raise refusal(context.key(key), value, "append, overwrite or errorIfExists")
            mode = save_mode
    plugin = _Given(connector, "writer", remaining, context)
    return ParsedPlugin(
        Endpoint(name, plugin.options),
        save_mode=mode,
        of_job=plugin.of_job(),
        own_dirty_limit=plugin.has_dirty_limit(),
        no_dirty_rows=plugin.why_no_dirty_rows(),
    )


@dataclass
class _Key:
    """One option: its key in the file, and its value for the connector. `list_texts`: those of a list."""

    typed: str
    value: str
    list_texts: list[str] | None = None


class _Given:
    """The options of one end, held to be what the connector takes. Opens nothing."""

    def __init__(
        self, connector: Connector, half: str, parameter: Mapping[str, Any], context: PluginContext
    ) -> None:
        self._connector, self._half, self._context = connector, half, context
        self._parsed: Options | None = None
        self._keys: dict[str, _Key] = {}
        try:
            self._model: type[Options] | None = connector.options_class(half)
        except ImportError:  # `check` and the run name what must be installed
            self._model = None
        for key, value in parameter.items():
            if value is not None:
                self._add(key, value)
        if self._model is not None:
            self._parse(self._model)

    @property
    def options(self) -> dict[str, str]:
        return {name: key.value for name, key in self._keys.items()}

    def of_job(self) -> dict[str, Any]:
        """Those that are for the whole job, by the names of its settings."""
        if self._parsed is None:
            return {}
        return {
            name: getattr(self._parsed, name)
            for name in _OF_JOB
            if name in self._parsed.model_fields_set
        }

    def has_dirty_limit(self) -> bool:
        return not {"maxdirtyrows", "maxdirtyfraction"}.isdisjoint(map(str.lower, self._keys))

    def why_no_dirty_rows(self) -> str:
        """Why the target cannot leave single rows out; "" = it can."""
        model = self._model
        if model is None or not issubclass(model, WriteOptions):
            return ""
        commit_key = self._keys.get("commit")
        by_job = (
            "job" in (self._context.commit.mode, commit_key and commit_key.value)
            and model.dirty_commit == "task"
        )
        return model.refused.get("maxDirtyRows", _TOGETHER if by_job else "")

    def _add(self, key: str, value: object) -> None:
        if key.lower() == self._half:
            raise refusal(
                self._context.key(key), value, f"nothing: {self._half}.name names the connector"
            )
        model = self._model
        name = _spelled(model, key) if model is not None else key
        if model is not None and isinstance(value, (list, dict)) and _is_plain_text(model, name):
            raise refusal(self._context.key(key), value, "a text")
        earlier = self._keys.get(name)
        if earlier is not None and earlier.value != _text(value):
            raise refused(
                self._context.key(key),
                "another value",
                f"that of {earlier.typed}, which is the same option",
            )
        reason = (
            {option.lower(): reason for option, reason in model.ignored.items()}.get(key.lower())
            if model
            else None
        )
        if reason is not None:
            self._context.ineffective.append(f"{self._context.key(key)} ({reason})")
            return
        texts = list(map(_text, value)) if isinstance(value, list) else None
        self._keys[name] = _Key(key, _text(value), texts)

    def _parse(self, model: type[Options]) -> None:
        """
        Raises:
            JobFileError: what the connector does not take; names the key.
        """
        commit_options = self._context.commit.options() if self._half == "writer" else {}
        self._refuse_twice(commit_options)
        later: set[str] = set()
        if self._half == "reader" and "schema" not in model.names():
            # As `spark.read.schema` takes it.
            later.update(name for name in self._keys if name.lower() == "schema")
        while True:
            values = without_references({**self.options, **commit_options})
            values = {name: value for name, value in values.items() if name not in later}
            try:
                self._parsed, _ = model.parse(values, connector=self._connector.name)
            except ChannelError as error:
                name = self._named(getattr(error, "option", ""))
                if name is not None and self._as_commas(self._keys[name]):
                    continue
                if name in later:
                    return  # whether it is right is known when the job runs
                if name is not None and has_reference(self._keys[name].value):
                    later.add(name)
                    continue
                raise self._fault(error, name, commit_options) from error
            break
        for option in _OF_JOB:  # `50k` and 50000 are one limit
            name = self._named(_alias(model, option))
            if name is not None and option in self._parsed.model_fields_set:
                self._keys[name].value = str(getattr(self._parsed, option))

    def _refuse_twice(self, commit: Mapping[str, Any]) -> None:
        for option in commit:
            spellings = (option, "txnAppId", "txnVersion") if option == "txn" else (option,)
            name = next((key for spelling in spellings if (key := self._named(spelling))), None)
            if name is not None and self._keys[name].value != commit[option]:
                raise refused(
                    self._context.key(self._keys[name].typed),
                    repr(self._keys[name].value),
                    f"nothing beside the job's own {option}: job.setting.{option}, or the command line, sets it",
                )

    def _as_commas(self, key: _Key) -> bool:
        """A list that was refused as JSON becomes a text with commas, once."""
        texts, key.list_texts = key.list_texts, None
        if not texts or any("," in text for text in texts):
            return False
        key.value = ",".join(texts)
        return True

    def _named(self, option: str) -> str | None:
        """The key of `options` that an error's option is."""
        spelled = option if self._model is None else _spelled(self._model, option)
        return next(
            (name for name in self._keys if name.lower() in (option.lower(), spelled.lower())), None
        )

    def _fault(
        self, error: ChannelError, name: str | None, commit_options: Mapping[str, Any]
    ) -> JobFileError:
        path = self._context.path
        if name is not None:
            path = self._context.key(self._keys[name].typed)
        elif isinstance(error, OptionError) and error.option in commit_options:
            by_mode = error.option == "commit"
            path = "job.setting.commit, or --commit" if by_mode else "job.setting.txn, or --txn"
        return JobFileError(f"{path}: {error}")


def _text(value: object) -> str:
    """A value of JSON as Spark hands an option over; lists and objects stay JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _spelled(model: type[Options], key: str) -> str:
    """The option's own name, whatever alias or case it is typed in; another key stays."""
    lowered = {other.lower(): name for other, name in model.aliases.items()}
    field = model.names().get(lowered.get(key.lower(), key).lower())
    return key if field is None else _alias(model, field)


def _alias(model: type[Options], field: str) -> str:
    field_info = model.model_fields.get(field)
    return field if field_info is None else field_info.alias or field


def _is_plain_text(model: type[Options], name: str) -> bool:
    """Whether an option is any text, so that the JSON of a list would be taken for one."""
    field = model.model_fields.get(model.names().get(name.lower(), ""))
    if field is None or any(isinstance(note, BeforeValidator) for note in field.metadata):
        return False
    return field.annotation in (str, str | None)


# What a DataX job asks of our connectors so that they read and write as DataX does.


_IN_URL = {"zeroDates": "zerodatetimebehavior"}
"""Options that a url calls otherwise."""


def reading_options(connector: str, urls: Collection[str]) -> dict[str, str]:
    """DataX's defaults, but for what the urls themselves say."""
    all_urls = " ".join(urls).lower()
    defaults = _as_datax(connector).reader
    return {
        name: value
        for name, value in defaults.items()
        if _IN_URL.get(name, name.lower()) not in all_urls
    }


def mode_options(connector: str, texts: Iterable[str]) -> Mapping[str, str]:
    """A job that sets `sql_mode` gets it unchanged."""
    asks = any("sql_mode" in text.lower() for text in texts)
    return _as_datax(connector).own_mode if asks else {}


def zone_options(
    connector: str, texts: Iterable[str], *, statements: Iterable[str] = ()
) -> dict[str, str]:
    """The zone of this machine, where DataX's driver sets it; not where a url or a statement of the session sets one.

    PostgreSQL runs some `statements` outside of transactions alone, which a session with its own zone does not do.
    """
    option = _as_datax(connector).zone
    names_zone = any("zone" in text.lower() for text in texts)
    alone = any(_OUTSIDE.search(text) for text in statements)
    return {} if not option or names_zone or alone else {option: local_zone()}


_OUTSIDE = re.compile(r"^\s*vacuum\b|\bconcurrently\b", re.IGNORECASE)


def decimal_steps(connector: str | None) -> tuple[Transformer, ...]:
    """The step that gives decimals the text that DataX's plugin for this connector gives them, if it has its own."""
    has_short = connector is not None and _as_datax(connector).short_decimals
    return (ShortDecimals(),) if has_short else ()


def duplicate_options(connector: str, write_mode: str) -> Mapping[str, str]:
    """`writeMode` by every unique key, where the database has such a mode; {} = it has none."""
    words = " ".join(write_mode.lower().partition("(")[0].split()).removesuffix(" into")
    return _as_datax(connector).modes.get(words, {})


def with_local_times(end: Endpoint) -> Endpoint:
    """The reader that brings instants as its session shows them, where it can."""
    return (
        end
        if end.spark_format
        else replace(end, options={**_as_datax(end.name).texts, **end.options})
    )


def writing_options(connector: str, *, promises: bool) -> Mapping[str, str]:
    """DataX's defaults of a write; `promises`: the job asks for more than at least once, which needs the ledger."""
    defaults = _as_datax(connector).writer
    return {name: value for name, value in defaults.items() if not (promises and name == "ledger")}


def _as_datax(connector: str) -> DataxCompatibility:
    return next(
        (
            connector_there.as_datax
            for connector_there in all_connectors()
            if connector_there.name == connector
        ),
        DataxCompatibility(),
    )


# streamreader and streamwriter: rows generated, and rows dropped.


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


_EXAMPLES = {True: "2024-01-01 00:00:00, 2024-12-31 23:59:59", False: "0, 10"}


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
