"""Small tables of a run, which are copied in groups: a table costs less than one that is copied alone.

A group that fails as a whole, or a table that does not fit into it, is copied table by table: each meets its own error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.base.small_tables import MOST_BYTES, SmallTable, Together
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_of
from spark_channel.progress import TransferReport
from spark_channel.replication.table_run import TableRun, reader_of, together_of, writer_of
from spark_channel.replication.tables import TableCopy, options_but_names, target_reader

__all__ = ["JoinedMove", "copy_group", "divided", "first_increments", "groups_of", "looked_up"]

_log = log_of(__name__)

_MOST_TABLES = 32
_MOST_GROUP_BYTES = 1 << 20
"""The targets of a group are locked while its rows are sent."""


class JoinedMove(Protocol):
    """Carries out the copies of a group; `ended` takes the report of each table once it is published."""

    def __call__(
        self,
        together: Together,
        tables: Sequence[SmallTable],
        placed: Callable[[SmallTable], None],
        ended: Callable[[SmallTable, TransferReport], None],
        limit_options: Mapping[str, Any],
        part_of: str,
    ) -> None: ...


def groups_of(parallel: int, copies: Mapping[int, TableCopy]) -> list[list[int]]:
    """The tables by their places: groups of small ones, and the others alone, in their order."""
    small = [index for index, copy in copies.items() if copy.mode == "full" and _is_small(copy)]
    if not small or not _can_join(copies[small[0]]):
        small = []
    joined = set(small)
    alone = [[index] for index in copies if index not in joined]
    return alone + divided(parallel, small, copies)


def first_increments(copies: Mapping[int, TableCopy]) -> set[int]:
    """The incremental tables whose first run may be copied in a group, by their places."""
    small = [
        index for index, copy in copies.items() if copy.mode == "incremental" and _is_small(copy)
    ]
    return set(small) if small and _can_join(copies[small[0]]) else set()


def divided(
    parallel: int, small: Sequence[int], copies: Mapping[int, TableCopy]
) -> list[list[int]]:
    """The small tables as groups, each of tables whose options are the same, but for their names."""
    most_tables = min(_MOST_TABLES, -(-len(small) // parallel))
    alike: dict[str, list[int]] = {}
    for index in small:
        alike.setdefault(options_but_names(copies[index]), []).append(index)
    groups: list[list[int]] = []
    for places in alike.values():
        nbytes, group = 0, list[int]()
        groups.append(group)
        for index in places:
            size, _ = copies[index].size
            if group and (len(group) >= most_tables or nbytes + size > _MOST_GROUP_BYTES):
                nbytes, group = 0, []
                groups.append(group)
            group.append(index)
            nbytes += size
    return groups


@contextmanager
def looked_up(copies: Iterable[TableCopy]) -> Iterator[None]:
    """While tables are looked at, few statements look all of them up; nothing may change a table meanwhile."""
    alike: dict[str, list[TableCopy]] = {}
    for copy in copies:
        alike.setdefault(options_but_names(copy), []).append(copy)
    alike.pop("", None)
    with sessions.one_table():
        for some in (group for group in alike.values() if len(group) > 1):
            with suppress(ChannelError):  # which each table meets
                reader, writer = reader_of(some[0]), writer_of(some[0])
                if isinstance(reader, SqlReader):
                    reader.look_up([copy.reader["dbtable"] for copy in some])
                if isinstance(writer, SqlWriter) and writer.database.traits.look_up is not None:
                    names = [copy.writer["dbtable"] for copy in some]
                    writer.look_up(names)
                    if writer.exists() and isinstance(target := target_reader(some[0]), SqlReader):
                        target.look_up(names)
        yield


def _is_small(copy: TableCopy) -> bool:
    options = copy.options
    asks = (
        options.columns,
        options.load_columns,
        options.where,
        options.source_options,
        options.target_options,
        copy.fault,
        copy.leaves_builds,
    )
    is_known = copy.table is not None and copy.table.nbytes is not None
    evolves = copy.contract.tables == "evolve"
    return is_known and evolves and not any(asks) and copy.size[0] <= MOST_BYTES


def _can_join(copy: TableCopy) -> bool:
    """Whether the connectors copy tables together; whether they do so with a table's options is asked for each."""
    try:
        return together_of(copy, reader_of(copy), writer_of(copy)) is not None
    except ChannelError:
        return False


def copy_group(
    runs: Mapping[int, TableRun],
    join: JoinedMove,
    limit_options: Mapping[str, Any],
    part_of: str,
) -> set[int]:
    """Copy the tables together, as far as they can be. Returns the places of those that were copied.

    Their options are the same, but for the tables' names.
    """
    together = next(iter(runs.values())).together()
    if together is None:
        return set()
    by_table = {run.small_table(): (index, run) for index, run in runs.items()}
    copied: set[int] = set()

    def placed(table: SmallTable) -> None:
        by_table[table][1].place(table)

    def ended(table: SmallTable, report: TransferReport) -> None:
        index, run = by_table[table]
        run.ended(report)
        copied.add(index)

    try:
        join(together, list(by_table), placed, ended, limit_options, part_of)
    except Exception as error:
        _log.info("%d small tables are copied one by one: %s", len(runs) - len(copied), error)
        return copied
    for table in by_table:
        if table.why is not None:
            _log.info("%s is copied alone: %s", table.stream, table.why)
    return copied
