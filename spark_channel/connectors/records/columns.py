"""Records as batches of one schema."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.connectors.records.conversion import Rules, converter
from spark_channel.connectors.records.paths import MISSING, Path, found_at, path_in
from spark_channel.errors import SchemaError, SourceError
from spark_channel.plain_text import shortened

__all__ = ["Columns"]


_AS_THEY_ARE: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_int64, int),
    (pa.types.is_float64, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_binary, bytes),
)
_LARGEST = 2**63 - 1


class Columns:
    """Makes batches of `schema`. `key` is the field by which a message names a record."""

    def __init__(self, schema: pa.Schema, rules: Rules, *, key: str | None = None) -> None:
        self.schema, self._key = schema, key
        separators = dict(rules.separators)
        self._converters = []
        for field in schema:
            plain = next((kind for test, kind in _AS_THEY_ARE if test(field.type)), None)
            try:
                convert = converter(field.type, rules, separators.get(field.name))
            except TypeError:
                raise SchemaError(
                    f"column {field.name!r} is to have type {field.type}, which a record's value cannot become; read "
                    f"it as STRING (JSON), or its parts as columns {field.name}.<part>"
                ) from None
            self._converters.append((field, path_in(field.name), plain, convert))

    def batch(self, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """
        Raises:
            SourceError: a value that its column cannot hold; names the column and the record.
        """
        arrays = []
        for field, path, plain, convert in self._converters:
            values = [_found(record, field.name, path) for record in records]
            if not set(map(type, values)) <= {plain, type(None)}:
                values = [
                    None if value is None else self._converted(convert, value, field, record)
                    for value, record in zip(values, records, strict=True)
                ]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, UnicodeError):
                arrays.append(self._one_by_one(field, convert, values, records))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _converted(
        self,
        convert: Callable[[Any], Any],
        value: object,
        field: pa.Field,
        record: Mapping[str, Any],
    ) -> object:
        try:
            return convert(value)
        except (ValueError, OverflowError) as error:
            raise self._unfit(field, record, str(error)) from None

    def _one_by_one(
        self,
        field: pa.Field,
        convert: Callable[[Any], Any],
        values: Sequence[object],
        records: Sequence[Mapping[str, Any]],
    ) -> pa.Array:
        """Finds the value that Arrow did not take."""
        for value, record in zip(values, records, strict=True):
            if value is not None:
                converted = self._converted(convert, value, field, record)
                try:
                    pa.array([converted], field.type)
                except (pa.ArrowException, OverflowError, UnicodeError):
                    value_text = shortened(ascii(value), 60)
                    raise self._unfit(field, record, f"{value_text} does not fit") from None
        raise AssertionError("each value fits, and all of them do not")

    def _unfit(self, field: pa.Field, record: Mapping[str, Any], reason: str) -> SourceError:
        record_name = (
            f" of the record with {self._key} {str(record.get(self._key))!r}" if self._key else ""
        )
        return SourceError(
            f"column {field.name!r}{record_name}: {reason}. The column is read as {field.type}; "
            "give it another type with option 'schema', such as STRING, which holds every value"
        )


def _found(record: Mapping[str, Any], name: str, path: Path | None) -> Any:
    value = record.get(name)
    if value is not None or path is None:
        return value
    value = found_at(record, path)
    return None if value is MISSING else value
