"""The settings that spark-channel's transactions have in PostgreSQL.

Each is set for one transaction. What is set for a session stays in it, and behind a connection pooler the next
transaction of that session is another client's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql_family import SETTINGS, for_transaction, set_config
from spark_channel.connectors.sql.session import session_script
from spark_channel.connectors.sql.statements import quoted_name

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """`each`: statements that begin every transaction. `once`: those of the user that only a session can keep."""

    each: Sequence[str]
    once: Sequence[str]
    of_session: Sequence[str]
    """As `each`, for the session: for what cannot run in a transaction, where no other client gets the session."""
    chosen: bool
    """Whether the user chose some of them, so that a statement means something else without."""

    @classmethod
    def from_options(cls, options: PostgresOptions, connection_settings: Mapping[str, str]) -> Self:
        """`connection_settings`: settings of the connection's own.

        Raises:
            OptionError: `sessionInitStatement` cannot be parsed, or begins a transaction.
        """
        chosen = [
            (statement, for_transaction(statement))
            for statement in session_script(options, "postgres")
        ]
        values = {**SETTINGS, **connection_settings}
        if options.current_schema is not None:
            values["search_path"] = _search_path(options.current_schema)
        if options.query_timeout:
            values["statement_timeout"] = str(options.query_timeout * 1000)
        zone = {} if options.session_time_zone is None else {"TimeZone": options.session_time_zone}

        def all_of(scripts: Iterable[str], *, local: bool) -> list[str]:
            return [
                *([set_config(zone, local=local)] if zone else []),
                *scripts,
                set_config(values, local=local),
            ]

        return cls(
            each=all_of((setting for _, setting in chosen if setting is not None), local=True),
            once=[statement for statement, setting in chosen if setting is None],
            of_session=all_of(
                (statement for statement, setting in chosen if setting is not None), local=False
            ),
            chosen=bool(chosen or zone or options.current_schema is not None),
        )


def _search_path(text: str) -> str:
    return ", ".join(quoted_name(name.strip().strip('"')) for name in text.split(","))
