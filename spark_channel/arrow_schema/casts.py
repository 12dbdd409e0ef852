"""Casts Arrow values to the types of a schema, each equal to what it was, or refused."""

from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from spark_channel.arrow_schema.column_names import match_names
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import shortened

__all__ = [
    "InexactError",
    "cast_exactly",
    "conform",
    "entries_of",
    "first_failure",
    "has_promises",
    "is_binary",
    "is_cut_by_python",
    "is_list",
    "is_number",
    "is_text",
    "null_inside",
    "numpy_name",
    "plain_type",
    "rebuild",
    "without_hidden_nulls",
]

_SHOWN = 100
"""Characters of a value in a message."""


class InexactError(pa.ArrowInvalid):  # type: ignore[misc] # pyarrow is untyped
    """A value that the wanted type cannot hold. The message has the value and both types."""


def cast_exactly(values: pa.Array, kind: pa.DataType, *, declared: bool = False) -> pa.Array:
    """Return `values` as `kind`, each equal to what it was. Arrow's safe cast rounds, overflows and parses.

    Numbers stay numbers, texts texts, times times. `declared`: a person or a table's log named the type, and did not
    only find it in another file. So the text of a value, the bytes of a text, the text in bytes, a local time as one
    of UTC, and a struct without some of its fields are allowed, too.

    Raises:
        InexactError: a value that `kind` cannot hold.
    """
    if values.type.equals(kind):
        return values
    values = _plain_values(values)
    spelled = _spelled_as(values.type, kind)
    if not spelled.equals(values.type):
        values = values.view(spelled)
    if values.type.equals(kind):
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    if not _is_alike(values.type, kind, declared):
        raise InexactError(_inexact(values, kind))

    def cast(part: pa.Array) -> pa.Array:
        cast_part = _cast(part, kind)
        _compare(part, cast_part, declared)
        return cast_part

    try:
        return cast(values)
    except InexactError:
        raise
    except pa.ArrowInvalid as error:
        row = values.slice(first_failure(values, cast), 1)
        for part, inner_kind in _inside(row, kind):
            cast_exactly(part, inner_kind, declared=declared)  # raises for the value inside
        raise InexactError(_inexact(row, kind)) from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InexactError(_inexact(values, kind)) from error


def _inside(values: pa.Array, kind: pa.DataType) -> list[tuple[pa.Array, pa.DataType]]:
    """The values one level deeper, and their types in `kind`."""
    if pa.types.is_map(kind):
        return list(zip(entries_of(values), (kind.key_type, kind.item_type), strict=True))
    if is_list(kind):
        return [(values.flatten(), kind.value_type)]
    if not pa.types.is_struct(kind):
        return []
    children = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    return [(children[field.name], field.type) for field in kind if field.name in children]


