"""`onSchemaChange=evolve`: a table gets the columns of the rows that it lacks, and types that are wide enough."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Generic

import pyarrow as pa

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.base.feed import row_fields
from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.connectors.sql.write.target_columns import added_columns, wider_columns
from spark_channel.errors import ChannelError, TargetError

__all__ = ["Evolution", "with_wider"]


class Evolution(Generic[S]):
    """How the table changes for `rows`, in one write."""

    def __init__(self, database: WriteDatabase[S], context: WriteContext, rows: pa.Schema) -> None:
        self._database, self._context, self._rows = database, context, rows
        self._dialect, self._options = database.dialect, database.options

    def new_fields(self, place: WriteTarget) -> list[pa.Field]:
        """The columns that `onSchemaChange=evolve` adds to the table."""
        table = self._evolving(place)
        if table is None:
            return []
        names = [column.name for column in table.columns]
        fields = row_fields(self._rows) if self._options.write_mode == "apply" else self._rows
        return [field for field in fields if self._dialect.same_name(field.name, names) is None]

    def wider(self, place: WriteTarget) -> list[tuple[Column, Column]]:
        """The columns that `onSchemaChange=evolve` widens: (now, afterwards)."""
        table = self._evolving(place)
        if table is None:
            return []
        return wider_columns(
            self._dialect, table, self._rows, self._options, self._context.text_lengths
        )

    def _looser(self, place: WriteTarget) -> list[str]:
        """The columns that `onSchemaChange=evolve` lets be NULL: the rows lack them, or their source has NULL there.

        Only of a table that takes its definition from the source: NOT NULL of others is not the source's.
        """
        follows = self._options.create_table in ("auto", "keys", "full")
        table = self._evolving(place) if follows else None
        keys = {*(self._options.key_columns or ()), *(() if table is None else table.primary)}
        strict = [
            column
            for column in (() if table is None else table.columns)
            if column.not_null and column.name not in keys and not column.generated
        ]
        if table is None or not strict:
            return []
        fields = row_fields(self._rows) if self._options.write_mode == "apply" else self._rows
        names = [column.name for column in table.columns]
        sources = {self._dialect.same_name(field.name, names): field.name for field in fields}
        source = (
            None if self._context.definition is None else self._context.definition(keys_only=True)
        )
        looser = []
        for column in strict:
            if column.name not in sources:
                if not self._dialect.is_filled(table, column):
                    looser.append(column.name)
                continue
            theirs = None if source is None else source.column(sources[column.name])
            if theirs is not None and not theirs.not_null:
                looser.append(column.name)
        return looser

    def _evolving(self, place: WriteTarget) -> Table | None:
        """The table, if its definition may change for the rows."""
        table, is_replaced = place.table, self._context.overwrite and not self._options.truncate
        if self._options.on_schema_change != "evolve" or table is None or is_replaced:
            return None
        return None if table.is_view else table

    def match_without(
        self, session: S, plan: SqlPlan, place: WriteTarget, fields: Sequence[pa.Field]
    ) -> SqlPlan:
        """The plan for the columns that the table has. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit, or the table cannot get the columns `fields`.
        """
        if not fields:
            return self._database.match(session, plan, place, self._context)
        added_columns(self._dialect, plan.schema, fields, self._options)
        names = {field.name for field in fields}
        rows = pa.schema([field for field in plan.schema if field.name not in names])
        native = self._context.native
        if native is not None:
            numbers = [
                number for number, name in enumerate(native.schema.names) if name not in names
            ]
            native = replace(
                native,
                schema=pa.schema([native.schema.field(number) for number in numbers]),
                types=tuple(native.types[number] for number in numbers),
            )
        return self._database.match(
            session, replace(plan, schema=rows), place, replace(self._context, native=native)
        )

    def evolved(self, session: S, plan: SqlPlan, place: WriteTarget) -> WriteTarget:
        """The place, whose table has all columns of the rows, wide enough.

        One nullable column more changes no row, and a wider type no value, so no claim guards it: whoever does it, and
        whether its rows follow, each run finds it there. Before the rows, because some databases commit with DDL; and
        only if all else of the rows fits.
        """
        fields, wider, looser = (
            self.new_fields(place),
            self.wider(place),
            self._looser(place),
        )
        if not fields and not wider and not looser:
            return place
        fitting = _without_not_null(with_wider(place, wider), looser)
        self.match_without(session, plan, fitting, fields)
        table = self._dialect.place(place.schema, place.name)
        for column in added_columns(self._dialect, plan.schema, fields, self._options):
            name = column.name
            statement = f"ALTER TABLE {table} ADD COLUMN {self._dialect.definition(column)}"

            def lacks(now: WriteTarget, name: str = name) -> bool:
                return any(field.name == name for field in self.new_fields(now))

            reason = f"Column {name!r} of the rows is not in table {place.label!r}, and option 'onSchemaChange' adds it"
            self._change(session, statement, lacks, reason)
        for column, _ in wider:
            self._widen(session, place, column.name)
        for name in looser:
            self._loosen(session, place, name)
        return replace(place, table=self._database.locate(session).table)

    def _widen(self, session: S, place: WriteTarget, name: str) -> None:
        """Widen one column. It is looked at again, where no other run can change it meanwhile: of two that widen it
        to different types, the later one could undo what the earlier one did, and round values.
        """
        table, reason = self._dialect.place(place.schema, place.name), ""
        column, declared = Column(name, ""), ""

        def narrow(now: WriteTarget) -> tuple[Column, Column] | None:
            return next((pair for pair in self.wider(now) if pair[0].name == name), None)

        try:
            with self._database.altering(session, place):
                pair = narrow(self._database.locate(session))
                if pair is None:
                    return
                column, declared = pair[0], pair[1].declared
                reason = (
                    f"Column {name!r} of table {place.label!r} is {column.declared}, "
                    f"the rows need {declared}, and option 'onSchemaChange' widens it"
                )
                statement = self._dialect.retype(session, table, column, declared)
                if statement is None:
                    raise TargetError(
                        "the server shows its definition in a form that cannot be repeated without loss"
                    )
                session.execute(statement)
        except TargetError as error:
            if not reason or Verdict.LOST in self._database.verdict(error):
                raise
            advice = (
                "grant the right, or have the table's owner run"
                if Verdict.DENIED in self._database.verdict(error)
                else "take away what is in its way, or make the table again, or run"
            )
            statement = self._dialect.retyped(table, column, self._dialect.instead(error, declared))
            keeps = ""
            if name in self._context.text_lengths:
                _, _, size = column.declared.partition("(")
                keeps = f". To keep its type, set option 'createTableColumnTypes' to {name} VARCHAR({size}"
            raise TargetError(
                f"{error}. {reason}: {advice} {statement}{keeps}"
            ) from error.__cause__

    def _loosen(self, session: S, place: WriteTarget, name: str) -> None:
        """Let one column be NULL, as its source does; not if another run has done it meanwhile."""
        table = self._dialect.place(place.schema, place.name)
        assert place.table is not None
        column = next(column for column in place.table.columns if column.name == name)
        reason = (
            f"Column {name!r} of table {place.label!r} is NOT NULL, its source has NULL there or no such column, "
            "and option 'onSchemaChange' follows it"
        )
        try:
            with self._database.altering(session, place):
                if name in self._looser(self._database.locate(session)):
                    for statement in self._dialect.loosen(session, table, column):
                        session.execute(statement)
        except TargetError as error:
            if Verdict.LOST in self._database.verdict(error):
                raise
            advice = "grant the right, or have the table's owner run"
            if Verdict.DENIED not in self._database.verdict(error):
                advice = "take away what is in its way, or run"
            statement = self._dialect.nullable(table, column)
            raise TargetError(f"{error}. {reason}: {advice} {statement}") from error.__cause__

    def _change(
        self, session: S, statement: str, is_left: Callable[[WriteTarget], bool], reason: str
    ) -> None:
        """Run a statement that another run may have run meanwhile."""
        try:
            with self._database.altering(session):
                session.execute(statement)
        except ChannelError as error:
            if Verdict.LOST in self._database.verdict(error):
                raise
            if not is_left(self._database.locate(session)):
                return
            if not isinstance(error, TargetError) or Verdict.DENIED not in self._database.verdict(
                error
            ):
                raise
            raise TargetError(
                f"{error}. {reason}: grant the right, or have the table's owner run {statement}"
            ) from error.__cause__


def _without_not_null(place: WriteTarget, names: Collection[str]) -> WriteTarget:
    """The place as if these of its columns took NULL."""
    table = place.table
    if not names or table is None:
        return place
    columns = tuple(
        replace(column, not_null=False) if column.name in names else column
        for column in table.columns
    )
    return replace(place, table=replace(table, columns=columns))


def with_wider(place: WriteTarget, wider: Sequence[tuple[Column, Column]]) -> WriteTarget:
    """The place as if its columns had been widened."""
    table = place.table
    if not wider or table is None:
        return place
    types = {old.name: new for old, new in wider}
    columns = tuple(types.get(column.name, column) for column in table.columns)
    return replace(place, table=replace(table, columns=columns))
