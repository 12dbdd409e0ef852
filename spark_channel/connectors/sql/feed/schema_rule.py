"""Option `onSchemaChange` of a log's feed: with which changes of its table's columns it continues."""

from collections.abc import Callable, Collection

import pyarrow as pa

from spark_channel.connectors.base.feed import new_columns_advice
from spark_channel.connectors.sql.read.cursor import check_same_columns
from spark_channel.plain_text import log_of

__all__ = ["SchemaRule"]

_log = log_of(__name__)


class SchemaRule:
    """Option `onSchemaChange` of a log's feed, as its table is looked at. Plain data.

    `evolves`, `ignores`: see `FeedOptions`. `advice`: what to do about columns that it refuses. `logs`: it logs
    the columns that it ignores.
    """

    def __init__(
        self, *, evolves: bool = False, ignores: bool = False, advice: str = "", logs: bool = True
    ) -> None:
        self.evolves, self.ignores = evolves, ignores
        self.advice = advice or new_columns_advice(goes_on=evolves or ignores)
        self._logs = logs
        self._logged: set[tuple[str, str]] = set()

    def has(self, look: Callable[[str], bool]) -> Callable[[str], bool] | None:
        """For a decoder: whether the table has a column by now that the stream did not begin with; None: the log may
        have no other columns. `look` looks at the table.
        """
        if self.ignores:
            return _never
        return look if self.evolves else None

    def check(self, was: pa.Schema, now: pa.Schema, source: str, key: Collection[str] = ()) -> None:
        """Check that a table has the columns that its stream began with, or those that it can go on with. `key`: those
        that cannot be NULL.

        Raises:
            SchemaError: names the first column that differs.
        """
        if not self.ignores:
            check_same_columns(was, now, source, self.advice)
            return
        new = [field.name for field in now if field.name not in was.names]
        # A name in another case may be the same column, or another one.
        lost = [
            name for name in was.names if name.lower() not in {name.lower() for name in now.names}
        ]
        gone = next((name for name in lost if name in key), None)
        lasting = pa.schema(
            [field for field in was if field.name not in lost or field.name == gone]
        )
        check_same_columns(
            lasting, pa.schema([f for f in now if f.name not in new]), source, self.advice
        )
        for name, role in (
            *((name, "is NULL from now on") for name in lost),
            *((name, "is left out") for name in new),
        ):
            if self._logs and (source, name) not in self._logged:
                self._logged.add((source, name))
                _log.warning(
                    "%s has %s column %r since its stream began, which %s (onSchemaChange=ignore)",
                    source,
                    "lost" if name in lost else "a new",
                    name,
                    role,
                )


def _never(_name: str) -> bool:
    """Leave out columns that the table got, and those that it lost before the stream began."""
    return False