def first_failure(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> int:
    """The index of the first value that `convert` refuses with `ArrowInvalid`, when it refuses the whole.

    Takes about log2(n) conversions of ever smaller parts.
    """
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(array.slice(good, middle - good))
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good


def _plain_values(values: pa.Array) -> pa.Array:
    """The values themselves, of an extension type, a dictionary or runs."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values


def _spelled_as(source: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """`source`, in which fields inside have the names of `kind`: Arrow makes NULLs of those in another case.

    Raises:
        SchemaError: see `match_names`.
    """
    types = pa.types
    if source.equals(kind):
        return source
    if types.is_struct(source) and types.is_struct(kind):
        fields, kinds = list(source), {field.name: field.type for field in kind}
        spellings = dict.fromkeys(field.name for field in fields)
        if len(kinds) != kind.num_fields or len(spellings) != len(fields):
            return source
        names = {spelled: name for name, spelled in match_names(kinds, spellings).items()}
        return pa.struct(
            [
                field.with_name(names[field.name]).with_type(
                    _spelled_as(field.type, kinds[names[field.name]])
                )
                if field.name in names
                else field
                for field in fields
            ]
        )
    if types.is_map(source) and types.is_map(kind):
        item = source.item_field
        item = item.with_type(_spelled_as(item.type, kind.item_type))
        key = source.key_field.with_type(_spelled_as(source.key_type, kind.key_type))
        return pa.map_(key, item, keys_sorted=source.keys_sorted)
    if is_list(source) and is_list(kind):
        inner = source.value_field
        inner = inner.with_type(_spelled_as(inner.type, kind.value_type))
        if types.is_fixed_size_list(source):
            return pa.list_(inner, source.list_size)
        return pa.large_list(inner) if types.is_large_list(source) else pa.list_(inner)
    return source


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(values.type) and pa.types.is_decimal(kind):
        # Arrow asks for room for every number of the type, and not for those that are there:
        # findings/arrow-cast-integer-to-decimal.sh
        values = values.cast(pa.decimal128(20, 0))
    try:
        return values.cast(kind, safe=True)
    except pa.ArrowTypeError:
        # Before pyarrow 21, of structs whose fields are others, or in another order.
        if not _is_rebuilt(kind) or not _is_rebuilt(values.type):
            raise
        return rebuild(values, kind, _cast)
    except pa.ArrowInvalid:
        # Arrow takes the NULLs below a NULL struct for values of its fields, which may be NOT NULL.
        if not _is_rebuilt(kind) or not _is_rebuilt(values.type) or null_inside(values, kind, ""):
            raise
        return rebuild(values, kind, _cast)


def entries_of(values: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """The keys and the items of all rows. Those of Arrow's array are also those of rows before a slice.

    Arrow casts no map to a list whose items are NULL structs with a field that is not nullable.
    """
    present = values.drop_null()
    if not len(present):
        return present.keys.slice(0, 0), present.items.slice(0, 0)
    start, end = present.offsets[0].as_py(), present.offsets[-1].as_py()
    return present.keys.slice(start, end - start), present.items.slice(start, end - start)


def null_inside(values: pa.Array, kind: pa.DataType, path: str) -> str:
    """The field inside of `values` that holds NULL where `kind` allows none; "" = there is none.

    A NULL struct has no fields, whatever Arrow's arrays of them hold.
    """
    types = pa.types
    if not values.null_count and not types.is_nested(kind):
        return ""
    if types.is_struct(kind) and types.is_struct(values.type):
        present = values.drop_null()
        inner = [
            (present.field(number), field)
            for field in kind
            if (number := present.type.get_field_index(field.name)) >= 0
        ]
    elif types.is_map(kind) and types.is_map(values.type):
        inner = [(entries_of(values)[1], kind.item_field)]
    elif is_list(kind) and is_list(values.type):
        inner = [(values.flatten(), kind.value_field)]
    else:
        return ""
    for part, field in inner:
        name = f"{path}.{field.name}"
        if not field.nullable and part.null_count:
            return name
        if null_path := null_inside(part, field.type, name):
            return null_path
    return ""


def has_promises(kind: pa.DataType) -> bool:
    """Whether a struct inside has a field that is not nullable."""
    types = pa.types
    if types.is_struct(kind):
        return any(not field.nullable or has_promises(field.type) for field in kind)
    if types.is_map(kind):
        return has_promises(kind.item_type)
    return is_list(kind) and has_promises(kind.value_type)


def without_hidden_nulls(values: pa.Array) -> pa.Array:
    """Equal values, where a field that is not nullable has no NULL below a NULL struct: Arrow's writer of Parquet and
    pyiceberg refuse these. `null_inside` tells whether there are others.
    """
    kind = values.type
    if not has_promises(kind):
        return values
    if not pa.types.is_struct(kind):
        return rebuild(values, kind, lambda part, _kind: without_hidden_nulls(part))
    children_made = []
    for number, field in enumerate(kind):
        child = without_hidden_nulls(values.field(number))
        children_made.append(
            _as_present(child) if child.null_count and not field.nullable else child
        )
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children_made, fields=list(kind), mask=mask)


def _as_present(values: pa.Array) -> pa.Array:
    """Without the bits that say which values are NULL: what lies below them is shown."""
    kind, size = values.type, len(values)
    inner: list[pa.Array] | None = None
    if pa.types.is_struct(kind):
        children = [values.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_map(kind):
        pairs = [values.keys, values.items]
        inner = [pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])]
        buffers = values.buffers()[1:2]
    elif is_list(kind):
        offsets = 0 if pa.types.is_fixed_size_list(kind) else 1
        buffers, inner = values.buffers()[1 : 1 + offsets], [values.values]
    else:
        buffers = values.buffers()[1:]
    return pa.Array.from_buffers(kind, size, [None, *buffers], 0, values.offset, inner)


def _is_rebuilt(kind: pa.DataType) -> bool:
    return bool(is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind))


def rebuild(
    values: pa.Array, kind: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """`values` as the nested type `kind`, by what `convert` makes of the values inside. A struct's fields go by name.

    Raises:
        ArrowTypeError: a field that is missing, and that `kind` does not allow to be NULL.
    """
    types = pa.types
    if types.is_struct(kind):
        children = values.flatten()
        if [field.name for field in values.type] != [field.name for field in kind]:
            by_name = {
                field.name: child for field, child in zip(values.type, children, strict=True)
            }
            missing = [f.name for f in kind if f.name not in by_name and not f.nullable]
            if missing:
                raise pa.ArrowTypeError(f"the field {missing[0]!r} of {kind} is missing")
            children = [by_name.get(field.name) for field in kind]
        rebuilt = [
            pa.nulls(len(values), field.type) if child is None else convert(child, field.type)
            for child, field in zip(children, kind, strict=True)
        ]
        mask = values.is_null()
        return pa.StructArray.from_arrays(rebuilt, fields=list(kind), mask=mask)
    if types.is_map(kind):
        keys, items = entries_of(values)
        is_there = values.is_valid()
        counts = pc.subtract(values.offsets.slice(1), values.offsets.slice(0, len(values)))
        ends = pc.cumulative_sum(pc.if_else(is_there, counts, 0))
        # A map of Arrow is NULL where its offset is.
        offsets = pc.if_else(
            pa.concat_arrays([is_there, pa.array([True])]),
            pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())]),
            pa.scalar(None, pa.int32()),
        )
        key, item = convert(keys, kind.key_type), convert(items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, key, item, type=kind)
    return _rebuild_list(values, kind, convert)


def _rebuild_list(
    values: pa.Array, kind: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    mask = values.is_null() if values.null_count else None
    if pa.types.is_fixed_size_list(kind):
        # NULLs have room for values, too.
        size = kind.list_size
        inner = values.values.slice(values.offset * size, len(values) * size)
        inner = convert(inner, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    inner = convert(values.flatten(), kind.value_type)
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets, inner, type=kind, mask=mask)
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), inner, type=kind, mask=mask)


def _inexact(values: pa.Array, kind: pa.DataType) -> str:
    present = values.drop_null()
    example = _shown_value(present.slice(0, 1)) if len(present) else "a value"
    return f"{shortened(example, _SHOWN)} of type {values.type} is not equal to any value of type {kind}"


def is_cut_by_python(kind: pa.DataType) -> bool:
    """Whether Python's objects have fewer digits than the type: of the nanoseconds of a time of day."""
    return bool(pa.types.is_time64(kind) and kind.unit == "ns")


def _shown_value(one: pa.Array) -> str:
    if is_cut_by_python(one.type):
        return str(one.cast(pa.string())[0])
    try:
        return repr(one[0].as_py())
    except (ValueError, OverflowError):  # a time that Python does not have
        return "".join(one.to_string().split("\n")).strip("[ ]")


def _is_alike(source: pa.DataType, kind: pa.DataType, declared: bool) -> bool:
    """Whether values of both types can be equal; which ones are is seen by `_compare`."""
    types = pa.types
    source, kind = plain_type(source), plain_type(kind)
    if source.equals(kind) or types.is_null(source):
        return True
    if is_list(source) and is_list(kind):
        return _is_alike(source.value_type, kind.value_type, declared)
    if types.is_map(source) and types.is_map(kind):
        return _is_alike(source.key_type, kind.key_type, declared) and _is_alike(
            source.item_type, kind.item_type, declared
        )
    if types.is_struct(source) and types.is_struct(kind):
        return all(
            _is_alike(source.field(number).type, kind.field(field.name).type, declared)
            for number, field in enumerate(source)
            if kind.get_field_index(field.name) >= 0
        )
    groups: list[Callable[[pa.DataType], bool]] = [
        is_number,
        is_text,
        is_binary,
        types.is_boolean,
        types.is_date,
        types.is_time,
        types.is_duration,
    ]
    if any(group(source) and group(kind) for group in groups):
        return True
    if types.is_timestamp(source) and types.is_timestamp(kind):
        return (source.tz is None) == (kind.tz is None) or (declared and source.tz is None)
    if not declared:
        return False
    if is_text(kind):
        return not (
            types.is_nested(source) or types.is_duration(source) or types.is_interval(source)
        )
    return is_text(source) and is_binary(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, of an extension type, a dictionary or runs."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def numpy_name(kind: pa.DataType) -> str:
    """NumPy's name of the values of a number's type, such as "i8": to say it, older pyarrows import pandas."""
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return f"{letter}{kind.bit_width // 8}"


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether `kind` is a list. A list view is none: Arrow's cast to a list loses the values of its last row
    (findings/arrow-cast-list-view.sh).
    """
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _compare(before: pa.Array, after: pa.Array, declared: bool) -> None:
    """
    Raises:
        InexactError: a value of `before`, at any depth, is another one in `after`.
    """
    before = _plain_values(before)
    types = pa.types
    if before.type.equals(after.type) or types.is_null(before.type):
        return
    if types.is_map(before.type):
        for pair in zip(entries_of(before), entries_of(after), strict=True):
            _compare(*pair, declared)
    elif is_list(before.type):
        _compare(before.flatten(), after.flatten(), declared)
    elif types.is_struct(before.type):
        after_fields = dict(zip((field.name for field in after.type), after.flatten(), strict=True))
        for field, values in zip(before.type, before.flatten(), strict=True):
            if field.name in after_fields:
                _compare(values, after_fields[field.name], declared)
            elif not declared and values.null_count < len(values):
                example = values.drop_null()[0].as_py()
                raise InexactError(
                    f"its field {field.name!r}, which holds {example!r}, is missing in {after.type}"
                )
    elif types.is_floating(before.type) or types.is_floating(after.type):
        # Other kinds are compared by Arrow's cast itself.
        if types.is_float16(before.type):
            before = before.cast(pa.float32())
        back = after.cast(before.type, safe=False)
        differs = pc.not_equal(back, before)
        if types.is_floating(before.type):
            differs = pc.and_(differs, pc.invert(pc.and_(pc.is_nan(back), pc.is_nan(before))))
        index = pc.index(differs, True).as_py()
        if index >= 0:
            raise InexactError(_inexact(before.slice(index, 1), after.type))


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
        counts = Counter(batch.schema.names)
        missing = [name for name in schema.names if counts[name] != 1]
        if missing:
            raise SchemaError(
                f"a batch has columns {', '.join(batch.schema.names)}; "
                f"promised were {', '.join(schema.names)}"
            )
        batch = batch.select(schema.names)
    columns = [_fitting(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fitting(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise SchemaError(f"column {field.name!r} holds a null, and its schema promises none")
    try:
        return cast_exactly(column, field.type, declared=True)
    except InexactError as error:
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit {field.type}: {error}"
        ) from error
