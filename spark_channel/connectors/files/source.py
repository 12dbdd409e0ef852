"""The files of a read, their columns, and the columns that the read returns."""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.arrow_schema import check_columns, find_column, match_names
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import locate, open_planned
from spark_channel.connectors.files.formats.base import Format
from spark_channel.connectors.files.formats.text import TextFormat
from spark_channel.connectors.files.formats.text_decode import merge_inferred, plain_inferred
from spark_channel.connectors.files.listing import (
    SourceFile,
    list_files,
    merge_of,
    origins,
    unmerged,
)
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import FileReadOptions
from spark_channel.connectors.files.partition_columns import partition_fields, partition_value
from spark_channel.connectors.files.versions import show_file, with_tag
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import SchemaError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.plain_text import log_of

__all__ = [
    "SourcePlan",
    "find_files",
    "has_chosen",
    "is_chosen",
    "listed_files",
    "plan_columns",
    "plan_source",
]


_log = log_of(__name__)
_SAMPLED_FILES = 10
_MOST_FOOTERS = 1_000
"""Of files that no log describes; each costs a request where they are in an object store."""
_FOOTERS_AT_ONCE = 8
_FILTERS = "options 'pathGlobFilter', 'modifiedBefore' and 'modifiedAfter'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SourcePlan:
    """Plain data, made on the driver and pickled with the reader.

    `files`: the columns that files hold, typed as they are read, in their order. `partitions`: those of the
    folders. `result`: what is given. `dialect`: what a sample shows of text files that no log describes.
    `strict`: other columns in a text file are an error. `inferred`: the types are those of a sample.
    `found`: the same columns as `files`, with the types that were found in files; None = the user or the
    table's log named the types.
    """

    files: pa.Schema
    partitions: pa.Schema
    result: pa.Schema
    condition: Condition | None
    dialect: Dialect
    strict: bool
    inferred: bool
    found: pa.Schema | None

    def as_written(self, options: FileReadOptions, logged: Dialect | None) -> FileReadOptions:
        """The options, and where the user said nothing, what the log says of a file, or else the sample."""
        unsaid = {
            name: value
            for name, value in (self.dialect if logged is None else logged).items()
            if name not in options.model_fields_set and hasattr(options, name)
        }
        return options.model_copy(update=unsaid)

    def columns_of(self, names: Sequence[str] | None) -> pa.Schema:
        """The columns of a CSV file that was written with `names`, in its order; None = it has those of the source."""
        if names is None:
            return self.files
        matched = match_names(self.files.names, names)
        if not matched and len(names) == len(self.files):
            return self.files  # by their order
        fields = {spelled: self.files.field(name) for name, spelled in matched.items()}
        return pa.schema([fields.get(name, pa.field(name, pa.string())) for name in names])

    def folder_values(self, partition: Sequence[tuple[str, str | None]]) -> dict[str, pa.Scalar]:
        """What a file's folders say of the columns `partitions`."""
        texts = dict(partition)
        names = match_names(self.partitions.names, texts)
        return {
            name: partition_value(name, texts[spelled], self.partitions.field(name).type)
            for name, spelled in names.items()
        }

    def needed(self) -> pa.Schema:
        """The columns of `files` that result and condition take: at least one, to count rows by."""
        names = set(self.result.names) | (self.condition.columns if self.condition else set())
        fields = [field for field in self.files if field.name in names]
        return pa.schema(fields or list(self.files)[:1])


