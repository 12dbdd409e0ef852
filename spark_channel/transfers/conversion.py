"""The step that converts values to the types of the target's columns, for `convert=lenient`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.errors import ChannelError, OptionError
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, TransferSpec

if TYPE_CHECKING:
    from spark_channel.pipeline import TransferSource
    from spark_channel.transform import Pipeline
    from spark_channel.transform.convert import Convert

__all__ = [
    "by_shown_floats",
    "by_wall_clock",
    "conversion_to",
    "is_lenient",
    "reader_of",
    "refuse_lenient",
    "target_types",
    "with_conversion",
]

_log = log_of(__name__)


def is_lenient(writer: Writer) -> bool:
    """Whether the writer's values are converted to the target's column types."""
    return bool(getattr(writer.options, "convert", "strict") == "lenient")


def refuse_lenient(options: WriteOptions) -> None:
    """For a stream, whose rows are written as they are.

    Raises:
        OptionError: `convert=lenient`.
    """
    if getattr(options, "convert", "strict") == "lenient":
        raise OptionError(
            "option 'convert' got 'lenient'; a stream takes strict: "
            "cast its columns, or write each batch with foreachBatch",
            option="convert",
            got="lenient",
            takes="strict",
        )


def conversion_to(writer: Writer, connector: str, arriving: pa.Schema) -> "Pipeline | None":
    """Return the steps that convert rows of `arriving` to the target's types; None = no column needs it."""
    if not is_lenient(writer):
        return None
    from spark_channel.transform import prepare

    step = conversion(arriving, types_of(writer, Endpoint(connector, {})))
    return None if step is None else prepare((step,), arriving)


def target_types(writer: Writer, spec: TransferSpec) -> Mapping[str, pa.DataType]:
    """Return the types of the target's columns by lower-case name; {} when it does not exist or has no types."""
    return types_of(writer, spec.writer.resolve(lambda urls: urls[0])[0])


def types_of(writer: Writer, end: Endpoint) -> Mapping[str, pa.DataType]:
    """As `target_types`, for one endpoint."""
    reader = reader_of(writer, end, as_datax=True)
    try:
        kinds = {} if reader is None else reader.column_types()
    except ChannelError:  # the writer reports a missing table
        return {}
    return {name.lower(): kind for name, kind in kinds.items()}


def by_wall_clock(
    ends: Sequence[Endpoint],
    sources: "Sequence[TransferSource]",
    types: Mapping[str, pa.DataType],
    *,
    warn: bool = True,
) -> list[Endpoint] | None:
    """The reading ends with instants as their sessions show them; None = as they are.

    An instant and a local time become each other through the zones of the two sessions, as through a JDBC driver:
    MySQL's TIMESTAMP and DATETIME, PostgreSQL's timestamptz and timestamp. All times of the rows are then read so.
    """
    arriving = [field for source in sources for field in source.pipeline.output_schema]
    pairs = [
        (field.name, _is_instant(field.type), _is_instant(kind), pa.types.is_timestamp(field.type))
        for field in arriving
        if (kind := types.get(field.name.lower())) is not None
    ]
    leaving = {name for name, has_zone, takes_zone, _ in pairs if has_zone and not takes_zone}
    mixed = leaving | {
        name for name, has_zone, takes_zone, is_time in pairs if is_time and has_zone != takes_zone
    }
    if mixed and warn:
        _log.warning(
            "column %s: an instant in the source or the target, and a local time in the other; times are copied as "
            "the sessions of both show them, as in DataX",
            ", ".join(sorted(mixed)),
        )
    if not mixed or not any(has_zone for _, has_zone, _, _ in pairs):
        return None
    return [_with(end, "timestampsAs") for end in ends]


