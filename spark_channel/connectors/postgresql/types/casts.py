"""How a column is selected so that the driver's Arrow has its values without loss."""

from spark_channel.connectors.postgresql.failures import CANNOT_CARRY
from spark_channel.connectors.postgresql.session import literal_sql
from spark_channel.connectors.postgresql.types.arrow import ReadType
from spark_channel.connectors.postgresql.types.texts import text_sql

__all__ = ["selected"]


def selected(text: str, name: str, typname: str, read: ReadType) -> str:
    """The expression that reads `text`, column `name`; an array of another shape fails with its value."""
    if not read.is_array:
        if read.cast != "text":
            return text if read.cast is None else f"CAST({text} AS {read.cast})"
        if not typname.startswith("_"):
            return text_sql(text, typname)
        return f"CAST({f'CAST({text} AS numeric[])' if typname == '_money' else text} AS text)"
    array = "bpchar[]" if typname == "_bpchar" else read.cast or f"{typname[1:]}[]"
    read_as = text if read.cast is None else text_sql(text, typname)
    message = literal_sql(f"{CANNOT_CARRY} column {name!r} holds the array ")
    return (
        f"CASE WHEN array_ndims({text}) > 1 OR array_lower({text}, 1) <> 1 "
        f"THEN CAST({message} || CAST({text} AS TEXT) AS {array}) ELSE {read_as} END"
    )
