"""Rights that a read needs and its login lacks, as the statements that grant them."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from spark_channel.connectors.sql.catalog.rights import MissingRights, Right, advice
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, SourceError
from spark_channel.final_errors import is_of_rights, of_input

__all__ = ["lacking_to_read", "naming_rights"]

_NO_DATABASE = re.compile(
    r"Access denied for user (?P<user>'.*?'@'.*?') to database '(?P<name>.*?)'"
)
"""MySQL and MariaDB end a session that may not use its database before it can ask for its rights."""
_NO_LOGIN = 1045
"""MySQL's: the login itself was refused, and would be a second time."""


class RightsReader(Protocol):
    """What is used here of the reader of a database."""

    @property
    def dialect(self) -> Dialect: ...

    def connect(self, purpose: str) -> AbstractContextManager[Session]: ...

    def asked_table(self) -> tuple[str, str] | None: ...


def lacking_to_read(
    reader: RightsReader, tables: Iterable[tuple[str, str]], *, whole: bool = False
) -> dict[tuple[str, str], str]:
    """The tables, by schema and name, that the login may not read, each with what to do; in one query.

    `whole`: a right on some columns of a table is not enough.

    Raises:
        SourceError: the database does not answer.
    """
    needed = {
        (schema, name): [Right(schema, "", "USAGE"), Right(schema, name, "SELECT", whole)]
        for schema, name in tables
    }
    if not needed or not reader.dialect.of_new_tables:
        return {}
    every = list(dict.fromkeys(right for rights in needed.values() for right in rights))
    with reader.connect("plan") as session:
        missing = reader.dialect.lacking(session, every)
    advices = {table: advice(missing, rights, "source") for table, rights in needed.items()}
    return {table: advice for table, advice in advices.items() if advice}


def naming_rights(reader: RightsReader, error: ChannelError) -> ChannelError:
    """The error; of a login that lacks a right, with the statement that grants it."""
    cause = error.__cause__ or error
    is_missing = is_of_rights(cause) and cause.args[:1] != (_NO_LOGIN,)
    if _NO_DATABASE.search(str(error)) is None and not is_missing:
        return error
    table = reader.asked_table()
    try:
        grants = _statement(reader, str(error), table) if table is not None else ""
    except ChannelError:  # it answers no more: the first error counts
        grants = ""
    if not grants:
        return error
    error_with_grants = of_input(SourceError(f"{error}; {grants}"))
    error_with_grants.__cause__ = error.__cause__
    return error_with_grants


def _statement(reader: RightsReader, text: str, table: tuple[str, str]) -> str:
    schema, name = table
    if refused := _NO_DATABASE.search(text):
        table_sql = f"`{schema or refused['name']}`.`{name}`"
        right = Right(schema, name, "SELECT")
        return advice(MissingRights(refused["user"], {right: table_sql}), [right], "source")
    return lacking_to_read(reader, [table], whole=True).get(table, "") if schema else ""
