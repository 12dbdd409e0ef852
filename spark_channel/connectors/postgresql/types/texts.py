"""Types that a cast to text does not show as the server's output does, or not in one way on every server."""

from collections.abc import Sequence

import pyarrow as pa

from spark_channel.arrow_schema import first_failure
from spark_channel.connectors.postgresql.catalog import PgColumn
from spark_channel.connectors.postgresql.session import literal_sql
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.write.encode import first_outside
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import shortened

__all__ = ["OF_SESSION", "decode", "text_sql", "value_sql"]


_SHOWN = 80
"""Characters of a value in a message."""
_CATALOGS = {
    "regclass": ("pg_class", "relname", "relnamespace"),
    "regproc": ("pg_proc", "proname", "pronamespace"),
    "regoper": ("pg_operator", "oprname", "oprnamespace"),
    "regcollation": ("pg_collation", "collname", "collnamespace"),
    "regconfig": ("pg_ts_config", "cfgname", "cfgnamespace"),
    "regdictionary": ("pg_ts_dict", "dictname", "dictnamespace"),
}
_IDENTIFIED = {"regtype": "pg_type", "regprocedure": "pg_proc", "regoperator": "pg_operator"}
_OUTPUT = frozenset({"inet", "xml"})
OF_SESSION = frozenset({"money", *_CATALOGS, *_IDENTIFIED})
"""Types of which a session's settings decide what the server's output means."""


def text_sql(text: str, typname: str) -> str:
    """The expression for the text of `text`, a value of the type `typname` or an array of such: the server's output.

    `money` is a number, as lc_monetary decides how it is shown, and what is shown is another amount elsewhere. A name
    of an object has its schema, as search_path decides what it means without.
    """
    element = typname.removeprefix("_")
    if typname == element:
        return _shown_as(text, element)
    if _shown_as("e", element) == "CAST(e AS text)":
        return f"CAST({text} AS text[])"
    return (
        f"CASE WHEN {text} IS NOT NULL THEN ARRAY(SELECT {_shown_as('e', element)} "  # noqa: S608 - made of quoted names
        f"FROM unnest({text}) WITH ORDINALITY AS each_of (e, n) ORDER BY n) END"
    )


def _shown_as(text: str, typname: str) -> str:
    if typname == "money":
        return f"CAST(CAST({text} AS numeric) AS text)"
    if typname in _OUTPUT:
        return f"textin({typname}_out({text}))"
    if typname in _CATALOGS:
        catalog, name, space = _CATALOGS[typname]
        sign = "c.oprname" if typname == "regoper" else f"quote_ident(c.{name})"
        return (
            f"coalesce((SELECT quote_ident(s.nspname) || '.' || {sign} FROM pg_catalog.{catalog} c "  # noqa: S608 - constants
            f"JOIN pg_catalog.pg_namespace s ON s.oid = c.{space} WHERE c.oid = {text}), CAST({text} AS text))"
        )
    if typname in _IDENTIFIED:
        return (
            f"coalesce((pg_identify_object('pg_catalog.{_IDENTIFIED[typname]}'::regclass, {text}, 0)).identity, "
            f"CAST({text} AS text))"
        )
    return f"CAST({text} AS text)"


def value_sql(text: str, column: PgColumn) -> str:
    """The expression for a value of `column`, whose text is `text`: as `text_sql` shows it."""
    if (column.element if column.category == "A" else column.base) != "money":
        return f"CAST({text} AS {column.declared})"
    array = "[]" if column.category == "A" else ""
    number = f"CAST({text} AS numeric{array})"
    message = literal_sql(f"column {column.name!r} is money, whose digits here would round ")
    return (
        f"CASE WHEN CAST(CAST({number} AS money{array}) AS numeric{array}) = {number} "
        f"THEN CAST({number} AS {column.declared}) "
        f"WHEN {text} IS NOT NULL THEN CAST({message} || CAST({text} AS text) AS {column.declared}) END"
    )


def decode(raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
    """A batch as it came, in the types of `schema`.

    Raises:
        MisfitError: a value that its column's type cannot hold exactly.
    """
    arrays = [_decode(array, about) for array, about in zip(raw.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decode(array: pa.Array, about: ReadColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_list(array.type):
        values = array.values
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        _refuse_outside(values, about)
        mask = pc.is_null(array) if array.null_count else None
        array = (
            pa.ListArray.from_arrays(array.offsets, values, mask=mask)
            if array.offset == 0
            else array
        )
    else:
        _refuse_outside(array, about)
    if array.type.equals(about.kind):
        return array
    try:
        return pc.cast(array, about.kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        bad = _first_bad(array, about.kind)
        value_text = "a value that" if bad is None else f"{shortened(str(bad), _SHOWN)!r}, which"
        raise MisfitError(about, f"{value_text} does not fit {about.kind}: {error}") from None


def _first_bad(array: pa.Array, kind: pa.DataType) -> object:
    try:
        return array[first_failure(array, lambda part: pc.cast(part, kind))].as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _refuse_outside(values: pa.Array, about: ReadColumn) -> None:
    """Infinite dates, years before 1 or after 9999, and 24:00:00 are no values of Spark's. The driver makes an infinite
    date another one (findings/adbc-postgresql-infinite-dates.sh), which is outside, too.
    """
    if first_outside(values) < 0:
        return
    if pa.types.is_time(values.type):
        reason = "a day ends before 24:00:00"
    else:
        of = "dates" if pa.types.is_date(values.type) else "timestamps"
        reason = f"{of} go from year 1 to 9999, and are never infinite"
    raise MisfitError(about, f"a value that does not fit {about.kind}: {reason}")