def is_chosen(options: FileReadOptions, file: SourceFile) -> bool:
    """Whether options `pathGlobFilter`, `modifiedBefore` and `modifiedAfter` choose a file."""
    return _is_chosen(
        options,
        posixpath.basename(file.path),
        lambda: _EPOCH + timedelta(microseconds=file.mtime_ns // 1_000),
    )


def has_chosen(options: FileReadOptions) -> bool:
    """Whether `is_chosen` may be false."""
    filters = options.path_glob_filter, options.modified_before, options.modified_after
    return any(chosen is not None for chosen in filters)


def _is_chosen(options: FileReadOptions, name: str, changed: Callable[[], datetime | None]) -> bool:
    pattern, before, after = (
        options.path_glob_filter,
        options.modified_before,
        options.modified_after,
    )
    if pattern is not None and not fnmatchcase(name, pattern):
        return False
    if before is None and after is None:
        return True  # a time is made for each file that is asked for it
    modified = changed()
    return modified is not None and (
        (before is None or modified < before) and (after is None or modified > after)
    )


def find_files(options: FileReadOptions) -> list[SourceFile]:
    """Every file of the source, in a fixed order. See `list_files` for errors.

    Options that choose files choose them as they were before merges.

    Raises:
        SourceError: also, they choose some of those that a file was merged from, and these are not kept any more.
    """
    if not has_chosen(options):
        return listed_files(options)
    files: list[SourceFile] = []
    for file in listed_files(options):
        is_of = (
            [is_chosen(options, origin) for origin in origins(file)] if merge_of(file) else [True]
        )
        files += [file] if all(is_of) else _chosen_parts(options, file) if any(is_of) else []
    return files


def _chosen_parts(options: FileReadOptions, file: SourceFile) -> Iterator[SourceFile]:
    for part in unmerged([file]):
        is_of = [is_chosen(options, origin) for origin in origins(part)]
        if any(is_of) and not all(is_of):
            raise SourceError(
                f"{show_file(file.root, file.path)} was merged from {len(is_of)} files, of which {_FILTERS} choose "
                f"{sum(is_of)}, and these are kept no longer (option retention). Omit these options, and "
                "filter rows by a column"
            )
        if all(is_of):
            yield part


def listed_files(options: FileReadOptions) -> list[SourceFile]:
    """As `find_files`, with every merged file."""

    def keep(info: pafs.FileInfo) -> bool:
        return _is_chosen(options, info.base_name, lambda: info.mtime)

    by_path: dict[tuple[str, str], SourceFile] = {}
    base = locate(options.base_path, "basePath", options.login).path if options.base_path else None
    for path in options.all_paths():
        location = locate(path, "path" if options.path else "paths", options.login)
        for file in list_files(
            location,
            base=base,
            partitions=not options.recursive_file_lookup,
            manifests=options.use_manifest and not is_remote(location.root),
            keep=keep,
            hidden=options.hidden_files,
        ):
            by_path.setdefault((file.root, file.path), file)
    return list(by_path.values())


def plan_source(
    form: Format,
    options: FileReadOptions,
    files: Sequence[SourceFile],
    schema: pa.Schema | None,
    *,
    own: bool = False,
) -> tuple[SourcePlan, list[SourceFile]]:
    """Find out the columns. Reads footers, or a sample of text. `own`: `schema` is what an earlier call found.

    Returns the files, too, of which those that were looked into have a tag.

    Raises:
        SourceError: unreadable, or nothing to infer the columns from. SchemaError, OptionError: see `where`.
    """
    if not files and schema is None and not _if_empty(options):
        paths = ", ".join(options.all_paths())
        raise SourceError(
            f"{paths} holds no data files, so its columns are unknown; give a schema to read it as empty"
        )
    in_folders = pa.schema(partition_fields(files))
    files = list(files)
    in_files, dialect, certain = _columns_of(form, options, files, schema)
    # As for Spark, a folder says the value of a column that its files have, too.
    twice = set(match_names(in_folders.names, in_files.names).values())
    in_files = pa.schema([field for field in in_files if field.name not in twice])
    inferred = form.text and not certain and (schema is None or own)
    plan = plan_columns(
        form,
        options,
        in_files,
        in_folders,
        schema,
        dialect=dialect,
        inferred=inferred,
        declared=schema is not None and not own,
    )
    return plan, files


def plan_columns(
    form: Format,
    options: ReadOptions,
    in_files: pa.Schema,
    in_folders: pa.Schema,
    schema: pa.Schema | None,
    *,
    dialect: Dialect | None = None,
    inferred: bool = False,
    declared: bool = True,
) -> SourcePlan:
    """The plan of a read whose columns are known. `declared`: a person or a table's log named their types.

    Raises:
        SchemaError, OptionError: see `where`.
    """
    file_columns = in_files
    if schema is not None:
        by_line = form.name == "json" and declared
        in_files, in_folders = _as_given(form, in_files, in_folders, schema, by_line=by_line)
    everything = pa.schema([*in_files, *in_folders])
    check_columns(everything)
    result = everything if schema is None else pa.schema(_by_name(everything, schema))
    if options.columns is not None:
        result = pa.schema([find_column(result, name, "columns") for name in options.columns])
    if form.text:
        _check_text(form, result)
    condition = None if options.where is None else _condition(options.where, everything)
    strict = form.text and inferred and options.columns is None
    return SourcePlan(
        in_files,
        in_folders,
        result,
        condition,
        dialect or {},
        strict,
        inferred,
        None if declared else _as_found(in_files, file_columns),
    )


def _if_empty(options: FileReadOptions) -> pa.Schema:
    """The columns of a source without a line, as far as the options say them."""
    count = max(getattr(options, name, 0) for name in ("columns_if_empty", "least_columns"))
    return pa.schema([(f"_c{number}", pa.string()) for number in range(count)])


def _as_found(columns: pa.Schema, in_files: pa.Schema) -> pa.Schema:
    names = match_names(columns.names, in_files.names)
    return pa.schema(
        [
            field.with_type(in_files.field(names[field.name]).type)
            if field.name in names
            else field
            for field in columns
        ]
    )


def _condition(where: str, columns: pa.Schema) -> Condition:
    # It brings sqlglot, which most reads do without.
    from spark_channel.connectors.files.where import parse_where

    return parse_where(where, columns)


def _columns_of(
    form: Format, options: FileReadOptions, files: list[SourceFile], schema: pa.Schema | None
) -> tuple[pa.Schema, Dialect, bool]:
    """(columns, dialect, whether a manifest says so). Files that are looked into get their tag in `files`."""
    if isinstance(form, TextFormat):
        return _text_columns(form, options, files, schema)
    merge = getattr(options, "merge_schema", False)
    numbers = range(len(files)) if merge else _with_other_columns(files)
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        schemas = list(pool.map(lambda number: _schema_of(form, options, files, number), numbers))
    schemas = _spelled_alike(schemas)
    if not schemas:
        return pa.schema([]), {}, False
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive") if merge else None
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"the files' columns cannot be merged: {error}") from error
    united = _united(schemas)
    # What pyarrow unifies stays NOT NULL where a file lacks the column.
    fields = (
        united
        if unified is None
        else [field.with_type(unified.field(field.name).type) for field in united]
    )
    return pa.schema([_decoded(field) for field in fields]), {}, False


