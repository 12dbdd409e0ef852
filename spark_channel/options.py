"""Options: declared as pydantic models, and parsed in one place with one style of error.

A connector subclasses `ReadOptions` or `WriteOptions` and adds fields; Spark's camelCase name of a field
is made from its Python name. Keys arrive lower-cased and values as strings, as Spark hands them over.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from spark_channel.errors import OptionError
from spark_channel.masking import (
    MASK,
    hide,
    hide_in_error,
    is_clear,
    is_plain_parameter,
    is_secret_name,
    mask_untyped,
    mask_url,
    misplaced_secret,
    secrets_in,
)
from spark_channel.option_types import (
    LARGEST,
    TEXT_TAKES,
    Amount,
    Bounds,
    ByteAmount,
    CertificateFile,
    ColumnList,
    CommitMode,
    DirtyAmount,
    DiskPath,
    FilePath,
    JobId,
    Protection,
    Secret,
    Trait,
    Url,
    WriteMode,
    certificate_file,
    has_utf8,
    is_reference,
    parse_amount,
    parse_transaction,
    resolve_secret,
    secret_text,
)

__all__ = [
    "Amount",
    "ByteAmount",
    "CertificateFile",
    "ColumnList",
    "CommitMode",
    "DiskPath",
    "FilePath",
    "Options",
    "ReadOptions",
    "Secret",
    "Trait",
    "Url",
    "WriteMode",
    "WriteOptions",
    "certificate_file",
    "parse_amount",
    "resolve_secret",
]

_E = TypeVar("_E", bound=BaseException)
_BOUNDS = (
    ("greater_than_equal", "ge", "a number of {} or more"),
    ("greater_than", "gt", "a number above {}"),
    ("less_than_equal", "le", "a number of {} or less"),
    ("less_than", "lt", "a number below {}"),
)


def _is_amount(value: object) -> bool:
    try:
        parse_amount(value, bytes_=True)
    except ValueError:
        return False
    return True


class Options(BaseModel):
    """The base of every option model.

    `ignored` and `refused` map other sources' option names (Spark's JDBC and CSV) to a reason: an
    ignored one is warned of, a refused one is an error that gives the reason. An option of a base class that a
    connector cannot take is refused so, too. `aliases` are other names of an option.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        defer_build=True,  # a process parses with one model and imports five
    )

    ignored: ClassVar[Mapping[str, str]] = {}
    refused: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    silent: ClassVar[frozenset[str]] = frozenset()
    """Options of another program that mean what one of this model means, and that no page lists."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Before 2.12, pydantic spells the names of a deferred model only when it is built."""
        for name, field in cls.model_fields.items():
            if field.alias is None:
                field.alias = to_camel(name)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Lower-cased option name -> field name."""
        return {(field.alias or name).lower(): name for name, field in cls.model_fields.items()}

    @classmethod
    def with_trait(cls, trait: Trait) -> frozenset[str]:
        """The lower-cased names of the options that have `trait`, aliases included."""
        return _names_with(cls, trait)

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """The lower-cased names of the options whose whole value is secret, aliases included."""
        return _names_with(cls, SecretStr)

    @classmethod
    def _spellings(cls, fields: Iterable[str]) -> frozenset[str]:
        field_names = set(fields)
        field_of = cls.names()
        spellings = {name for name, field in field_of.items() if field in field_names}
        return frozenset(
            spellings
            | {other.lower() for other, name in cls.aliases.items() if name.lower() in spellings}
        )

    @classmethod
    def shown(cls, raw: Mapping[str, Any]) -> dict[str, str]:
        """Options as they were given, as text for people: `***` for what is secret, also inside urls.

        Their types say what is. A name that is not known here is shown only if it is known to hold no secret.
        """
        secret, places = cls.secrets(), cls.with_trait(Trait.HOLDS_LOGIN)
        plain = (cls._spellings(cls.model_fields) - secret) - places
        texts = {}
        for key, value in raw.items():
            name = key.lower()
            if name in secret:
                texts[key] = MASK
            elif name in places:
                texts[key] = cls._shown_places(value)
            else:
                texts[key] = str(value) if name in plain else mask_untyped(key, value)
        return texts

    @classmethod
    def _is_plain(cls, name: str, text: str) -> bool:
        lowered = name.lower()
        if lowered in cls.secrets() | cls.with_trait(Trait.HOLDS_LOGIN):
            return False
        return lowered in cls._spellings(cls.model_fields) or is_plain_parameter(name, text)

    @classmethod
    def _shown_places(cls, value: object) -> str:
        is_plain = cls._is_plain
        urls = value
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                urls = json.loads(value)
            except (ValueError, RecursionError):
                return MASK
        if isinstance(urls, (list, tuple)):
            return json.dumps([mask_url(str(url), is_plain) for url in urls])
        return mask_url(str(value), is_plain)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            if value is not None and field is not None and _has(field, Trait.HOLDS_LOGIN):
                yield name, self._shown_places(value)
            else:
                yield name, value

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, connector: str = "") -> tuple[Self, list[str]]:
        """Read options as Spark gives them; returns the model and warnings about ignored options.

        Raises:
            OptionError: an unknown or refused name, a bad value, or options that contradict. Neither it nor its cause
                shows a secret, whoever wrote the connector.
        """
        cls._check_logins(raw)
        try:
            return cls._parsed(cls.prepared(raw), connector)
        except Exception as error:
            hide_in_error(error, cls._secrets_of(raw.items()))
            raise

    @classmethod
    def prepared(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options as they are parsed: a connector may move what a url says to other options."""
        return raw

    @classmethod
    def _check_logins(cls, raw: Mapping[str, Any]) -> None:
        """
        Raises:
            OptionError: a url whose login may end in more than one place, or cannot be sent.
        """
        for key, value in raw.items():
            name = key.lower()
            # Names of files contain '@', too.
            if name not in cls.with_trait(Trait.HOLDS_LOGIN) or "path" in name:
                continue
            if not has_utf8(str(value)):
                raise OptionError(f"option {key!r} takes {TEXT_TAKES}", option=key)
            if misplaced := misplaced_secret(str(value)):
                raise OptionError(
                    f"option {key!r} has parameter {misplaced!r} after a ';', where it would be part of a name; write "
                    "parameters after a '?'",
                    option=key,
                )
            if is_clear(str(value)):
                continue
            instead = ", or use options 'user' and 'password'" if "password" in cls.names() else ""
            raise OptionError(
                f"option {key!r} has an '@' after the first '/', '?' or '#', so it is not clear where its login ends. "
                f"In a login, write / ? # @ : as %2F %3F %23 %40 %3A, and in a parameter behind it, @ as %40{instead}",
                option=key,
            )

    @classmethod
    def _secrets_of(cls, pairs: Iterable[tuple[str, Any]]) -> set[str]:
        """What no message about these options may show."""
        secret, places, names = (
            cls.secrets(),
            cls.with_trait(Trait.HOLDS_LOGIN),
            cls._spellings(cls.model_fields),
        )
        texts: set[str] = set()
        for key, value in pairs:
            name = key.lower()
            whole = name in secret or (name not in names and is_secret_name(name))
            for inside, given_text in _leaves(value):
                text = secret_text(given_text)
                is_url = "://" in text
                if name in places or is_url or (whole and not is_secret_name(inside or name)):
                    texts |= (secrets := set(secrets_in(text, cls._is_plain)))
                    whole_text = whole and not inside and not is_url and not secrets
                else:
                    whole_text = whole and not inside
                if whole_text or (whole and is_secret_name(inside or name)):
                    texts.add(text)
        return {text for text in texts if text and not is_reference(text)}

    def hide(self, text: str) -> str:
        """`text`, such as a driver's error, without the secrets that these options hold, or parts of them."""
        return hide(text, self._own_secrets())

    def hidden(self, error: _E) -> _E:
        """`error` of a driver, to be the cause of a ChannelError: it and its causes lose what `hide` removes."""
        hide_in_error(error, self._own_secrets())
        return error

    def _own_secrets(self) -> set[str]:
        fields = type(self).model_fields
        return self._secrets_of(
            (fields[name].alias or name, value) for name, value in self if name in fields
        )

    @classmethod
    def _parsed(cls, raw: Mapping[str, Any], connector: str) -> tuple[Self, list[str]]:
        field_of = cls.names()
        aliases = {alias.lower(): target for alias, target in cls.aliases.items()}
        ignored = {name.lower(): reason for name, reason in cls.ignored.items()}
        refused = {name.lower(): (name, reason) for name, reason in cls.refused.items()}
        values: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        warnings = []
        for key, value in raw.items():
            if value is None:  # as Spark drops it
                continue
            name = key.lower()
            target = aliases.get(name, name).lower()
            if target in field_of:
                field = field_of[target]
                if field in values and str(values[field]) != str(value):
                    raise OptionError(
                        f"options {spelled[field]!r} and {key!r} mean the same and differ; give one of them",
                        option=key,
                    )
                values[field], spelled[field] = value, key
            elif name in ignored:
                warnings.append(f"option {key!r} is ignored: {ignored[name]}")
            elif name in refused:
                spelling, reason = refused[name]
                raise OptionError(
                    f"option {spelling!r} is not supported: {reason}", option=spelling
                )
            else:
                raise cls._unknown(key, connector)
        try:
            parsed = cls(**values)
        except ValidationError as error:
            raise cls._bad_value(error, values, connector) from None
        for name, (spelling, reason) in refused.items():
            field = field_of.get(name, "")
            if field in values and getattr(parsed, field) not in (
                cls.model_fields[field].default,
                0,
            ):
                raise OptionError(
                    f"option {spelling!r} is not supported: {reason}", option=spelling
                )
        return parsed, warnings

    @classmethod
    def _unknown(cls, key: str, connector: str) -> OptionError:
        spellings = {
            (field.alias or name).lower(): field.alias or name
            for name, field in cls.model_fields.items()
        }
        spellings |= {alias.lower(): alias for alias in cls.aliases}
        other_half = {"reader": "writer", "writer": "reader"}.get(key.lower())
        near = (
            [other_half]
            if other_half in spellings
            else difflib.get_close_matches(key.lower(), spellings, n=1, cutoff=0.6)
        )
        where = f" of connector {connector!r}" if connector else ""
        hint = (
            f"did you mean {spellings[near[0]]!r}?"
            if near
            else "known: " + ", ".join(spellings.values())
        )
        return OptionError(
            f"unknown option {key!r}{where}; {hint}",
            option=key,
            takes=spellings[near[0]] if near else "",
        )

    @classmethod
    def _bad_value(
        cls, error: ValidationError, values: Mapping[str, Any], connector: str
    ) -> OptionError:
        detail = error.errors(include_url=False, include_context=True)[0]
        location = str(detail["loc"][0]) if detail["loc"] else ""
        by_spelling = {field.alias or name: name for name, field in cls.model_fields.items()}
        field_name = by_spelling.get(location, location)
        field = cls.model_fields.get(field_name)
        option = (field.alias or field_name) if field else location
        where = f" (connector {connector!r})" if connector else ""
        if detail["type"] == "missing":
            return OptionError(f"option {option!r} is missing{where}", option=option)
        takes = _takes(detail)
        if field is not None and _has(field, SecretStr):
            return OptionError(
                f"option {option!r} takes {takes}{where}", option=option, takes=takes
            )
        got = str(values.get(field_name))
        if field is None or _has(field, Trait.HOLDS_LOGIN) or "@" in got:
            got = cls._shown_places(got)
        return OptionError(
            f"option {option!r} got {got!r}; it takes {takes}{where}",
            option=option,
            got=got,
            takes=takes,
        )


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a value, also in its JSON, each with its name there."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            yield name, str(value)
            return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, str(key))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _leaves(item, name)
    elif value is not None:
        yield name, str(value)


