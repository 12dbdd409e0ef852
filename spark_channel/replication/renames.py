"""Columns of a followed table that were renamed, and new ones whose existing rows have values that no log has."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_channel.connectors import load_reader
from spark_channel.errors import SchemaError
from spark_channel.option_types import resolve_references
from spark_channel.replication.masks import mask_of
from spark_channel.replication.tables import TableCopy
from spark_channel.tunnel import Tunnel

__all__ = ["ColumnChanges", "changes_of", "columns_noted", "columns_unnoted", "note_columns"]

COLUMNS = "#columns "
"""Begins the notes of a tunnel that have the numbers of a table's columns, by which a renamed one is recognised."""


@dataclass(frozen=True)
class ColumnChanges:
    """What became of the columns that the target lacks. `renamed`: from the name that the target has to the new one.

    `filled`: columns whose existing rows may have values, which only reading them again brings.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    filled: tuple[str, ...] = ()


def changes_of(
    copy: TableCopy, known: Mapping[str, str], new: Sequence[str], gone: Sequence[str]
) -> ColumnChanges:
    """`new` are columns that the target lacks, `gone` those that only the target has; `known` are columns' numbers.

    Raises:
        SchemaError: a masked column has a new name, which no mask matches.
    """
    facts = load_reader(resolve_references(copy.reader))[0].column_facts()
    names = {number: name for name, number in known.items()}
    renamed, filled = {}, []
    for name in new:
        fact = facts.get(name)
        before = "" if fact is None else names.get(fact.number, "")
        if before and before != name:
            is_same = _hold_masked(copy, before, name)
            old = next((each for each in gone if each.lower() == before.lower()), None)
            if old is not None and is_same:
                renamed[old] = name
                continue
        # Where the catalog has no numbers, a column that is gone may be the one that is new.
        if fact is None or fact.filled or before or (not fact.number and gone):
            filled.append(name)
    return ColumnChanges(renamed, tuple(filled))


def _hold_masked(copy: TableCopy, before: str, name: str) -> bool:
    """Whether both names have one mask.

    Raises:
        SchemaError: only the old name has one.
    """
    masks = copy.options.columns or {}
    old, now = mask_of(masks, copy.stream, before), mask_of(masks, copy.stream, name)
    if now is None and old is not None and old.kind != "keep":
        raise SchemaError(
            f"column {before!r}, which has mask {old}, was renamed to {name!r}, which no mask matches: write a mask "
            f"for {name!r} into columns, or 'keep'"
        )
    return old == now


def columns_noted(tunnel: Tunnel, stream: str) -> dict[str, str]:
    """The numbers of a table's columns when its target got them; {} = they are not known."""
    found = tunnel.store.notes(tunnel.name).get(COLUMNS + stream)
    return {} if found is None else {str(name): str(n) for name, n in json.loads(found).items()}


def columns_unnoted(
    tunnel: Tunnel, copies: Collection[TableCopy], again: Collection[str]
) -> list[TableCopy]:
    """The tables whose numbers are not noted, or are of rows that are read `again`."""
    notes = tunnel.store.notes(tunnel.name)
    return [each for each in copies if each.stream in again or COLUMNS + each.stream not in notes]


def note_columns(tunnel: Tunnel, copy: TableCopy, handled: Sequence[str] | None = None) -> bool:
    """Note the numbers of all columns, or of those that the target has `handled`; False: the source has none."""
    facts = load_reader(resolve_references(copy.reader))[0].column_facts()
    numbers = {name: fact.number for name, fact in facts.items() if fact.number}
    if not numbers:
        return False
    if handled is not None:
        own = {name: numbers[name] for name in handled if name in numbers}
        before = columns_noted(tunnel, copy.stream)
        kept = {name: n for name, n in before.items() if n not in own.values()}
        numbers = {**kept, **own}
    tunnel.store.note(tunnel.name, COLUMNS + copy.stream, json.dumps(numbers))
    return True