def _with_other_columns(files: Sequence[SourceFile]) -> list[int]:
    """Files that have all columns of the source between them, in the order in which they came.

    The log says which of its files have equal columns. Other files are each looked into, if they are not too many.
    """
    logged, others = _by_log(files)
    others.sort(key=lambda number: (files[number].mtime_ns, files[number].path))
    if len(others) > _MOST_FOOTERS:
        _log.warning(
            "%d files were written by other programs: their columns are taken from the oldest; set option "
            "'mergeSchema' to true to look into each",
            len(others),
        )
        del others[1:]
    return [*logged, *others]


def _by_log(files: Sequence[SourceFile]) -> tuple[list[int], list[int]]:
    """(a file of each schema in the log, in the order of the appends; the files that no log describes)."""
    appends: dict[int, dict[str, tuple[int, int]]] = {}  # by log: the place of each key of a schema
    logged: dict[tuple[int, int], int] = {}
    others: list[int] = []
    for number, file in enumerate(files):
        if file.written is None or file.manifest is None or file.listed is None:
            others.append(number)
            continue
        if id(file.manifest) not in appends:
            keys = enumerate(file.manifest.schemas)
            appends[id(file.manifest)] = {key: (len(appends), position) for position, key in keys}
        logged.setdefault(appends[id(file.manifest)][str(file.listed.schema)], number)
    return [logged[key] for key in sorted(logged)], others