@cache
def _names_with(model: type[Options], marker: object) -> frozenset[str]:
    """Types are searched once for each model: a job parses many times with few of them."""
    return model._spellings(  # noqa: SLF001 - of this file
        name for name, field in model.model_fields.items() if _has(field, marker)
    )


def _has(field: FieldInfo, marker: object) -> bool:
    """Whether a field's type is, or holds, `marker`: a class, or a `Trait`."""
    return marker in field.metadata or _holds(field.annotation, marker)


def _holds(annotation: object, marker: object) -> bool:
    return annotation is marker or any(_holds(part, marker) for part in get_args(annotation))


def _takes(detail: Any) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context["error"])
    if detail["type"] == "literal_error":
        return f"one of {context['expected']}"
    if detail["type"].startswith("bool"):
        return "true or false"
    if detail["type"].startswith("int"):
        return "a whole number"
    if detail["type"].startswith("float"):
        return "a number"
    for kind, bound, words in _BOUNDS:
        if detail["type"] == kind:
            return words.format(context[bound])
    message = str(detail["msg"])
    return message[0].lower() + message[1:]


class CommonOptions(Options):
    """Options of every reader and writer."""

    job_id: JobId | None = Field(
        None, description="the job's name in staging, progress and logs; default: generated"
    )
    rows_per_second: Amount | None = Field(
        None, description="limit of the whole job in rows per second; default: unlimited"
    )
    bytes_per_second: ByteAmount | None = Field(
        None, description="limit of the whole job in Arrow bytes per second; default: unlimited"
    )
    rows_per_second_per_task: Amount | None = Field(
        None,
        description="limit of each Spark task in rows per second, without coordination; default: unlimited",
    )
    bytes_per_second_per_task: ByteAmount | None = Field(
        None,
        description="limit of each Spark task in Arrow bytes per second, without coordination; default: unlimited",
    )
    shared_limit: str | None = Field(
        None,
        description="a limit that several jobs share: its name, or `host:port/name`; default: none",
    )
    shared_limit_token: Secret | None = Field(
        None, description="the token of a `host:port/name` limit; default: none"
    )
    limit_fallback: Literal["static", "fail"] = Field(
        "static",
        description="what a Spark task does when it cannot reach the service: `static` keeps its share of the limit, "
        "`fail` fails the task",
    )
    protect: Protection = Field(
        "off",
        description="`auto`: the speed follows the health signals of source and target, at most at the limit; "
        "`p99<1.25x, cpu<20%`: the same with these aims",
    )
    pressure: Bounds | None = Field(
        None,
        description="bounds of health signals, `replication_lag<10s, active_sessions<40`, also without `protect`; "
        "default: each signal's own, with `protect=auto`",
    )
    capacity_rows: Amount = Field(1_048_576, description="capacity of the channel in rows")
    capacity_bytes: ByteAmount = Field(
        64 << 20,
        description="capacity of the channel in Arrow bytes, of which a transfer without a limit holds an eighth",
    )

    @property
    def is_protected(self) -> bool:
        """Whether the speed follows the health of source and target."""
        return self.protect != "off"

    @property
    def is_limited(self) -> bool:
        """Whether a speed must hold over the whole job."""
        speeds = self.rows_per_second or self.bytes_per_second or self.shared_limit
        return bool(speeds or self.is_protected or self.pressure)

    def model_post_init(self, _context: object) -> None:
        per_job = self.is_limited
        per_task = self.rows_per_second_per_task or self.bytes_per_second_per_task
        if per_job and per_task:
            raise OptionError(
                "options 'rowsPerSecondPerTask' and 'bytesPerSecondPerTask' are the fallback "
                "where no service can run; they contradict 'rowsPerSecond', 'bytesPerSecond', 'sharedLimit', "
                "'protect' and 'pressure': give one kind",
                option="rowsPerSecondPerTask",
            )
        if self.shared_limit_token is not None and self.shared_limit is None:
            raise OptionError(
                "option 'sharedLimitToken' needs 'sharedLimit': give the limit's address and name too",
                option="sharedLimit",
            )
        if self.shared_limit is not None and (
            not self.shared_limit.strip() or _is_amount(self.shared_limit)
        ):
            raise OptionError(
                f"option 'sharedLimit' got {self.shared_limit!r}; it takes a name or host:port/name. "
                "A bare number is a speed: that is 'rowsPerSecond'",
                option="sharedLimit",
                got=self.shared_limit,
                takes="a name or host:port/name",
            )


