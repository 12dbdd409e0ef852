"""Connectors by their own names: `parameter` holds the connector's own options, as `transfer()` takes them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BeforeValidator

from spark_channel.connectors.registry import Connector, all_connectors, connector_names, find_connector
from spark_channel.errors import ChannelError, JobFileError, OptionError
from spark_channel.jobs.place import End, Place
from spark_channel.jobs.references import has_reference, without_references
from spark_channel.jobs.values import refusal, refused
from spark_channel.options import Options, WriteOptions
from spark_channel.planning import Endpoint
from spark_channel.planning.spec import SaveMode

__all__ = ["connector_plugin", "declared_plugins"]

_MODES: dict[str, SaveMode] = {
    "append": "append",
    "overwrite": "overwrite",
    "errorifexists": "errorIfExists",
    "error": "errorIfExists",
}
_OF_JOB = (
    "channels", "channels_per_task", "rows_per_second", "bytes_per_second", "capacity_rows", "capacity_bytes", "job_id",
)  # fmt: skip
"""Options that settings of the job mean, too."""
_TOGETHER = "with commit job, the rows are published together, and one refused row refuses them all"


def connector_plugin(name: str, half: str) -> Callable[[dict[str, Any], Place], End] | None:
    """The plugin of the connector `name`; None = there is none of that name that has this half."""
    if name not in connector_names(half):
        return None
    return partial(_reader if half == "reader" else _writer, find_connector({half: name}, half), name)


def declared_plugins(half: str) -> dict[str, Callable[[dict[str, Any], Place], End]]:
    """By their names, those of connectors that declare names of DataX and speak no SQL."""
    made = _reader if half == "reader" else _writer
    return {
        f"{name}{half}": partial(made, connector, connector.name)
        for connector in all_connectors()
        if not connector.dialect and getattr(connector, half)
        for name in connector.datax
    }


def _reader(connector: Connector, name: str, parameter: dict[str, Any], place: Place) -> End:
    given = _Given(connector, "reader", parameter, place)
    return End(Endpoint(name, given.options), of_job=given.of_job())


def _writer(connector: Connector, name: str, parameter: dict[str, Any], place: Place) -> End:
    mode: SaveMode = "append"
    rest = {}
    for key, value in parameter.items():
        if key.lower() != "mode":
            rest[key] = value
        elif value is not None:
            found = _MODES.get(str(value).strip().lower())
            if found is None:
                raise refusal(place.key(key), value, "append, overwrite or errorIfExists")
            mode = found
    given = _Given(connector, "writer", rest, place)
    return End(
        Endpoint(name, given.options),
        save_mode=mode,
        of_job=given.of_job(),
        own_dirty_limit=given.has_dirty_limit(),
        no_dirty_rows=given.why_no_dirty_rows(),
    )


@dataclass
class _Key:
    """One option: its key in the file, and its value for the connector. `listed`: it came as a list."""

    typed: str
    value: str
    listed: list[str] | None = None


class _Given:
    """The options of one end, held to be what the connector takes. Opens nothing."""

    def __init__(self, connector: Connector, half: str, parameter: Mapping[str, Any], place: Place) -> None:
        self._connector, self._half, self._place = connector, half, place
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
            name: getattr(self._parsed, name) for name in _OF_JOB if name in self._parsed.model_fields_set
        }

    def has_dirty_limit(self) -> bool:
        return not {"maxdirtyrows", "maxdirtyfraction"}.isdisjoint(map(str.lower, self._keys))

    def why_no_dirty_rows(self) -> str:
        """Why the target cannot leave single rows out; "" = it can."""
        model = self._model
        if model is None or not issubclass(model, WriteOptions):
            return ""
        own = self._keys.get("commit")
        by_job = "job" in (self._place.commit.mode, own and own.value) and model.dirty_commit == "task"
        return model.refused.get("maxDirtyRows", _TOGETHER if by_job else "")

    def _add(self, key: str, value: Any) -> None:
        if key.lower() == self._half:
            raise refusal(self._place.key(key), value, f"nothing: {self._half}.name names the connector")
        model = self._model
        name = _spelled(model, key) if model is not None else key
        if model is not None and isinstance(value, (list, dict)) and _is_plain_text(model, name):
            raise refusal(self._place.key(key), value, "a text")
        earlier = self._keys.get(name)
        if earlier is not None and earlier.value != _text(value):
            raise refused(
                self._place.key(key), "another value", f"that of {earlier.typed}, which is the same option"
            )
        reason = (
            {each.lower(): why for each, why in model.ignored.items()}.get(key.lower()) if model else None
        )
        if reason is not None:
            self._place.left.append(f"{self._place.key(key)} ({reason})")
            return
        listed = list(map(_text, value)) if isinstance(value, list) else None
        self._keys[name] = _Key(key, _text(value), listed)

    def _parse(self, model: type[Options]) -> None:
        """
        Raises:
            JobFileError: what the connector does not take; names the key.
        """
        more = self._place.commit.options() if self._half == "writer" else {}
        self._refuse_twice(more)
        later: set[str] = set()
        if self._half == "reader" and "schema" not in model.names():  # as `spark.read.schema` takes it
            later.update(name for name in self._keys if name.lower() == "schema")
        while True:
            given = without_references({**self.options, **more})
            given = {name: value for name, value in given.items() if name not in later}
            try:
                self._parsed, _ = model.parse(given, connector=self._connector.name)
            except ChannelError as error:
                name = self._named(getattr(error, "option", ""))
                if name is not None and self._as_commas(self._keys[name]):
                    continue
                if name in later:
                    return  # whether it is right is known when the job runs
                if name is not None and has_reference(self._keys[name].value):
                    later.add(name)
                    continue
                raise self._fault(error, name, more) from error
            break
        for option in _OF_JOB:  # `50k` and 50000 are one limit
            name = self._named(_alias(model, option))
            if name is not None and option in self._parsed.model_fields_set:
                self._keys[name].value = str(getattr(self._parsed, option))

    def _refuse_twice(self, commit: Mapping[str, Any]) -> None:
        for option in commit:
            name = self._named(option)
            if name is not None and self._keys[name].value != commit[option]:
                setting = "commit" if option == "commit" else "transaction"
                raise refused(
                    self._place.key(self._keys[name].typed),
                    repr(self._keys[name].value),
                    f"nothing beside the job's own {setting}: job.setting.{setting}, or the command line, sets it",
                )

    def _as_commas(self, key: _Key) -> bool:
        """A list that was refused as JSON becomes a text with commas, once."""
        listed, key.listed = key.listed, None
        if not listed or any("," in each for each in listed):
            return False
        key.value = ",".join(listed)
        return True

    def _named(self, option: str) -> str | None:
        """The key of `options` that an error's option is."""
        wanted = option if self._model is None else _spelled(self._model, option)
        return next((name for name in self._keys if name.lower() in (option.lower(), wanted.lower())), None)

    def _fault(self, error: ChannelError, name: str | None, more: Mapping[str, Any]) -> JobFileError:
        path = self._place.path
        if name is not None:
            path = self._place.key(self._keys[name].typed)
        elif isinstance(error, OptionError) and error.option in more:
            by_mode = error.option == "commit"
            path = "job.setting.commit, or --commit" if by_mode else "job.setting.transaction, or --txn"
        return JobFileError(f"{path}: {error}")


def _text(value: Any) -> str:
    """A value of JSON as Spark hands an option over; lists and objects stay JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _spelled(model: type[Options], key: str) -> str:
    """The option's own name, whatever alias or case it is typed in; another key stays."""
    lowered = {other.lower(): name for other, name in {**model.aliases, **model.renamed}.items()}
    field = model.names().get(lowered.get(key.lower(), key).lower())
    return key if field is None or key.lower() in map(str.lower, model.renamed) else _alias(model, field)


def _alias(model: type[Options], field: str) -> str:
    found = model.model_fields.get(field)
    return field if found is None else found.alias or field


def _is_plain_text(model: type[Options], name: str) -> bool:
    """Whether an option is any text, so that the JSON of a list would be taken for one."""
    field = model.model_fields.get(model.names().get(name.lower(), ""))
    if field is None or any(isinstance(each, BeforeValidator) for each in field.metadata):
        return False
    return field.annotation in (str, str | None)
