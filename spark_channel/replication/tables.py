"""Which tables of the source go where, as the file's streams say."""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.contract import SourceTable
from spark_channel.connectors.base.definition import ForeignKeyDefinition
from spark_channel.connectors.base.overlap import Overlap, most_overlap, overlap
from spark_channel.connectors.base.session_pool import keeping_sessions, sessions
from spark_channel.connectors.sql.definition import DEFINING, Lack, lacking
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.connectors.sql.write.table_database import free_index_names
from spark_channel.errors import (
    ChannelError,
    JobFileError,
    OptionError,
    SourceError,
    TargetError,
)
from spark_channel.option_types import resolve_references
from spark_channel.plain_text import log_of
from spark_channel.replication.config import Contract, Place, Replication, StreamOptions, over
from spark_channel.replication.deletes import Deletes
from spark_channel.replication.masks import mask_of, state_of_masks
from spark_channel.replication.patterns import Labels, Names, is_pattern
from spark_channel.tunnel.options import STREAM_OPTIONS

__all__ = [
    "FoundTables",
    "TableCopy",
    "batch_options",
    "check_open",
    "connector_of",
    "ends_fault",
    "find_tables",
    "is_away",
    "is_stricter",
    "lacks_of",
    "name_of",
    "options_but_names",
    "tables_of",
    "target_reader",
    "target_schema",
    "with_numbers",
]

_log = log_of(__name__)

_LOGS = ("postgresql", "mysql")
_APPLIES = ("postgresql", "mysql", "sqlite", "duckdb")
_REPLACES = ("delta", "iceberg")
_NOTES = (*_REPLACES, "parquet")
"""Formats that note keys and comments."""
"""Lake tables, in which a change replaces a whole row: they keep no row that the source deletes."""
_OF_PLACE = ("host", "hostaddr", "port", "dbname", "service")
"""Parameters of a url that name a server or a database."""
_DEFAULT_OBJECT = "{schema}_{table}"
_MOST_HINTS = 20
"""Names for which a similar one is searched, in all names of the source."""
_SMALL_BYTES, _SMALL_ROWS = 4 << 20, 20_000
_UNSAFE = re.compile(r"[^\w .,=@+-]")
_OWNER = re.compile(r".*-[0-9a-f]{6}\.(.+)-[0-9a-f]{12}")
_MISSING = "no table of the source has this name (a view or a foreign table is read by `copy`)"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


@dataclass(frozen=True)
class TableCopy:
    """One table, and where it goes. `reader` and `writer` are options of a transfer, `fault` why it cannot run.

    `source` is one for each source, whatever the login is. `file` is the name of the replication's file.
    `leaves_builds`: indexes and constraints of the target are built at the times of `limit.builds`.
    """

    stream: str
    table: SourceTable | None
    options: StreamOptions
    object: str
    reader: Mapping[str, Any] = field(repr=False)
    writer: Mapping[str, Any] = field(repr=False)
    fault: str = ""
    source: str = ""
    file: str = ""
    leaves_builds: bool = False

    @property
    def mode(self) -> str:
        return self.options.mode or "full"

    @property
    def deletes(self) -> Deletes:
        return self.options.deletes or "hard"

    @property
    def job_id(self) -> str:
        """A name for the table's jobs, which the target keeps with its claim: `other_file` finds the file in it."""
        digest = hashlib.sha256(self.stream.encode()).hexdigest()[:6]
        file = f".{_plain(self.file)[:16]}" if self.file else ""
        return f"{_plain(self.stream).lstrip('_.-')[:40] or 'table'}-{digest}{file}"

    def other_file(self, owner: str) -> str:
        """The file of the run `owner` of this table, if that is not this copy's file; "" = it is, or has no name."""
        match = _OWNER.fullmatch(owner)
        if match is None or not self.file or match[1] == _plain(self.file)[:16]:
            return ""
        return match[1]

    @property
    def contract(self) -> Contract:
        return self.options.contract or Contract()

    @property
    def is_lake(self) -> bool:
        """Whether the target is a lake table, in which a change replaces whole rows."""
        return self.writer.get("writer") in _REPLACES

    @property
    def size(self) -> tuple[int, int]:
        """For the order: bytes, then rows, as far as the catalog knows them."""
        table = self.table
        return (0, 0) if table is None else (table.nbytes or 0, table.rows or 0)

    @property
    def is_small(self) -> bool:
        """Whether one connection reads it in less time than others take to begin."""
        nbytes, rows = self.size
        is_known = self.table is not None and self.table.nbytes is not None
        return is_known and nbytes <= _SMALL_BYTES and rows <= _SMALL_ROWS

    def state_name(self) -> str:
        """How the target names this stream. Another definition of its rows, or another key of a mask, has another name.

        Raises:
            OptionError: the key of a mask is missing or too short.
        """
        options = self.options
        if self.mode == "full":
            return f"replicate/full/{self.source}/{self.stream}"
        parts = [
            self.source,
            options.update_key,
            sorted(options.primary_key or ()),
            options.where,
            state_of_masks(options.columns or {}),
        ]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return f"replicate/{self.mode}/{self.stream}/{digest}"


