"""Connectors by their own names: `parameter` holds the connector's own options, as `transfer()` takes them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BeforeValidator

from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import all_connectors, connector_names, find_connector
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.sections import refusal, refused
from spark_channel.errors import ChannelError, JobFileError, OptionError
from spark_channel.option_types import has_reference, without_references
from spark_channel.options import Options, WriteOptions
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode

__all__ = ["connector_plugin", "declared_plugins"]


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
