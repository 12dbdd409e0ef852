"""`createTable=auto|keys|full`: what the table that a write makes, or finds, takes of its source's definition."""

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.sql.catalog import TABLE, Table
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.plan import (
    NumberedColumn,
    SqlPlan,
    WriteTarget,
    numbered_columns,
)
from spark_channel.errors import OptionError

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import Defines, TableDefinition

__all__ = ["TableRemarks", "leave_builds", "numbers_of", "with_definition"]


@dataclass(frozen=True, slots=True)
class TableRemarks:
    """What is said to people of a new table: see `Writer`."""

    left_out: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()


def with_definition(
    database: WriteDatabase[S],
    session: S | None,
    plan: SqlPlan,
    place: WriteTarget,
    context: WriteContext,
) -> tuple[SqlPlan, TableRemarks]:
    """The plan, with what the table that is to be made gets of its source's definition. Changes nothing.

    Raises:
        OptionError: the rows do not come from one table.
    """
    options = database.options
    level = options.create_table
    is_dropped = context.overwrite and not options.truncate and database.traits.overwrite_drops
    if level not in ("auto", "keys", "full"):
        return plan, TableRemarks()
    if place.table is not None and not is_dropped:
        if level != "full":
            return plan, TableRemarks()
        return _as_source(database, session, plan, place.table, context), TableRemarks()
    keys_only = level != "full"
    definition = None if context.definition is None else context.definition(keys_only=keys_only)
    if definition is None and level == "auto":
        return plan, TableRemarks()
    if definition is None:
        raise OptionError(
            f"option 'createTable' got {level!r}, and the rows of {place.label} are not those of one table, "
            "unchanged, of a database that says how it is defined: set it to columns, or create the table yourself",
            option="createTable",
            got=level,
            takes="true, columns, false",
        )
    if level == "full" and plan.commit == "task":
        raise OptionError(
            f"option 'commit' got 'task', and with createTable=full {place.label} is not seen before it has "
            "its rows and indexes: omit 'commit', 'maxDirtyRows', 'maxDirtyFraction', or set createTable to keys",
            option="commit",
            got="task",
            takes="job",
        )
    if options.key_columns:  # they are the new table's primary key
        definition = definition.without_primary()
    whole = definition
    if context.stream is not None:  # its run adds keys to other tables when these have their rows
        definition = definition.with_keys_to_itself()
    lost: tuple[str, ...] = ()
    parts: set[str] = set()
    if level == "auto":
        from spark_channel.connectors.sql.definition import with_safe_key

        lengths = context.text_lengths
        definition, lost = with_safe_key(database.dialect, definition, plan.schema, lengths)
    new = database.new_table(
        session, place, definition, plan.schema, whole, is_full=level == "full"
    )
    if is_dropped and place.table is not None and session is not None:
        parts, lost_parts = _replaced(database, session, place, definition)
        lost += lost_parts
    lost += new.left_out
    if context.stream is not None:
        lost = tuple(part for part in lost if not part.startswith("foreign key "))
    new = replace(new, left_out=lost)
    new.remark(place.label)
    remarks = TableRemarks(new.left_out, new.renamed)
    if options.schema_after is not None or context.leaves_builds:
        if new.create and database.dialect.ddl_commits:
            raise OptionError(
                f"option 'schemaAfter' got {options.schema_after!r}, and {database.dialect.product} makes "
                f"{place.label} with all of its indexes, before its rows: omit the option",
                option="schemaAfter",
                got=options.schema_after,
            )
        new = new.without_builds(parts)
    builds = new.builds
    if options.schema_after is None:
        builds += tuple(step.what for step in new.later)
    if options.is_limited or new.later:
        in_file = options.schema_after is not None
        new.announce(place.label, "by a file of statements" if in_file else "by limit.builds")
    return replace(plan, new_table=new), replace(remarks, builds=builds)


def _replaced(
    database: WriteDatabase[S], session: S, place: WriteTarget, source: "TableDefinition"
) -> tuple[set[str], tuple[str, ...]]:
    """Of the table that is dropped: the steps of a new one like `source` that it had, and what is lost with it."""
    from spark_channel.connectors.sql.definition import parts_of_both

    assert place.table is not None
    old = None if place.table.is_view else database.read_definition(session, place.table)
    if old is None:
        return set(), ()
    parts, _ = parts_of_both(source, old)
    if any(label.startswith("primary key ") for label in parts):
        parts.add("primary key")
    _, lost_parts = parts_of_both(old, source)
    table = database.dialect.place(place.schema, place.name)
    on = database.dialect.indexed_table(place.name).replace(TABLE, table)
    lost = []
    for part in lost_parts:
        statement = database.dialect.stated(part, part.name, table, on)
        lost.append(
            f"{part.label}, which the table that is dropped had{': ' if statement else ''}{statement}"
        )
    return parts, tuple(lost)


def leave_builds(database: WriteDatabase[S], plan: SqlPlan, place: WriteTarget) -> None:
    """Write the statements that a user runs after this job into the file that `schemaAfter` names.

    Before a row moves, since a job that dies after it has published its rows could not do so.

    Raises:
        OptionError: the file cannot be written.
    """
    if database.options.schema_after is None or plan.new_table is None:
        return
    path, dialect = Path(database.options.schema_after), database.dialect
    if path.is_dir():
        path /= f"{re.sub(r'[^A-Za-z0-9_.-]', '_', place.label)}.sql"
    table = dialect.place(place.schema, place.name)
    lines = [
        f"-- {place.label}: run when it has its rows, each statement in a transaction of its own"
    ]
    for step in plan.new_table.later:
        lines += [f"{dialect.beside_writers(statement)};" for statement in step.on(table)]
    try:
        written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.replace(path)
    except OSError as error:
        raise OptionError(
            f"option 'schemaAfter' got {str(path)!r}, which cannot be written: {error.strerror}. Name a file of a "
            "folder that is there",
            option="schemaAfter",
            got=str(path),
        ) from error


def _as_source(
    database: WriteDatabase[S],
    session: S | None,
    plan: SqlPlan,
    table: Table,
    context: WriteContext,
) -> SqlPlan:
    """The plan, with what a table that is there does as its source: the columns that it computes, and numbers."""
    generated = [column.name for column in table.columns if column.generated]
    source = None if context.definition is None or not generated else context.definition()
    is_alike = source is not None and source.system == database.dialect.sql
    if session is None or not (is_alike or database.traits.has_numbers):
        return plan
    target = None if table.is_view else database.read_definition(session, table)
    if target is None:
        return plan
    pairs = [
        (name, source.column(name), target.column(name))
        for name in generated
        if source is not None and is_alike
    ]
    computed = tuple(
        name
        for name, theirs, ours in pairs
        if theirs is not None
        and ours is not None
        and (theirs.declared, theirs.generated) == (ours.declared, ours.generated)
    )
    return replace(
        plan, computed=computed, numbers=numbers_of(database, target, context.definition)
    )


def numbers_of(
    database: WriteDatabase[S], table: "TableDefinition", source: "Defines | None"
) -> tuple[NumberedColumn, ...]:
    """The columns of a table that is there which are to count on behind its rows; `source` is asked only for those."""
    if not (database.traits.has_numbers and any(column.sequence for column in table.columns)):
        return ()
    return numbered_columns(table, None if source is None else source())
