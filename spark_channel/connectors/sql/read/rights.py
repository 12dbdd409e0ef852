"""Rights that a read needs and its login lacks, as the statements that grant them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_channel.connectors.sql.rights import Right, advice

if TYPE_CHECKING:
    from spark_channel.connectors.sql.read.reader import SqlReader

__all__ = ["lacking_to_read"]


def lacking_to_read(
    reader: "SqlReader", tables: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """The tables, by schema and name, that the login may not read, each with what to do; in one query.

    Raises:
        SourceError: the database does not answer.
    """
    asked = {
        (schema, name): [Right(schema, "", "USAGE"), Right(schema, name, "SELECT")]
        for schema, name in tables
    }
    if not asked or not reader.dialect.of_new_tables:
        return {}
    every = list(dict.fromkeys(right for rights in asked.values() for right in rights))
    with reader.connect("plan") as session:
        found = reader.dialect.lacking(session, every)
    said = {table: advice(found, rights, "source") for table, rights in asked.items()}
    return {table: advice for table, advice in said.items() if advice}