@dataclass(frozen=True)
class FoundTables:
    """The copies, the largest first, and patterns that match nothing."""

    copies: tuple[TableCopy, ...]
    notes: tuple[str, ...] = ()

    def check_some(self, action: str, select: Sequence[str]) -> None:
        """
        Raises:
            OptionError: the file and `select` match no table that is `action`.
        """
        if not self.copies:
            raise OptionError(
                f"no table is {action}: {'; '.join(self.notes) or 'the streams that match tables are disabled'}. "
                "Correct the names, or let the source's role see the tables",
                option="--select" if select else "streams",
            )


def connector_of(end: Place, half: str) -> Connector:
    """The connector of a source ("reader") or a target ("writer").

    Raises:
        JobFileError: nothing says which, or it has no such half.
    """
    name = "source" if half == "reader" else "target"
    try:
        connector = find_connector(end.options(), half)
        connector.options_class(half)
    except OptionError as error:
        raise JobFileError(f"{name}: {error}") from error
    return connector


def batch_options(end: Place) -> dict[str, Any]:
    """The options without those of the source's log, which a read of a table does not take."""
    return {key: value for key, value in end.options().items() if key.lower() not in STREAM_OPTIONS}


def options_but_names(copy: TableCopy) -> str:
    """Equal for tables whose options are the same, but for their names; "" = an end has no such name."""
    ends = (copy.reader, copy.writer)
    if not all("dbtable" in options for options in ends):
        return ""
    return repr([sorted({**options, "dbtable": ""}.items()) for options in ends])


def is_away(end: Any, error: ChannelError) -> bool:
    """Whether the server of a reader or writer is away for a while."""
    # `is_lost` of a connector that waits for its server by itself does not know one that stayed away.
    dialect = getattr(end, "dialect", None)
    checks = getattr(end, "is_lost", None), getattr(dialect, "is_passing", None)
    return any(check is not None and check(error) for check in checks)


def target_schema(copy: TableCopy, writer: Writer) -> pa.Schema | None:
    """The columns of the target; None = it is not there, or nothing reads it."""
    if writer.exists() is False:
        return None
    try:
        return target_reader(copy).schema()
    except (SourceError, OptionError) as error:
        _log.debug("the target of %s cannot be read: %s", copy.stream, error)
        return None


def target_reader(copy: TableCopy) -> Reader:
    """What reads the target."""
    options = {key: value for key, value in copy.writer.items() if key != "writer"}
    options["reader"] = copy.writer["writer"]
    connector = find_connector(options, "reader")
    accepted = connector.options_class("reader").names()
    reader_options = {key: value for key, value in options.items() if key.lower() in accepted}
    reader: Reader = connector.reader_with(resolve_references(reader_options))[0]
    return reader


