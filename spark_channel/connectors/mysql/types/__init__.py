"""MySQL's types as Arrow's; decoding and encoding."""

from spark_channel.connectors.mysql.types.arrow import (
    arrow_type,
    declared_of,
    is_text_type,
    is_wide_decimal,
    members,
    parts,
)
from spark_channel.connectors.mysql.types.decode import decode_fields, selected
from spark_channel.connectors.mysql.types.encode import (
    assignments,
    check_values,
    insert_values,
    load_lines,
    wider_text,
)
from spark_channel.connectors.mysql.types.native import (
    LINE_FORM,
    SYSTEM,
    are_native,
    native_types,
)

__all__ = [
    "LINE_FORM",
    "SYSTEM",
    "are_native",
    "arrow_type",
    "assignments",
    "check_values",
    "declared_of",
    "decode_fields",
    "insert_values",
    "is_text_type",
    "is_wide_decimal",
    "load_lines",
    "members",
    "native_types",
    "parts",
    "selected",
    "wider_text",
]
