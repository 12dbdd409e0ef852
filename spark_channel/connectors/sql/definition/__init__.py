"""What a new table gets of the definition of its source, also of a table of another system."""

from spark_channel.connectors.sql.definition.new_table import (
    DEFINING,
    Lack,
    NewTable,
    create_index,
    free_names,
    is_build,
    lacking,
    parts_of_both,
    plain_new_table,
    with_safe_key,
)

__all__ = [
    "DEFINING",
    "Lack",
    "NewTable",
    "create_index",
    "free_names",
    "is_build",
    "lacking",
    "parts_of_both",
    "plain_new_table",
    "with_safe_key",
]