def _spelled_alike(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """The same schemas, in which names that differ in case alone are spelled as the first file that has one does.

    A file that has that spelling and another one has two columns.

    Raises:
        SchemaError: a file has two other spellings, or one that may be either of two columns.
    """

    def names_of(schema: pa.Schema, columns: Iterable[str]) -> list[str]:
        spelled = match_names(columns, schema.names, "a file of the source")
        columns_of = {name: column for column, name in spelled.items()}
        return [columns_of.get(name, name) for name in schema.names]

    columns: dict[str, None] = {}
    for schema in schemas:
        columns.update(dict.fromkeys(names_of(schema, columns)))
    # Once more, since a later file may have both spellings.
    return [
        pa.schema(
            [
                field.with_name(name)
                for field, name in zip(schema, names_of(schema, columns), strict=True)
            ]
        )
        for schema in schemas
    ]


def _united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all, each with the type that it has first. One that a file lacks is NULL in its rows."""
    fields: dict[str, pa.Field] = {}
    count: dict[str, int] = {}
    for schema in schemas:
        for field in schema:
            first = fields.get(field.name, field)
            fields[field.name] = first.with_nullable(first.nullable or field.nullable)
            count[field.name] = count.get(field.name, 0) + 1
    return pa.schema(
        [
            field if count[name] == len(schemas) else field.with_nullable(True)
            for name, field in fields.items()
        ]
    )


def _text_columns(
    form: TextFormat, options: FileReadOptions, files: list[SourceFile], schema: pa.Schema | None
) -> tuple[pa.Schema, Dialect, bool]:
    """The columns of the files that the log describes, by name, and of a sample of the others."""
    logged, others = _by_log(files)
    described = [
        (written[0], files[number].path)
        for number in logged
        if (written := files[number].written) is not None
    ]
    written = _merged(described, schema)
    if files and not others:
        return written, {}, True
    sampled, dialect = _sampled(form, options, files, others)
    # As for Spark, lines of JSON without a field have no columns; whether they are rows is for the read to decide.
    is_empty = form.name != "json" or not any(files[number].size for number in others)
    if not len(sampled) and not len(written) and schema is None and is_empty:
        if _if_empty(options):
            return _if_empty(options), dialect, False
        paths = ", ".join(options.all_paths())
        raise SourceError(
            f"{paths} is empty, so its columns are unknown; give a schema to read it as empty"
        )
    # The log says nothing of NULLs in the files of others.
    nullable = [field.with_nullable(True) for field in written]
    both = _spelled_alike([pa.schema(nullable), sampled])
    further = [field for field in both[1] if field.name not in both[0].names]
    return pa.schema([*both[0], *further]), dialect, False


def _merged(logged: Sequence[tuple[pa.Schema, str]], declared: pa.Schema | None) -> pa.Schema:
    """The columns of all appends to a directory. One that an append lacks is NULL in its rows.

    Raises:
        SchemaError: names a column whose types do not fit each other, and that `declared` does not type.
    """
    if len({schema.serialize().to_pybytes() for schema, _ in logged}) == 1:
        return logged[0][0]
    typed = set() if declared is None else {name.lower() for name in declared.names}
    fields: dict[str, tuple[pa.Field, str, int]] = {}
    schemas = _spelled_alike([schema for schema, _ in logged])
    for schema, (_, path) in zip(schemas, logged, strict=True):
        for field in schema:
            first, where, count = fields.get(field.name, (field, path, 0))
            kind = first.type if field.name.lower() in typed else _wider(first.type, field.type)
            if kind is None:
                raise SchemaError(
                    f"column {field.name!r} is {first.type} in {where} and {field.type} in {path}. Give a schema, or "
                    "read each file with its own"
                )
            nullable = first.nullable or field.nullable
            fields[field.name] = pa.field(first.name, kind, nullable), where, count + 1
    return pa.schema(
        [
            field.with_nullable(True) if count < len(logged) else field
            for field, _, count in fields.values()
        ]
    )


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that reads the values of both from their text unchanged; None = there is none."""
    types = pa.types
    if one == other:
        return one
    if types.is_signed_integer(one) and types.is_signed_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if all(types.is_string(kind) or types.is_large_string(kind) for kind in (one, other)):
        return pa.large_string()
    return None


def _schema_of(
    form: Format, options: FileReadOptions, files: list[SourceFile], number: int
) -> pa.Schema:
    file = files[number]
    with (
        reading(show_file(file.root, file.path)),
        open_planned(file.root, file.path, options.login) as stream,
    ):
        files[number] = with_tag(file, stream, options.login)
        return form.schema(stream, file.path, options, multi_line=False)


def _sampled(
    form: TextFormat, options: FileReadOptions, files: list[SourceFile], others: Sequence[int]
) -> tuple[pa.Schema, Dialect]:
    """The columns that samples of the first of the `others` agree on, and the dialect that they show."""
    kinds: dict[str, pa.DataType] = {}
    schemas: list[pa.Schema] = []
    dialect: Dialect = {}
    for number in others[:_SAMPLED_FILES]:
        file = files[number]
        with (
            reading(show_file(file.root, file.path)),
            open_planned(file.root, file.path, options.login) as stream,
        ):
            files[number] = with_tag(file, stream, options.login)
            sample, dialect_shown = form.sample(stream, file.path, options)
        check_columns(sample)
        dialect = {**dialect, **dialect_shown}
        schemas.append(sample)
    for sample in _spelled_alike(schemas):
        is_first = not kinds
        for field in sample:
            # CSV files of one source have one header: the read refuses a file with another one.
            if form.name != "csv" or is_first or field.name in kinds:
                kind = kinds.get(field.name, pa.null())
                kinds[field.name] = merge_inferred(kind, field.type)
    return pa.schema([(name, plain_inferred(kind)) for name, kind in kinds.items()]), dialect


def _decoded(field: pa.Field) -> pa.Field:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, kind, field.nullable, field.metadata)


