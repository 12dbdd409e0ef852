"""The file of a replication: what it may say, and what of it holds for one table."""

import difflib
import json
import shlex
from collections.abc import Hashable, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_snake

from spark_channel.errors import JobFileError
from spark_channel.masking import MASK, is_secret_name, mask_text
from spark_channel.option_types import is_reference, parse_amount
from spark_channel.replication.deletes import Deletes
from spark_channel.replication.masks import parse_mask
from spark_channel.replication.patterns import Names, is_pattern
from spark_channel.service.windows import Window, parse_window, zone_of

__all__ = [
    "Contract",
    "Limit",
    "Place",
    "Replication",
    "StreamOptions",
    "json_schema",
    "load_replication",
    "over",
]

Policy = Literal["evolve", "freeze", "discard_row", "discard_value"]
Mode = Literal["full", "incremental", "full_then_changes"]
_KEEPS_ONE_LINE = {"shown": 80}

_OF_PLACE = "it is the same for all streams: write it below source or target"
_OF_STREAM = "the stream's name says which table is read, and its 'object' where it goes"
_NOT_FURTHER = {
    **dict.fromkeys(("url", "path", "reader", "writer"), _OF_PLACE),
    **dict.fromkeys(("dbtable", "query"), _OF_STREAM),
    "where": "the stream has its own 'where'",
    "hidevalues": "streams with masks set it",
}
_JOINED = ("columns", "source_options", "target_options")
_MOST_NODES = 1_000_000
_MOST_TEXT = 1 << 20
"""Characters of a file: some 20 000 tables. They take 4 CPU seconds, and shorter values up to 20."""
_NOISE = {"function-after", "function-before", "tuple", "dict", "[key]"}


def _amount(value: object) -> int:
    return parse_amount(value)


def _bytes(value: object) -> int:
    return parse_amount(value, bytes_=True)


def _names(value: object) -> object:
    """One name, or a list of them."""
    return [value] if isinstance(value, str) else value


def _checked_mask(text: str) -> str:
    parse_mask(text)
    return text


def _checked_window(text: str) -> str:
    parse_window(text)
    return text


def _checked_time(text: str) -> str:
    try:
        parse_window(f"{text} unlimited")
    except ValueError:
        raise ValueError("days and times, such as '22:00-06:00' or 'Sat-Sun'") from None
    return text


def _mask_text(value: object) -> object:
    return "null" if value is None else value


