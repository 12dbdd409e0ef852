"""The step that makes values fit the target's columns, for transfers that ask for it."""

from dataclasses import replace
from typing import Any

from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.errors import ChannelError
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.pipeline import TransferSource
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.transform import prepare

__all__ = ["reader_of", "with_conversion"]


def with_conversion(
    sources: tuple[TransferSource, ...], writer: Writer, spec: TransferSpec
) -> tuple[TransferSource, ...]:
    """The sources, each with a last step that converts what differs from the target's columns.

    A column whose type already is the target's costs nothing; one that cannot become it is left to the writer, which
    says why. A target that is not there yet is made after the rows.
    """
    end = spec.writer.resolve(lambda urls: urls[0])[0]
    reader = reader_of(writer, end, as_datax=True)
    try:
        columns = None if reader is None else reader.schema()
    except ChannelError:  # the writer tells of a table that is not there
        return sources
    if columns is None:
        return sources
    from spark_channel.transform.convert import Convert, can_convert

    types = {field.name.lower(): field.type for field in columns}
    made = []
    for source in sources:
        arriving = source.pipeline.output_schema
        fields = tuple(
            (field.name, kind)
            for field in arriving
            if (kind := types.get(field.name.lower())) is not None
            and kind != field.type
            and can_convert(field.type, kind)
        )
        if fields:
            steps = (*spec.transformers, Convert(fields, spec.time_patterns))
            source = replace(source, pipeline=prepare(steps, source.pipeline.schema))
        made.append(source)
    return tuple(made)


def reader_of(writer: Writer, end: Endpoint, *, as_datax: bool = False) -> Reader | None:
    """The same connector's reader of what `writer` writes; None = it has none, or keeps nothing."""
    name = {"writer": end.name} if end.name else {}
    connector = find_connector({**name, **end.options}, "writer")
    if connector.reader is None or not connector.keeps:
        return None
    # Where the target is, is said by what both halves take, such as a login and `currentSchema`.
    taken = set(connector.options_class("reader").names()) - set(CommonOptions.names())
    options: WriteOptions = writer.options
    given: dict[str, Any] = {
        field.alias or field_name: getattr(options, field_name)
        for field_name, field in type(options).model_fields.items()
        if field_name in options.model_fields_set and (field.alias or field_name).lower() in taken
    }
    if as_datax:
        given = {**connector.as_datax.reader, **given}
    reader, _ = connector.reader_with(given)
    return reader
