"""Columns by name, as `where`, `columns` and Spark find them: spelled exactly so, else ignoring case."""

from collections.abc import Sequence

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError

__all__ = ["check_columns", "find_column", "spell"]


def check_columns(schema: pa.Schema) -> None:
    """Refuse two columns that `where`, `columns` and Spark could not tell apart.

    Raises:
        SchemaError: names the column.
    """
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(
                f"column {name!r} occurs more than once in the source; rename one of them"
            )
        seen.add(name)


def find_column(schema: pa.Schema, name: str, option: str) -> pa.Field:
    """The column called `name`: spelled exactly so, else the only one that differs in case alone.

    Raises:
        OptionError: there is none, or several that differ in case.
    """
    exactly = [field for field in schema if field.name == name]
    found = exactly or [field for field in schema if field.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    known = ", ".join(schema.names)
    what = "more than one column" if found else "no column"
    raise OptionError(
        f"option {option!r} names {name!r}; the source has {what} of that name. It has: {known}",
        option=option,
        got=name,
        takes=known,
    )


def spell(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is `name`: spelled exactly so, else the only one that differs in case alone.

    Raises:
        SchemaError: several differ in case alone.
    """
    if name in names:
        return name
    near = [each for each in names if each.lower() == name.lower()]
    if len(near) > 1:
        raise SchemaError(
            f"column {name!r} is spelled otherwise in the source or target, which has {', '.join(map(repr, near))}: "
            "name one of them"
        )
    return near[0] if near else None