_Amount = Annotated[
    int, BeforeValidator(_amount), Field(json_schema_extra={"type": ["integer", "string"]})
]
_Bytes = Annotated[
    int, BeforeValidator(_bytes), Field(json_schema_extra={"type": ["integer", "string"]})
]
_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
_Windows = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_window)], ...], BeforeValidator(_names)
]
_Times = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_time)], ...], BeforeValidator(_names)
]
_Mask = Annotated[str, BeforeValidator(_mask_text), AfterValidator(_checked_mask)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Place(BaseModel):
    """A source or a target: `url` or `path`, the connector's name where these do not say it, and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    url: str | None = Field(None, description="url of the server or the database file")
    path: str | None = Field(None, description="folder below which each table has its own")
    reader: str | None = Field(
        None, description="the source's connector; default: from url or path"
    )
    writer: str | None = Field(
        None, description="the target's connector; default: from url or path"
    )

    def options(self) -> dict[str, Any]:
        """The options as the connector takes them."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class Contract(_Part):
    """What happens when the source and the target differ."""

    tables: Policy = Field("evolve", description="a table that the target lacks")
    columns: Policy = Field("evolve", description="a column that the target lacks")
    data_type: Policy = Field(
        "freeze", description="a column whose type does not hold the rows' values"
    )


class StreamOptions(_Part):
    """What holds for the tables that one pattern matches. None: what the patterns before it and `defaults` say."""

    disabled: bool | None = Field(None, description="leave the tables out; default: false")
    mode: Mode | None = Field(
        None,
        description="`full` replaces the table's rows; `incremental` adds those that are new; "
        "`full_then_changes` copies them once, and then applies each change of the source's log",
    )
    object: str | None = Field(
        None,
        description="the target's table or folder; {schema} and {table} are the source's names",
    )
    primary_key: _Names | None = Field(
        None,
        description="columns that identify a row: incremental updates rows by them; default: rows are added",
    )
    update_key: str | None = Field(
        None,
        description="column that grows with each new or changed row: a whole number, a date or a time",
    )
    late_seconds: float | None = Field(
        None,
        ge=0,
        le=86_400,
        description="how long after its update_key a row may be committed; default: 10 on servers, 0 on files",
    )
    where: str | None = Field(
        None, description="copy the rows for which this SQL condition is true"
    )
    deletes: Deletes | None = Field(
        None,
        description="full_then_changes: a row that the source deletes is gone (`hard`, default), or gets `_deleted_at` "
        "(`soft`); `scd2` keeps all versions of each row, with `_valid_from` and `_valid_to`",
    )
    columns: dict[str, _Mask] | None = Field(
        None, description="masks by column, or by a pattern such as `*.email`"
    )
    contract: Contract | None = Field(
        None, description="what happens when source and target differ"
    )
    table_schema: Literal["columns", "keys", "full"] | None = Field(
        None,
        alias="schema",
        description="what a table that is made gets of its source's definition: `columns`, `keys` (NOT NULL and the "
        "primary key; default where that can be) or `full` (also indexes, defaults, sequences, checks, comments)",
    )
    load_columns: bool | None = Field(
        None, description="add columns _loaded_at and _run_id; default: false"
    )
    source_options: dict[str, Any] | None = Field(None, description="further options of the reader")
    target_options: dict[str, Any] | None = Field(None, description="further options of the writer")

    @field_validator("source_options", "target_options")
    @classmethod
    def _check_further(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        for key in options or ():
            if reason := _NOT_FURTHER.get(key.lower()):
                raise ValueError(f"further options, and not {key!r}: {reason}")
        return options

    @field_validator("object")
    @classmethod
    def _check_template(cls, text: str | None) -> str | None:
        if text is None:
            return None
        remainder = text.replace("{schema}", "").replace("{table}", "")
        if not text.strip() or "{" in remainder or "}" in remainder:
            raise ValueError("a name, in which {schema} and {table} are the source's names")
        return text


class Limit(_Part):
    """One limit for all tables together."""

    rows_per_second: _Amount | None = Field(
        None, description="in rows per second; default: unlimited"
    )
    bytes_per_second: _Bytes | None = Field(
        None, description="in Arrow bytes per second; default: unlimited"
    )
    windows: _Windows = Field((), description="other limits by time: 'Mon-Fri 08:00-18:00 5k'")
    builds: _Times = Field(
        (),
        description="when indexes and constraints are built that targets lack: '22:00-06:00', 'Sat-Sun'; at other "
        "times a run leaves them to a later one; default: those of a new table with its rows",
    )
    timezone: str = Field("UTC", description="time zone of the windows, such as Europe/Berlin")

    @field_validator("timezone")
    @classmethod
    def _check_zone(cls, name: str) -> str:
        zone_of(name)
        return name

    @property
    def parsed(self) -> tuple[Window, ...]:
        return tuple(map(parse_window, self.windows))

    @property
    def build_times(self) -> tuple[Window, ...]:
        return tuple(parse_window(f"{text} unlimited") for text in self.builds)


def _streams(value: object) -> object:
    """A pattern alone, `shop.*:`, takes the defaults."""
    if not isinstance(value, Mapping):
        return value
    return {key: {} if options in (None, "") else options for key, options in value.items()}


class Replication(_Part):
    """The whole file."""

    source: Place
    target: Place
    defaults: StreamOptions = Field(StreamOptions(), description="what holds for all streams")
    streams: Annotated[dict[str, StreamOptions], BeforeValidator(_streams)] = Field(
        min_length=1,
        description="options by table or pattern; a later entry counts more, a full name most",
    )
    limit: Limit = Limit()
    parallel: int = Field(
        4, ge=1, le=1000, description="how many tables are copied at the same time"
    )
    _names: Names | None = PrivateAttr(None)
    _file: str = PrivateAttr("")
    _typed: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """The name of the file, without its folder: two runs of one file have it in common. "" of data without one."""
        return self._file

    @property
    def typed(self) -> str:
        """The file as a command of a shell names it; `FILE` of data without one."""
        return shlex.quote(self._typed) if self._typed else "FILE"

    def in_file(self, path: Path) -> "Replication":
        """This replication, which the file has."""
        self._file, self._typed = path.name, str(path)
        return self

    @model_validator(mode="after")
    def _check_places(self) -> "Replication":
        for name in ("source", "target"):
            end: Place = getattr(self, name)
            named = end.reader if name == "source" else end.writer
            both = end.url is not None and end.path is not None
            if both or (end.url is None and end.path is None and named is None):
                raise ValueError(
                    f"{name}: either url or path"
                    + (", or the writer of a catalog, such as iceberg" if name == "target" else "")
                )
            for key in end.options():
                if key.lower() in ("dbtable", "query"):
                    raise ValueError(f"{name}: no {key}: streams name the tables")
                if key.lower() == "where":
                    raise ValueError(f"{name}: no {key}: streams and defaults have one")
        return self

    @property
    def names(self) -> Names:
        """The names and patterns of the streams."""
        if self._names is None:
            self._names = Names(self.streams)
        return self._names

    def options_for(
        self, schema: str, table: str, others: Set[str] = frozenset()
    ) -> StreamOptions | None:
        """What holds for one table of the source; None = it is not copied.

        `others`: the labels of the source's tables. A stream that names one of them exactly is not about another table.
        """
        names = (f"{schema}.{table}", table) if not schema else (f"{schema}.{table}",)
        patterns = self.names.patterns_of(names)
        same = dict.fromkeys(self.names.same_as(names))
        exact = [key for key in same if key in names]
        exact = exact or [key for key in same if key not in others]
        if not patterns and not exact:
            return None
        merged = self.defaults
        for key in (*patterns, *exact):
            merged = over(merged, self.streams[key])
        return None if merged.disabled else merged

    def named(self) -> list[str]:
        """The streams that name one table, and are not disabled."""
        return [
            key
            for key, options in self.streams.items()
            if not is_pattern(key) and not options.disabled
        ]


def over(under: StreamOptions, upper: StreamOptions) -> StreamOptions:
    """What holds where both match: `upper` counts more."""
    set_fields: dict[str, Any] = {name: getattr(upper, name) for name in upper.model_fields_set}
    for name in _JOINED:
        if (additions := set_fields.get(name)) is not None:
            # The last of several masks counts, so a mask that is given again comes after the others.
            inherited = {
                key: value
                for key, value in (getattr(under, name) or {}).items()
                if key not in additions
            }
            set_fields[name] = {**inherited, **additions}
    return under.model_copy(
        update={key: value for key, value in set_fields.items() if value is not None}
    )


class _Loader(yaml.BaseLoader):
    """Every value is its text in the file: `no`, `0123` and `18:00` are not other types. A key occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} occurs twice in one mapping", key.start_mark
                )
            names.add(name)
        return super().construct_mapping(node, deep)


def _bounded(text: str) -> Any:
    """What YAML means.

    Raises:
        yaml.YAMLError: not YAML, or its aliases repeat more than may be held in memory.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        sizes: dict[int, int] = {}
        _count(node, sizes)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The values in `node`, each as often as aliases (`*name`) repeat it."""
    if id(node) in sizes:
        size = sizes[id(node)]
    else:
        sizes[id(node)] = _MOST_NODES + 1  # of one that holds itself
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        size = sizes[id(node)] = 1 + sum(_count(part, sizes) for part in parts)
    if size > _MOST_NODES:
        raise yaml.constructor.ConstructorError(
            None, None, f"aliases repeat more than {_MOST_NODES} values", node.start_mark
        )
    return size


def load_replication(source: str | Path | Mapping[str, Any]) -> Replication:
    """The replication in a YAML file, or in its data.

    Raises:
        JobFileError: the file cannot be read, or what it says makes no sense; names the path in the file, what it got
            and what it takes. `others` are further faults.
    """
    if isinstance(source, Mapping):
        return _validated(source, "")
    path = Path(source)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_TEXT + 1)
    except OSError as error:
        raise JobFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise JobFileError(f"{path} is not UTF-8 text: byte {error.start} is not valid") from error
    return parse_replication(text, f"{path}: ").in_file(path)


def parse_replication(text: str, where: str = "") -> Replication:
    """As `load_replication`, for the file's text; `where` begins each message."""
    if len(text) > _MOST_TEXT:
        raise JobFileError(
            f"{where}the file has more than {_MOST_TEXT >> 20} MiB of text: name tables by a pattern such as "
            "shop.*, or split the file"
        )
    try:
        content = _bounded(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        tab = "; YAML is indented by spaces, not by tabs" if "'\\t'" in str(error.problem) else ""
        raise JobFileError(f"{where}{line}{error.problem or 'not YAML'}{tab}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise JobFileError(f"{where}not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        kind = "nothing" if content in (None, "") else type(content).__name__
        raise JobFileError(f"{where}the file has {kind}; it takes source, target and streams")
    return _validated(content, where)


def _validated(content: Mapping[str, Any], where: str) -> Replication:
    try:
        return Replication.model_validate(content)
    except ValidationError as error:
        faults = [f"{where}{_fault(dict(detail), content)}" for detail in _by_cause(error.errors())]
        raised = JobFileError(faults[0])
        raised.others = tuple(faults[1:])
        raise raised from None


def _by_cause(errors: list[Any]) -> list[Any]:
    """Unknown names first: a missing one may be one of them, misspelt."""
    return sorted(errors, key=lambda detail: detail["type"] == "missing")


def _fault(error: dict[str, Any], content: Mapping[str, Any]) -> str:
    location = [part for part in error["loc"] if part not in _NOISE]
    path = _path(location)
    kind, got = error["type"], error.get("input")
    if kind == "missing":
        return f"{path} is missing"
    if kind == "extra_forbidden":
        fields = _known(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), fields, n=1)
        snake = to_snake(str(location[-1]))
        hint = snake if snake in fields else near[0] if near else ""
        return f"{path} is not known{f'; did you mean {hint!r}?' if hint else '.'} It takes: {', '.join(fields)}"
    takes = str(error.get("msg", "")).removeprefix("Value error, ")
    if kind == "value_error" and not path:
        return takes
    if kind == "value_error" and isinstance(got, Mapping):
        return f"{path} takes {takes}"
    if kind == "literal_error":
        takes = str(error["ctx"]["expected"]).replace("'", "")
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        takes = "names with values"
    return f"{path} got {_shown(location, got)}; it takes {takes}"


def _path(location: list[Any]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if str(part).replace("_", "").isalnum() else f"'{part}'"
            text += f".{name}" if text else str(name)
    return text


def _shown(location: list[Any], value: object) -> str:
    """The value, unless it may be a secret."""
    inside_masks = "columns" in [str(part) for part in location]
    if any(is_secret_name(str(part)) for part in location) or (
        inside_masks and str(value).lower().startswith("hmac")
    ):
        return value if isinstance(value, str) and is_reference(value) else MASK
    text = mask_text(value) if isinstance(value, str) else type(value).__name__
    longest = _KEEPS_ONE_LINE["shown"]
    return repr(text if len(text) <= longest else f"{text[:longest]}...")


def _known(location: list[Any]) -> list[str]:
    inside: dict[str, type[BaseModel]] = {
        "defaults": StreamOptions,
        "streams": StreamOptions,
        "contract": Contract,
        "limit": Limit,
    }
    models = [inside[str(part)] for part in location if str(part) in inside]
    fields = (models[-1] if models else Replication).model_fields
    return [field.alias or name for name, field in fields.items()]


def json_schema() -> str:
    """The JSON schema of the file, for editors."""
    schema = Replication.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "spark-channel replicate"
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
