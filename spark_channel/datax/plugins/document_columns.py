"""Columns of DataX's readers of documents: read as texts and then cast, so that a value that does not fit is dirty."""

from collections.abc import Iterable

import pyarrow as pa

from spark_channel.datax.plugin_context import PluginContext, at
from spark_channel.datax.sections import refusal
from spark_channel.transform import Labelled, Output, Select

__all__ = ["ddl", "typed"]


_KINDS = {
    "string": None,
    "text": None,
    "keyword": None,
    "json": None,
    "array": None,
    "objectid": None,
    "int": pa.int64(),
    "integer": pa.int64(),
    "short": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "date": pa.timestamp("us"),
    "timestamp": pa.timestamp("us"),
    "bytes": pa.binary(),
}


def ddl(columns: Iterable[tuple[str, str]]) -> str:
    """The option `schema` of these columns (name, DataX's type)."""
    quoted = [(name.replace("`", "``"), kind.strip().lower()) for name, kind in columns]
    return ", ".join(
        f"`{name}` {'BINARY' if kind == 'bytes' else 'STRING'}" for name, kind in quoted
    )


def typed(columns: Iterable[tuple[str, str]], context: PluginContext) -> Labelled:
    """The step that gives the texts their types.

    Raises:
        JobFileError: a type that is not known.
    """
    path = context.key("column")
    outputs = []
    for number, (_, type_text) in enumerate(columns):
        kind = type_text.strip().lower()
        word = (
            "json"
            if kind.startswith(("document", "object", "nested")) and kind != "objectid"
            else kind
        )
        if word not in _KINDS:
            raise refusal(f"{path}[{number}].type", type_text, "one of " + ", ".join(_KINDS))
        kind_of_word = _KINDS[word]
        outputs.append(Output(number, None, None if word == "bytes" else kind_of_word))
    with at(path):
        return Labelled(Select(tuple(outputs)), path)