def with_numbers(copies: Sequence[TableCopy]) -> list[TableCopy]:
    """Those whose targets have identity or serial columns that a write lets count on. Few statements ask for all."""
    alike: dict[str, list[TableCopy]] = {}
    for copy in copies:
        alike.setdefault(options_but_names(copy), []).append(copy)
    numbered: list[TableCopy] = []
    for some in alike.values():
        try:
            options = resolve_references(some[0].writer)
            writer, _ = find_connector(options, "writer").writer_with(options)
            if not (isinstance(writer, SqlWriter) and writer.database.traits.has_numbers):
                continue
            readers = [target_reader(copy) for copy in some]
            definitions = readers[0].definitions(readers)
        except ChannelError as error:
            _log.debug("the numbers of each table are asked for: %s", error)
            numbered += some
            continue
        numbered += [
            copy
            for copy, target in zip(some, definitions, strict=True)
            if target is not None and any(column.sequence for column in target.columns)
        ]
    return numbered


def lacks_of(
    copy: TableCopy,
    reader: Reader,
    writer: Writer,
    referenced: Callable[[ForeignKeyDefinition], str] = lambda _key: "",
) -> tuple[Lack, ...]:
    """What the target, which is there, lacks of as much of its source's definition as `schema` asks for.

    `referenced`: see `lacking`.

    Raises:
        ChannelError: an end cannot be read.
    """
    level = copy.options.table_schema
    if level not in ("keys", "full") or not isinstance(writer, SqlWriter):
        return ()
    source, target = reader.definition(), target_reader(copy).definition()
    if source is None or target is None:
        return ()
    names: list[Callable[[str], str]] = []

    def name_of(name: str) -> str:
        if not names:  # most targets lack nothing
            target_name = writer.run(
                TargetError,
                "look",
                lambda session: free_index_names(writer.dialect, session, target.schema),
            )
            names.append(target_name)
        return names[0](name)

    return tuple(
        lacking(
            writer.dialect,
            source,
            target,
            is_full=level == "full",
            name_of=name_of,
            referenced=referenced,
        )
    )


def is_stricter(copy: TableCopy, reader: Reader) -> bool:
    """Whether a column of the target is NOT NULL that is not so in the source, of which the target is to be a copy.

    Raises:
        ChannelError: an end cannot be read.
    """
    if copy.writer.get("createTable") not in ("auto", "keys", "full"):
        return False
    source, target = reader.definition(), target_reader(copy).definition()
    if source is None or target is None:
        return False
    loose = {column.name.lower() for column in source.columns if not column.not_null}
    return any(column.not_null and column.name.lower() in loose for column in target.columns)


def check_open(copy: TableCopy) -> None:
    """Check that the target may see the values of the columns that it records or matches."""
    options = copy.options
    masks = options.columns or {}
    assert options.update_key is not None
    mask = mask_of(masks, copy.stream, options.update_key)
    if mask is not None and mask.kind != "keep":
        raise OptionError(
            f"update_key {options.update_key!r} has mask {mask}, and the target records its highest value: name "
            "another column, or mask it with 'keep'"
        )
    for name in options.primary_key or ():
        mask = mask_of(masks, copy.stream, name)
        if mask is not None and mask.kind not in ("keep", "hmac", "sha256"):
            raise OptionError(
                f"primary_key {name!r} has mask {mask}, which can make two keys equal: use hmac or sha256"
            )


@keeping_sessions(looks=True)
def find_tables(replication: Replication, select: Sequence[str] = ()) -> FoundTables:
    """The tables of the source's catalog that the streams name. Opens the source.

    Raises:
        ChannelError: the source cannot be opened, or has no catalog.
    """
    source, tables = connector_of(replication.source, "reader"), _tables_for(replication, select)
    target = _Target(replication)
    digest = hashlib.sha256(name_of(replication.source).encode()).hexdigest()[:12]
    labels = {table.label for table in tables}
    folded = {label.casefold() for label in labels}
    copies = []
    for table in tables:
        options = replication.options_for(table.schema, table.name, labels)
        if options is not None and (not table.is_elsewhere or _names_schema(replication, table)):
            options = _without_others(options, table.label.casefold(), folded)
            copies.append(_copy(replication, table, options, source, digest, target))
    # Of all tables: two that go to one object replace each other's rows also when they are selected one by one.
    writes = connector_of(replication.target, "writer")
    with sessions.one_table():
        copies, target_notes = _without_targets(replication, copies, source, writes)
    copies = _apart(copies, folds=target.folds_names)
    notes = target_notes + _notes(replication, select, tables, [copy.stream for copy in copies])
    selected = Names(select)
    copies = [copy for copy in copies if not select or copy.stream in selected]
    copies += _missing(replication, select, tables)
    copies.sort(key=lambda copy: (*(-amount for amount in copy.size), copy.stream))
    return FoundTables(tuple(copies), tuple(notes))