def by_shown_floats(
    ends: Sequence[Endpoint],
    sources: "Sequence[TransferSource]",
    types: Mapping[str, pa.DataType],
) -> list[Endpoint] | None:
    """The reading ends with floats as their servers show them, where all become texts; None = as they are."""
    targets = {
        types.get(field.name.lower())
        for source in sources
        for field in source.pipeline.output_schema
        if pa.types.is_floating(field.type)
    }
    if targets != {pa.string()}:
        return None
    return [_with(end, "floatsAs") for end in ends]


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _with(end: Endpoint, name: str) -> Endpoint:
    """The end with that option of its connector for texts, where it has it."""
    texts = {} if end.spark_format else _for_texts(end)
    chosen = {key: value for key, value in texts.items() if key == name}
    return replace(end, options={**end.options, **chosen})


def _for_texts(end: Endpoint) -> Mapping[str, str]:
    named = {"reader": end.name} if end.name else {}
    return find_connector({**named, **end.options}, "reader").as_datax.texts


def with_conversion(
    sources: "tuple[TransferSource, ...]", types: Mapping[str, pa.DataType], spec: TransferSpec
) -> "tuple[TransferSource, ...]":
    """The sources, each with a last step that converts what differs from the target's columns.

    A column whose type already is the target's costs nothing; one that cannot become it is left to the writer, which
    says why. A target that does not exist yet is made after the rows.
    """
    from spark_channel.transform import prepare

    converted = []
    for source in sources:
        step = conversion(source.pipeline.output_schema, types, spec.time_patterns, spec.time_texts)
        if step is not None:
            source = replace(
                source, pipeline=prepare((*spec.transformers, step), source.pipeline.schema)
            )
        converted.append(source)
    return tuple(converted)


def conversion(
    arriving: pa.Schema,
    types: Mapping[str, pa.DataType],
    patterns: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
) -> "Convert | None":
    """The step that makes the values of `arriving` those of `types`; None = there is nothing to convert."""
    from spark_channel.transform.convert import Convert, can_convert, local_zone
    from spark_channel.transform.exact_numbers import carried_type

    carried = {field.name: carried_type(field) for field in arriving}
    fields = tuple(
        (field.name, kind)
        for field in arriving
        if (kind := _wanted(carried[field.name], types.get(field.name.lower()))) is not None
        and kind != field.type
        and can_convert(carried[field.name], kind)
    )
    # A table that `startSql` makes has no types yet: numbers arrive in 64 bits there.
    fields += tuple(
        (field.name, carried[field.name])
        for field in arriving
        if carried[field.name] != field.type and field.name.lower() not in types
    )
    if not fields:
        return None
    numbers = any(
        pa.types.is_temporal(kind) and pa.types.is_integer(carried[name]) for name, kind in fields
    )
    zone = local_zone() if numbers else "UTC"
    return Convert(fields, patterns, zone, texts) if texts else Convert(fields, patterns, zone)


def _wanted(source: pa.DataType, kind: pa.DataType | None) -> pa.DataType | None:
    """An instant of the target is written as a local time of its session, where none is given.

    A whole number gives one: milliseconds since 1970.
    """
    if kind is None or not _is_instant(kind) or _is_instant(source) or pa.types.is_integer(source):
        return kind
    return pa.timestamp(kind.unit)


def reader_of(writer: Writer, end: Endpoint, *, as_datax: bool = False) -> Reader | None:
    """The same connector's reader of what `writer` writes; None = it has none, or keeps nothing."""
    name = {"writer": end.name} if end.name else {}
    connector = find_connector({**name, **end.options}, "writer")
    if connector.reader is None or not connector.keeps:
        return None
    # Where the target is, is said by what both halves take, such as a login and `currentSchema`.
    names = set(connector.options_class("reader").names()) - set(CommonOptions.names())
    options: WriteOptions = writer.options
    options_given: dict[str, Any] = {
        field.alias or field_name: getattr(options, field_name)
        for field_name, field in type(options).model_fields.items()
        if field_name in options.model_fields_set and (field.alias or field_name).lower() in names
    }
    if as_datax:
        options_given = {**connector.as_datax.reader, **options_given}
    reader, _ = connector.reader_with(options_given)
    return reader
