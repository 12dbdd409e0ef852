"""Columns by name, as `where`, `columns` and Spark find them: spelled exactly so, else ignoring case."""

from collections.abc import Iterable

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError

__all__ = [
    "check_columns",
    "find_column",
    "match_names",
]


def check_columns(schema: pa.Schema) -> None:
    """Refuse two columns that `where`, `columns` and Spark could not tell apart.

    Raises:
        SchemaError: names the column.
    """
    lowered: set[str] = set()
    for name in schema.names:
        if name in lowered:
            raise SchemaError(
                f"column {name!r} occurs more than once in the source; rename one of them"
            )
        lowered.add(name)


def find_column(schema: pa.Schema, name: str, option: str) -> pa.Field:
    """The column called `name`: spelled exactly so, else the only one that differs in case alone.

    Raises:
        OptionError: there is none, or several that differ in case.
    """
    exactly = [field for field in schema if field.name == name]
    matches = exactly or [field for field in schema if field.name.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    columns = ", ".join(schema.names)
    how_many = "more than one column" if matches else "no column"
    raise OptionError(
        f"option {option!r} names {name!r}; the source has {how_many} of that name. It has: {columns}",
        option=option,
        got=name,
        takes=columns,
    )


def match_names(names: Iterable[str], others: Iterable[str], side: str = "") -> dict[str, str]:
    """Return how `others` spell those of `names` that they have: exactly so, else in another case, one to one.

    `side`: where the others are, for the error.

    Raises:
        SchemaError: in another case, a name may be several of the others, or several names may be one of them.
    """
    names, others = list(names), list(others)
    exact = set(names).intersection(others)
    near: dict[str, list[str]] = {}
    for other in others:
        if other not in exact:
            near.setdefault(other.lower(), []).append(other)
    matched: dict[str, str] = {}
    matched_by: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name in exact:
            matched[name] = name
            continue
        candidates = near.get(name.lower(), [])
        if len(candidates) > 1 or (candidates and candidates[0] in matched_by):
            first = matched_by.get(candidates[0])
            several = (
                f"may be {' or '.join(map(repr, candidates))}"
                if first is None
                else f"and column {first!r} may both be {candidates[0]!r}"
            )
            raise SchemaError(
                f"{side or 'the source or target'} has no column {name!r} that is spelled so: it {several}, which "
                "differ from it in case alone. Spell the column as it is there, or rename one of them"
            )
        if candidates:
            matched_by[candidates[0]] = name
            matched[name] = candidates[0]
    return matched