def tables_of(
    replication: Replication, labels: Collection[str] | None = None
) -> Sequence[SourceTable]:
    """The tables of the source's catalog; with `labels` only those that have one of them, and perhaps others.

    Raises:
        ChannelError: the source cannot be opened, or has no catalog.
    """
    reader = _probe(replication.source, connector_of(replication.source, "reader"), "reader")
    tables: Sequence[SourceTable] = (
        reader.tables() if labels is None else reader.named_tables(labels)
    )
    return tables


def _tables_for(replication: Replication, select: Sequence[str]) -> Sequence[SourceTable]:
    """The tables among which the streams are found: all, unless each name in the file and in `select` is in full.

    Tables that masks name are among them: such a mask is of that table, and not of others.
    """
    if replication.names.patterns:
        return tables_of(replication)
    every = (replication.defaults, *replication.streams.values())
    masked = {
        label
        for options in every
        for name in options.columns or ()
        if not is_pattern(name)
        for label in _prefixes(name)
    }
    named = {*replication.named(), *(name for name in select if not is_pattern(name))}
    tables = tables_of(replication, named | masked)
    labels = Labels(table.label for table in tables)
    if all(labels.some(name) for name in (*named, *select)):
        return tables
    return tables_of(replication)


def _prefixes(name: str) -> list[str]:
    """`a` and `a.b` of `a.b.c`."""
    return [name[:index] for index, mark in enumerate(name) if mark == "."]


def _probe(end: Place, connector: Connector, half: str) -> Any:
    """The connector's reader or writer of no table, for a look at the source or the target.

    Raises:
        JobFileError: an option of the source or the target is unknown or wrong.
    """
    options = resolve_references(batch_options(end))
    accepted = connector.options_class(half).names()
    name = "source" if half == "reader" else "target"
    if misplaced := options.keys() & StreamOptions.model_fields.keys() - accepted.keys():
        raise JobFileError(
            f"{name}: {min(misplaced)!r} is not an option of connector {connector.name!r}: "
            "write it into defaults or a stream"
        )
    if "dbtable" in accepted:
        options["dbtable"] = "no.table"  # Iceberg's have a namespace
    try:
        pair = (
            connector.reader_with(options) if half == "reader" else connector.writer_with(options)
        )
    except OptionError as error:
        raise JobFileError(f"{name}: {error}") from error
    return pair[0]


class _Target:
    """How the target names its tables."""

    def __init__(self, replication: Replication) -> None:
        self._end = replication.target
        self._connector = connector_of(replication.target, "writer")
        names = self._connector.options_class("writer").names()
        self._by_table = "dbtable" in names
        writer = _probe(replication.target, self._connector, "writer")
        self._dialect = getattr(writer, "dialect", None)

    @property
    def folds_names(self) -> bool:
        """Whether names that differ in case only may be one: of folders it is not known."""
        return bool(getattr(self._dialect, "folds_names", True))

    def named(self, template: str, table: SourceTable) -> tuple[str, dict[str, Any]]:
        """The object for people, and the writer's options that name it."""
        if not table.schema:
            template = re.sub(r"\{schema\}[_./]?", "", template)
        separator = "." if self._by_table else "/"
        parts = [
            part.format(schema=table.schema, table=table.name) for part in template.split(separator)
        ]
        options = {"writer": self._connector.name, **self._end.options()}
        if self._by_table:
            quoted = parts if self._dialect is None else map(self._dialect.quoted, parts)
            return ".".join(parts), {**options, "dbtable": ".".join(quoted)}
        folders = [_folder(part) for part in parts]
        base = str(options.get("path") or options.get("url")).rstrip("/")
        key = "path" if options.get("path") else "url"
        return "/".join(folders), {**options, key: "/".join((base, *folders))}


