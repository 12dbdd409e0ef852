"""Foreign keys between the tables of one run: added when all of its tables have their rows.

Rows are replaced and added table by table, so the keys are dropped when a run begins, and the next run adds those that
one could not add.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_channel.connectors.base.definition import ForeignKeyDefinition, TableDefinition
from spark_channel.connectors.sql.definition import DEFINING
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.errors import ChannelError, TargetError
from spark_channel.plain_text import log_of
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import of_table, reader_of, writer_of
from spark_channel.replication.tables import TableCopy, lacks_of

__all__ = ["ForeignKeys"]

_log = log_of(__name__)

_ACTION = r"(?:CASCADE|SET NULL|RESTRICT|NO ACTION)"
_SHARED = re.compile(rf"(?: ON (?:UPDATE|DELETE) {_ACTION})*")
"""What is said behind a key and means the same in each system."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A key of the source, and the table of the target to which it is to refer. `refusal`: why not; "" = it can."""

    key: ForeignKeyDefinition
    to: TableCopy | None
    refusal: str = ""


class ForeignKeys:
    """The keys of those tables of a run that take their source's whole definition (`schema: full`)."""

    def __init__(self, copies: Sequence[TableCopy]) -> None:
        self._copies = {_place(copy): copy for copy in copies if copy.table is not None}
        self._full = [
            copy
            for copy in copies
            if copy.options.table_schema == "full" and copy.table is not None and not copy.fault
            if copy.writer["writer"] in DEFINING
        ]
        self._sources: dict[str, TableDefinition | None] = {}
        self._are_read = False

    def drop(self) -> None:
        """Drop the keys that `add` is going to make again. One that stays is named where it is in the way."""
        for copy in self._full:
            try:
                self._drop(copy)
            except ChannelError as error:
                _log.warning("%s: its foreign keys stay for this run: %s", copy.stream, error)

    def add(self, outcomes: Mapping[str, TableOutcome]) -> None:
        """Add the keys of tables that have their rows, and report those that are left out."""
        for copy in self._full:
            outcome = outcomes[copy.stream]
            if outcome.state not in ("done", "unchanged"):
                continue
            try:
                omitted = list(self._add(copy, outcomes))
            except ChannelError as error:
                omitted = [f"foreign keys: {error}"]
            if omitted:
                reason = f"without {'; '.join(omitted)}"
                outcome.add_why(reason)
                _log.warning("%s: %s", copy.stream, reason)

    def left_out(self, copy: TableCopy, omitted: Sequence[str]) -> tuple[str, ...]:
        """What the copy lacks after a run, of which one that makes the table alone lacks `omitted`."""
        if copy not in self._full or not writer_of(copy).dialect.adds_keys:  # type: ignore[attr-defined]
            return tuple(omitted)
        others = [lack for lack in omitted if not lack.startswith("foreign key ")]
        refused = (planned for planned in self._planned(copy) if planned.refusal)
        return (*others, *(f"{planned.key.label}: {planned.refusal}" for planned in refused))

    def lacks(self, copy: TableCopy) -> tuple[str, ...]:
        """What the target of the copy, which is there, lacks of its source's definition, for people.

        Raises:
            ChannelError: an end cannot be read.
        """
        lacks = lacks_of(copy, reader_of(copy), writer_of(copy), partial(self._referenced, copy))
        return tuple(lack.text for lack in lacks)

    def _referenced(self, copy: TableCopy, key: ForeignKeyDefinition) -> str:
        """The copy of the table to which a key of the source refers, as SQL; "" = the target takes no such key."""
        for planned in self._planned(copy):
            if planned.key == key and planned.to is not None and not planned.refusal:
                to = planned.to
                writer: SqlWriter[Any] = writer_of(to)  # type: ignore[assignment]
                target_table = writer.run(TargetError, "look", partial(_place_in_target, to))
                return writer.dialect.place(*target_table)
        return ""

    def _read_sources(self) -> None:
        """Read the definitions of all tables that differ in their names alone, together, if they have foreign keys."""
        self._are_read = True
        alike = [copy for copy in self._full if _unnamed(copy) == _unnamed(self._full[0])]
        if len(alike) < 2:
            return
        try:
            reader = reader_of(alike[0])
            refer = None
            if isinstance(reader, SqlReader):
                refer = reader.referring([_place(copy) for copy in alike])
            without = [] if refer is None else [copy for copy in alike if _place(copy) not in refer]
            self._sources |= dict.fromkeys((copy.stream for copy in without), None)
            alike = [copy for copy in alike if copy.stream not in self._sources]
            readers = [of_table(reader, copy.reader) for copy in alike]
            definitions = reader.definitions(readers) if readers else []
        except ChannelError as error:
            _log.debug("the definitions are read one by one: %s", error)
            return
        self._sources |= {
            copy.stream: definition
            for copy, definition in zip(alike, definitions, strict=True)
            if definition is not None
        }

    def _planned(self, copy: TableCopy) -> Iterator[_Planned]:
        if not self._are_read:
            self._read_sources()
        if copy.stream not in self._sources:
            self._sources[copy.stream] = reader_of(copy).definition()
        source = self._sources[copy.stream]
        if source is None or not source.foreign_keys:
            return
        writer = writer_of(copy)
        is_same = isinstance(writer, SqlWriter) and writer.dialect.sql == source.system
        for key in source.foreign_keys:
            schema = key.schema or source.schema
            names = [(schema, key.table)]
            if schema == source.schema:
                names.append(("", key.table))
            to = next((self._copies[name] for name in names if name in self._copies), None)
            refusal = ""
            if to is None:
                refusal = f"it refers to {schema}.{key.table}, which this run does not copy"
            elif key.behind is None or not (is_same or _SHARED.fullmatch(key.behind)):
                refusal = "the target has no such kind"
            yield _Planned(key, to, refusal)

    def _drop(self, copy: TableCopy) -> None:
        accepted = [planned for planned in self._planned(copy) if not planned.refusal]
        if not accepted:
            return
        writer: SqlWriter[Any] = writer_of(copy)  # type: ignore[assignment]
        if not writer.dialect.adds_keys:
            return

        def work(session: Any) -> None:
            table = _there(writer, session)
            for planned in accepted:
                key = None if table is None else self._same(table, planned, session)
                if table is not None and key is not None:
                    with writer.database.altering(session):
                        session.execute(writer.dialect.dropped_key(_sql(writer, table), key.name))

        writer.run(TargetError, "drop foreign keys", work)

    def _add(self, copy: TableCopy, outcomes: Mapping[str, TableOutcome]) -> Iterator[str]:
        planned = list(self._planned(copy))
        if not planned:
            return
        yield from (
            f"{candidate.key.label}: {candidate.refusal}"
            for candidate in planned
            if candidate.refusal
        )
        writer: SqlWriter[Any] = writer_of(copy)  # type: ignore[assignment]
        for candidate in planned:
            if candidate.refusal or candidate.to is None:
                continue
            outcome = outcomes[candidate.to.stream]
            if outcome.state not in ("done", "unchanged"):
                yield f"{candidate.key.label}: table {candidate.to.stream} to which it refers is {outcome.state}"
                continue

            def work(session: Any, candidate: _Planned = candidate) -> str:
                table = _there(writer, session)
                if table is None or self._same(table, candidate, session) is not None:
                    return ""
                assert candidate.to is not None
                to = _place_in_target(candidate.to, session)
                if not writer.dialect.adds_keys:
                    product = writer.dialect.product
                    return f"{candidate.key.label} to {to[1]}: {product} adds none to a table that is there"
                statement = writer.dialect.added_key(
                    _sql(writer, table), candidate.key, writer.dialect.place(*to)
                )
                try:
                    with writer.database.altering(session):
                        session.execute(statement)
                except TargetError as error:
                    if Verdict.LOST in writer.database.verdict(error):
                        raise
                    return f"{candidate.key.label}: {error}. When its cause is removed, run {statement}"
                return ""

            if failure := writer.run(TargetError, "add foreign keys", work):
                yield failure

    def _same(
        self, table: TableDefinition, planned: _Planned, session: Any
    ) -> ForeignKeyDefinition | None:
        """The key of the target's table that is the planned one, whatever its name is."""
        assert planned.to is not None
        to = _place_in_target(planned.to, session)
        folded = [name.lower() for name in planned.key.columns]
        return next(
            (
                key
                for key in table.foreign_keys
                if [name.lower() for name in key.columns] == folded
                and (key.schema or table.schema, key.table) == to
            ),
            None,
        )


def _unnamed(copy: TableCopy) -> dict[str, Any]:
    return {name: value for name, value in copy.reader.items() if name != "dbtable"}


def _place(copy: TableCopy) -> tuple[str, str]:
    assert copy.table is not None
    return copy.table.schema, copy.table.name


def _place_in_target(copy: TableCopy, session: Any) -> tuple[str, str]:
    """The schema and the name of the table's copy. All copies of a run are in one database."""
    writer: SqlWriter[Any] = writer_of(copy)  # type: ignore[assignment]
    target = writer.database.locate(session)
    return target.schema, target.name


def _there(writer: SqlWriter[Any], session: Any) -> TableDefinition | None:
    table = writer.database.locate(session).table
    return None if table is None else writer.database.read_definition(session, table)


def _sql(writer: SqlWriter[Any], table: TableDefinition) -> str:
    return writer.dialect.place(table.schema, table.name)
