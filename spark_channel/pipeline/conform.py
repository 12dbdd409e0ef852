"""Casts batches to the declared schema without loss, or refuses them."""

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = ["conform"]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly `schema`: columns picked by name, types cast without loss.

    Costs nothing for a batch that has it already.

    Raises:
        SchemaError: a column that is not there, a value that the column's type cannot hold, or a null where
            the schema promises none; names the column.
    """
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        missing = [name for name in schema.names if batch.schema.names.count(name) != 1]
        if missing:
            raise SchemaError(
                f"a batch has columns {', '.join(batch.schema.names)}; "
                f"promised were {', '.join(schema.names)}"
            )
        batch = batch.select(schema.names)
    columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if not field.nullable and column.null_count:
        raise SchemaError(f"column {field.name!r} holds a null, and its schema promises none")
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit {field.type}: {error}"
        ) from error