def _as_given(
    form: Format, in_files: pa.Schema, in_folders: pa.Schema, schema: pa.Schema, *, by_line: bool
) -> tuple[pa.Schema, pa.Schema]:
    """Columns with the given names and types: found by name; those of CSV else by their order.

    `by_line`: each line of a file may spell them in its own way, whatever a sample shows.
    """
    folders = match_names(schema.names, in_folders.names)
    fields = [field for field in schema if field.name not in folders]
    if by_line:
        named = {field.name.lower() for field in fields}
        others = [field for field in in_files if field.name.lower() not in named]
        in_files = pa.schema([*fields, *others])
    names = match_names([field.name for field in fields], in_files.names, "the source")
    extra = [field for field in fields if field.name not in names]
    if extra and form.name == "csv":
        if len(in_files) and len(fields) != len(in_files):
            raise SourceError(
                f"the given schema has column {extra[0].name!r}, and the files have "
                f"{', '.join(in_files.names)}: name the files' columns, or give as many as they have"
            )
        in_files, names, extra = pa.schema(fields), {}, []

    def typed(columns: pa.Schema, names: Mapping[str, str]) -> list[pa.Field]:
        columns_of = {spelled: schema.field(name) for name, spelled in names.items()}
        columns_found = [columns_of.get(field.name, field) for field in columns]
        return [pa.field(field.name, field.type, field.nullable) for field in columns_found]

    # Other formats give NULL for a column that a file does not have.
    return pa.schema([*typed(in_files, names), *extra]), pa.schema(typed(in_folders, folders))


def _by_name(everything: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
    return [everything.field(field.name) for field in schema]


def _check_text(form: Format, schema: pa.Schema) -> None:
    for field in schema:
        kind = field.type
        nested = form.name == "csv" and pa.types.is_nested(kind)
        if nested or pa.types.is_duration(kind) or pa.types.is_interval(kind):
            raise SchemaError(
                f"column {field.name!r} of type {kind} cannot be read from {form.name}; read it as text"
            )