def _folder(name: str) -> str:
    """A name that is one folder everywhere, and no hidden one: other bytes are written as ~2F."""
    safe = _UNSAFE.sub(lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
    return f"~{ord(safe[0]):02X}{safe[1:]}" if safe[:1] in (".", "_", " ") else safe


def _copy(
    replication: Replication,
    table: SourceTable,
    options: StreamOptions,
    source: Connector,
    digest: str,
    target: _Target,
) -> TableCopy:
    object_name, writer = target.named(options.object or _DEFAULT_OBJECT, table)
    reader: dict[str, Any] = {
        "reader": source.name,
        **batch_options(replication.source),
        "dbtable": table.dbtable,
        **(options.source_options or {}),
    }
    if options.where is not None:
        reader["where"] = options.where
    if options.columns and "hidevalues" in source.options_class("reader").names():
        reader["hideValues"] = "true"
    if (level := options.table_schema or _default_schema(options, writer["writer"])) is not None:
        writer["createTable"] = level
    writer |= options.target_options or {}
    return TableCopy(
        table.label,
        table,
        options,
        object_name,
        reader,
        writer,
        _fault(replication, options),
        digest,
        replication.file,
        leaves_builds=bool(replication.limit.builds)
        and options.table_schema in ("keys", "full")
        and options.mode != "full_then_changes",
    )


def name_of(end: Place) -> str:
    """The url or path, without the login and all else that may change while the place stays the same."""
    options = resolve_references(end.options())
    address = str(
        options.get("url") or options.get("path") or options.get("catalog") or options.get("writer")
    )
    url, _, query = re.sub(r"//[^/@?#]*@", "//", address).partition("?")
    pairs = [pair for pair in query.split("&") if pair.partition("=")[0].lower() in _OF_PLACE]
    return "?".join((url, "&".join(pairs))) if pairs else url


def _without_others(options: StreamOptions, label: str, labels: Set[str]) -> StreamOptions:
    """Without masks that name a column of another table in full. The other masks are patterns, or this table's."""
    if not options.columns:
        return options
    masks = {
        name: mask
        for name, mask in options.columns.items()
        if is_pattern(name)
        or name.casefold().startswith(f"{label}.")
        or labels.isdisjoint(_prefixes(name.casefold()))
    }
    return options.model_copy(update={"columns": masks})


def ends_fault(replication: Replication, options: StreamOptions) -> tuple[str, str]:
    """The key of a stream that its source or its target cannot do, and why; ("", "") = they can."""
    follows, deletes = options.mode == "full_then_changes", options.deletes or "hard"
    if deletes != "hard" and not follows:
        return "deletes", f"{deletes} needs mode full_then_changes: other modes do not see a delete"
    if not follows:
        return "", ""
    target = connector_of(replication.target, "writer").name
    if target not in (*_APPLIES, *_REPLACES):
        return "mode", (
            f"full_then_changes updates and deletes rows of the target, and {target} cannot: write to "
            f"{', '.join((*_APPLIES, _REPLACES[0]))} or {_REPLACES[1]}, or use mode full or incremental"
        )
    if deletes != "hard" and target in _REPLACES:
        return "deletes", (
            f"{deletes} changes parts of rows, and {target} replaces whole ones: write deletes hard, or write to "
            f"{', '.join(_APPLIES[:-1])} or {_APPLIES[-1]}"
        )
    source = connector_of(replication.source, "reader").name
    if source not in _LOGS:
        return "mode", (
            f"full_then_changes follows the source's log, and {source} has none; it takes a source of "
            f"{' or '.join(_LOGS)}: use mode incremental or full"
        )
    return "", ""


def _fault(replication: Replication, options: StreamOptions) -> str:
    """Why tables with these options cannot run; "" = they can."""
    if options.mode == "incremental" and options.update_key is None:
        return (
            "mode incremental needs update_key: the column that grows with each new or changed row"
        )
    if options.mode == "full_then_changes":
        if options.where is not None:
            return (
                "mode full_then_changes follows a whole table, and where would not hold for its changes: remove "
                "where, or use another mode"
            )
        if options.source_options:
            return (
                f"mode full_then_changes reads all its tables by one tunnel, with the options of source: write "
                f"{', '.join(options.source_options)} there, and not into source_options"
            )
    key, fault = ends_fault(replication, options)
    return f"{key} {fault}" if key else _schema_fault(replication, options)


def _schema_fault(replication: Replication, options: StreamOptions) -> str:
    """Why the table cannot have as much of its source's definition as `schema` says; "" = it can."""
    level = options.table_schema
    if level in (None, "columns"):
        return ""
    target = connector_of(replication.target, "writer")
    if replication.limit.builds and target.name == "mysql":
        return (
            f"schema {level} makes a table of {target.name} with all of its indexes, before its rows, and limit.builds "
            "would leave them to later: remove one of them"
        )
    if target.name in _REPLACES and options.mode == "full_then_changes":
        return (
            f"schema {level} makes no followed table of {target.name}: remove it, or use mode full"
        )
    if target.name not in (*DEFINING, *_NOTES):
        makes = ", ".join((*DEFINING, *_NOTES))
        return f"schema {level} makes tables of {makes}, and the target is {target.name}: remove it"
    if options.columns or options.load_columns:
        return (
            f"schema {level} makes a table as its source is, and columns (masks) and load_columns change its rows: "
            "remove schema, or these"
        )
    if options.mode == "incremental" and not options.primary_key:
        return (
            f"schema {level} makes the source's primary key, and without primary_key mode incremental adds a changed "
            "row beside the row that it was: set primary_key"
        )
    if options.mode == "full_then_changes" and level == "full":
        return (
            "schema full does not go with mode full_then_changes: many changes are applied as one, in an order in "
            "which unique indexes and foreign keys may refuse rows that the source took. Set schema to keys"
        )
    if options.mode == "full_then_changes" and options.deletes == "scd2":
        return f"schema {level} makes the source's key, and deletes scd2 keeps several rows of one: remove schema"
    return ""


def _default_schema(options: StreamOptions, writer: str) -> str | None:
    """What a new table gets if the file does not say it: keys, unless it is to have several rows of one."""
    adds_versions = options.mode == "incremental" and not options.primary_key
    keeps_versions = options.deletes == "scd2"
    return None if writer not in DEFINING or adds_versions or keeps_versions else "auto"


def _missing(
    replication: Replication, select: Sequence[str], tables: Sequence[SourceTable]
) -> list[TableCopy]:
    """The streams that name one table which is not there."""
    labels, chosen = [table.label for table in tables], Names(select)
    existing = {label.lower() for label in labels}
    names = [name for name in replication.named() if name.lower() not in existing]
    copies = []
    for index, name in enumerate(name for name in names if not select or name in chosen):
        near = difflib.get_close_matches(name, labels, n=1) if index < _MOST_HINTS else []
        hint = f"; did you mean {near[0]!r}?" if near else ", or the role may not see it"
        empty: dict[str, Any] = {}
        options = over(replication.defaults, replication.streams[name])
        copies.append(TableCopy(name, None, options, "", empty, empty, _MISSING + hint))
    return copies


def _apart(copies: list[TableCopy], *, folds: bool) -> list[TableCopy]:
    """Two tables that would go to one object do not run: the later one would replace the other's rows.

    `folds`: names that differ in case only may be one.
    """
    fold = str.casefold if folds else str
    by_object: dict[str, list[TableCopy]] = {}
    for copy in copies:
        if copy.table is not None:
            by_object.setdefault(fold(copy.object), []).append(copy)
    checked = []
    for copy in copies:
        others = by_object.get(fold(copy.object), [])
        if copy.table is None or len(others) < 2:
            checked.append(copy)
            continue
        names = ", ".join(other.stream for other in others)
        fault = f"{names} would go to one object, {copy.object!r}: give them different 'object's"
        checked.append(replace(copy, fault=fault))
    return checked


def _names_schema(replication: Replication, table: SourceTable) -> bool:
    """Whether a stream that matches the table says where it is: `*` alone is all of the url's database."""
    names, label = replication.names, [table.label]
    return any("." in name for name in (*names.patterns_of(label), *names.same_as(label)))


def _without_targets(
    replication: Replication, copies: list[TableCopy], source: Connector, target: Connector
) -> tuple[list[TableCopy], list[str]]:
    """The copies without tables that others are copied into, and notes about these.

    A pattern finds them where both ends are on one server. One that is named, or copied into itself, does not run: it
    would be replaced, or copied endlessly. Names alone do not say so: the servers are asked, and only where a name is
    the same.
    """
    goes: dict[str, list[TableCopy]] = {}
    for copy in copies:
        goes.setdefault(copy.object.rpartition(".")[2].casefold(), []).append(copy)
    into: dict[str, TableCopy] = {}
    apart: dict[tuple[str, str], bool] = {}

    def is_into(copy: TableCopy, read: TableCopy) -> bool:
        assert read.table is not None
        places = _place_of(read.reader, read.table.schema), _place_of(copy.writer)
        if places not in apart:
            apart[places] = _are_apart(copy, read, source, target)
        return not apart[places] and _is_into(copy, read, source, target)

    for copy in copies if source.name == target.name else ():
        assert copy.table is not None
        others = goes.get(copy.table.name.rpartition(".")[2].casefold(), [])
        others = sorted(others, key=lambda other: other is copy)
        overwriting = next((other for other in others if is_into(other, copy)), None)
        if overwriting is not None:
            into[copy.stream] = overwriting
    remaining, notes = [], []
    named = {name.casefold() for name in replication.named()}
    for copy in copies:
        other = into.get(copy.stream)
        if other is None:
            remaining.append(copy)
        elif other is copy:
            fault = f"the target {copy.object!r} is the source's table itself: choose another 'object' or target"
            remaining.append(replace(copy, fault=copy.fault or fault))
        elif copy.stream.casefold() in named or into.get(other.stream) is copy:
            fault = f"{other.stream} goes into this table, {other.object!r}: disable it, so that no copy is copied"
            remaining.append(replace(copy, fault=copy.fault or fault))
        else:
            notes.append(f"{copy.stream} is not copied: {other.stream} goes into it")
    return remaining, notes


def _place_of(options: Mapping[str, Any], schema: str | None = None) -> str:
    """Equal for tables that are in one schema of one database, by the options of an end."""
    name = str(options.get("dbtable", ""))
    schema = name.rpartition(".")[0] if schema is None else schema
    return repr((sorted({**options, "dbtable": ""}.items()), schema))


def _are_apart(copy: TableCopy, read: TableCopy, source: Connector, target: Connector) -> bool:
    """Whether no table that is where `copy` writes is one of those where `read` reads."""
    try:
        reader, _ = source.reader_with(resolve_references(read.reader))
        writer, _ = target.writer_with(resolve_references(copy.writer))
        if not (isinstance(reader, SqlReader) and isinstance(writer, SqlWriter)):
            return False
        assert read.table is not None
        return overlap(reader.stored_in(read.table.schema), writer.stored_in()) is Overlap.NONE
    except ChannelError:
        return False  # the table's copy fails with the same error


def _is_into(copy: TableCopy, read: TableCopy, source: Connector, target: Connector) -> bool:
    """Whether `copy` writes the table that `read` reads."""
    try:
        writer, _ = target.writer_with(resolve_references(copy.writer))
        stored = writer.stored() if writer.exists() else None
        if stored is None:
            return False
        reader, _ = source.reader_with(resolve_references(read.reader))
        return (
            most_overlap([storage for storage in (reader.stored(),) if storage], stored)
            is Overlap.SURE
        )
    except ChannelError:
        return False  # the table's copy fails with the same error


def _notes(
    replication: Replication,
    select: Sequence[str],
    tables: Sequence[SourceTable],
    copied: Sequence[str],
) -> list[str]:
    labels = [table.label for table in tables]
    existing, names = Labels(labels), Labels(copied)
    unused = [
        f"streams.{pattern!r} matches no table of the source"
        for pattern in replication.names.patterns
        if not existing.some(pattern)
    ]
    for pattern in select:
        if not existing.some(pattern):
            near = difflib.get_close_matches(pattern, labels, n=1)
            near = near or [label for label in labels if label.rpartition(".")[2] == pattern][:1]
            hint = f"; did you mean {near[0]!r}?" if near else ""
            unused.append(f"--select {pattern} matches no table of the source{hint}")
        elif not names.some(pattern):
            unused.append(f"--select {pattern} matches tables that no stream copies")
    return unused
