"""What a new table gets of the definition of its source, also of a table of another system."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.sql.definition.defining import DEFINING
    from spark_channel.connectors.sql.definition.new_table import (
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
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "defining": ["DEFINING"],
            "new_table": [
                "Lack",
                "NewTable",
                "create_index",
                "free_names",
                "is_build",
                "lacking",
                "parts_of_both",
                "plain_new_table",
                "with_safe_key",
            ],
        },
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