class ReadOptions(CommonOptions):
    """Options of every reader."""

    aliases: ClassVar[Mapping[str, str]] = {"numPartitions": "channels"}

    reader: str | None = Field(
        None,
        description="the connector's name; default: from the url's scheme or the path's suffix",
    )
    columns: ColumnList | None = Field(
        None, description="columns to read, in this order; default: all"
    )
    where: str | None = Field(
        None, description="a SQL condition that the source evaluates; default: all rows"
    )
    channels: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="channels that run at the same time in the whole job, up to `maxChannels`; "
        "default: the session's parallelism",
    )
    max_channels: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="most channels that run at the same time; default: 8 for each core, and so many that a quarter of "
        "the free connections of each server is left",
    )
    channels_per_task: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="channels in one Spark task"
    )
    limit_per_mark: bool = Field(
        False,
        description="apply the limit to each resource (database host) that is read, not to their sum",
    )


class WriteOptions(CommonOptions):
    """Options of every writer."""

    silent: ClassVar[frozenset[str]] = frozenset({"txnAppId", "txnVersion"})

    writer: str | None = Field(
        None,
        description="the connector's name; default: from the url's scheme or the path's suffix",
    )
    commit: CommitMode | None = Field(
        None,
        description="`job`: all rows become visible together, or none; `task`: each task publishes its rows when it "
        "ends; default: `job`, where the target can; Redis: `task`",
    )
    transaction_rows: Amount | None = Field(
        None, description="most rows in one transaction of the channel; default: `capacityRows`"
    )
    txn: str | None = Field(
        None,
        description="the write's transaction id, `NAME:VERSION`, where the version is a number or a date; a rerun "
        "writes nothing; default: none",
    )
    txn_app_id: str | None = Field(None, description="Delta Lake's name for the NAME of `txn`")
    txn_version: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        None, description="Delta Lake's name for the VERSION of `txn`"
    )
    max_connections: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="most tasks that are connected to the target at the same time; default: so many that a quarter of "
        "its server's free connections is left",
    )
    max_dirty_rows: DirtyAmount | None = Field(
        None,
        description="rows that the target may refuse in the whole job, or `unlimited`; default: 0, or `unlimited` "
        "with `maxDirtyFraction`",
    )
    max_dirty_fraction: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | None = Field(
        None,
        description="share of all rows, 0 to 1, that the target may refuse; default: see `maxDirtyRows`",
    )
    dirty_rows_path: FilePath | None = Field(
        None,
        description="directory for refused rows as Parquet, with reason, job, task and target; default: not kept",
    )

    first_batch: Literal["append", "overwrite"] = Field(
        "append",
        description="only in streams: with `overwrite`, the first micro-batch of a query replaces all rows of the "
        "target; a new checkpoint, or a full refresh, then adds no row again",
    )
    stall_timeout: Annotated[float, Field(gt=0, le=604_800)] | None = Field(
        None,
        description="seconds after which a task that moves no row counts as stalled; waits for the limit do not count; "
        "default: never",
    )
    on_stall: Literal["report", "fail"] = Field(
        "report",
        description="`report`: the progress line names a stalled task; `fail`: the task fails, and Spark retries it",
    )

    dirty_commit: ClassVar[CommitMode | None] = None
    """The only commit mode in which the target judges rows while they are written; None = any."""

    @model_validator(mode="before")
    @classmethod
    def _two_names_of_a_transaction(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("txn") is None:
            return values
        name, version = parse_transaction(str(values["txn"]), "txn")
        for field, value in (("txn_app_id", name), ("txn_version", version)):
            other = values.get(field)
            if other is not None and str(other) != str(value):
                raise OptionError(
                    f"options 'txn' and {to_camel(field)!r} name one write and differ; give only 'txn'",
                    option="txn",
                    got=str(values["txn"]),
                )
        return {**values, "txn_app_id": name, "txn_version": version}

    @property
    def most_dirty_rows(self) -> int | None:
        """`maxDirtyRows` with its default; None = no limit."""
        if self.max_dirty_rows is None:
            return 0 if self.max_dirty_fraction is None else None
        return None if self.max_dirty_rows == LARGEST else self.max_dirty_rows

    @property
    def tolerates_dirty_rows(self) -> bool:
        return self.most_dirty_rows != 0 and self.max_dirty_fraction != 0.0

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        other = self.commit is not None and self.dirty_commit not in (None, self.commit)
        if other and self.tolerates_dirty_rows:
            raise OptionError(
                f"options 'maxDirtyRows' and 'maxDirtyFraction' need commit={self.dirty_commit}: "
                f"with commit={self.commit} this target judges rows when all are published together, "
                "and one refused row refuses them all",
                option="commit",
                got=self.commit,
                takes=str(self.dirty_commit),
            )
        if self.dirty_rows_path is not None and not self.dirty_rows_path.strip():
            raise OptionError("option 'dirtyRowsPath' is empty", option="dirtyRowsPath", got="")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError(
                "options 'txnAppId' and 'txnVersion' go together: the pair names one write. "
                "Option 'txn' is one value instead: NAME:VERSION",
                option="txnAppId" if self.txn_app_id is None else "txnVersion",
            )
        if self.transaction_rows is not None and self.transaction_rows > self.capacity_rows:
            raise OptionError(
                f"option 'transactionRows' got {self.transaction_rows}; it takes at most "
                f"'capacityRows' ({self.capacity_rows})",
                option="transactionRows",
                got=str(self.transaction_rows),
                takes=f"at most {self.capacity_rows}",
            )
