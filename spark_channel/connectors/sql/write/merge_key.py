"""The key of a merge: `keyColumns`, or else the table's primary key."""

from collections.abc import Sequence

from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.statements import SameName
from spark_channel.errors import OptionError

__all__ = [
    "merge_key",
]


def merge_key(
    options: SqlWriteOptions,
    columns: Sequence[str],
    same_name: SameName,
    label: str,
    primary: Sequence[str] | None = None,
    no_key: str = "has no primary key",
) -> tuple[str, ...]:
    """The key as the rows' `columns` spell it; () for a plain insert.

    `primary` is the primary key of the table `label`, () where it has none, for the reason `no_key`; None = the table
    is to be made.

    Raises:
        OptionError: a key that the rows do not have, or nothing that says which it is.
    """
    if options.write_mode == "insert":
        return ()
    names = options.key_columns or primary
    if not names:
        state = "is to be made" if primary is None else no_key
        index_advice = "" if primary is None else ", with a unique index on them"
        raise OptionError(
            f"option 'writeMode' {options.write_mode} needs 'keyColumns', since table {label!r} {state}: "
            f"name the columns that identify a row{index_advice}",
            option="keyColumns",
        )
    keys = []
    for key_column in names:
        name = same_name(key_column, columns)
        if name is None:
            subject = (
                "option 'keyColumns'"
                if options.key_columns
                else f"the primary key of table {label!r}"
            )
            raise OptionError(
                f"{subject} names {key_column!r}, which the rows do not have; they have {', '.join(columns)}",
                option="keyColumns",
                got=key_column,
                takes=", ".join(columns),
            )
        keys.append(name)
    return tuple(keys)
