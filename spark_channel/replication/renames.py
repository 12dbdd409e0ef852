"""Columns of a followed table that were renamed, and new ones whose existing rows have values that no log has."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_channel.connectors.base.contract import ColumnFact
from spark_channel.connectors.sql.feed.log_tables import OWN_COLUMNS
from spark_channel.errors import OptionError, SchemaError
from spark_channel.replication.masks import mask_of, state_of_masks
from spark_channel.replication.table_run import reader_of
from spark_channel.replication.tables import TableCopy
from spark_channel.tunnel import Tunnel

__all__ = [
    "ColumnChanges",
    "changes_of",
    "columns_noted",
    "columns_unnoted",
    "filled_of",
    "has_other_names",
    "is_made_again",
    "key_of",
    "masks_of_key",
    "note_columns",
    "note_masks",
    "note_names",
    "note_rows",
    "other_columns",
    "rewritten",
]

COLUMNS = "#columns "
"""Begins the notes of a tunnel that have the numbers of a table's columns, by which a renamed one is recognised."""
NAMES = "#names "
"""Begins the notes that have the names of a table's columns, if the source has no numbers of them."""
TYPES = "#types"
"""In such a note, what it says of the columns' types."""
ROWS = "#rows "
"""Begins the notes that have what `ColumnFact` says of the rows that the target gets: where they are, and of which
columns."""
MASKS = "#masks "
"""Begins the notes that have what masks make of a table's key."""


@dataclass(frozen=True)
class ColumnChanges:
    """What became of columns. `renamed`: from the name that the target has to the new one.

    `filled`: columns in which existing rows may have other values than in the target: to be read again.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    filled: tuple[str, ...] = ()


def changes_of(
    copy: TableCopy,
    noted_numbers: Mapping[str, str],
    columns: Collection[str],
    new: Collection[str] = (),
    gone: Collection[str] = (),
) -> ColumnChanges:
    """`columns` arrive, of which the target lacks the `new` ones; `gone` are those that only the target has.

    `noted_numbers`: the numbers of columns that the target has rows of.

    Raises:
        SchemaError: a masked column has a new name, or may have it, which no mask matches.
    """
    facts = reader_of(copy).column_facts()
    if _is_apart(noted_numbers, facts):
        noted_numbers = {}
    names = {number: name for name, number in noted_numbers.items()}
    renamed, filled = {}, []
    for name in columns:
        fact = facts.get(name)
        before = "" if fact is None else names.get(fact.number, "")
        is_same = not before or before == name or _check_masked(copy, before, name)
        if name not in new:
            # The name of another column now: the rows that are there have the values of the one before.
            if fact is not None and fact.number != noted_numbers.get(name, fact.number):
                filled.append(name)
            continue
        if before and before != name:
            old = next((other for other in gone if other.lower() == before.lower()), None)
            if old is not None and is_same:
                renamed[old] = name
                continue
        elif fact is None or before or not noted_numbers:
            for masked in _hidden(
                copy, {**dict.fromkeys(gone, ""), **noted_numbers}, columns, facts
            ):
                _check_masked(copy, masked, name)
        # Where no numbers are known, a column that was dropped may be the new one.
        if fact is None or fact.filled or before or (not noted_numbers and gone):
            filled.append(name)
    return ColumnChanges(renamed, tuple(filled))


def _hidden(
    copy: TableCopy,
    noted_numbers: Mapping[str, str],
    columns: Collection[str],
    facts: Mapping[str, ColumnFact],
) -> list[str]:
    """The masked columns that do not arrive by their names, and may by another one."""
    here = {column.lower() for column in columns}
    hidden = []
    for name, number in noted_numbers.items():
        mask = mask_of(copy.options.columns or {}, copy.stream, name)
        if mask is None or mask.kind == "keep" or name.lower() in here:
            continue
        if mask.kind != "drop" or name not in facts or facts[name].number != number:
            hidden.append(name)
    return hidden


def _check_masked(copy: TableCopy, before: str, name: str) -> bool:
    """Whether both names have one mask.

    Raises:
        SchemaError: only the old name has one.
    """
    masks = copy.options.columns or {}
    old, now = mask_of(masks, copy.stream, before), mask_of(masks, copy.stream, name)
    if now is None and old is not None and old.kind != "keep":
        raise SchemaError(
            f"column {before!r}, which has mask {old}, was renamed to {name!r}, which no mask matches, as far as the "
            f"catalog shows: write a mask for {name!r} into columns, or 'keep'"
        )
    return old == now


def columns_noted(tunnel: Tunnel, stream: str) -> dict[str, str]:
    """The numbers of a table's columns when its target got them; {} = they are not known."""
    noted = tunnel.store.note_of(tunnel.name, COLUMNS + stream)
    return {} if noted is None else {str(name): str(n) for name, n in json.loads(noted).items()}


def _is_apart(noted_numbers: Mapping[str, str], facts: Mapping[str, ColumnFact]) -> bool:
    return not {fact.number for fact in facts.values()}.intersection(noted_numbers.values())


def is_made_again(noted_numbers: Mapping[str, str], facts: Mapping[str, ColumnFact]) -> bool:
    """Whether another table has the name of the one whose columns are noted, which was dropped."""
    return bool(noted_numbers) and _is_apart(noted_numbers, facts)


def rewritten(
    tunnel: Tunnel, copy: TableCopy, facts: Mapping[str, ColumnFact], noted: str | None
) -> tuple[str, ...]:
    """The columns that a statement has altered which rewrote the table, or whose type it has: of their values, the log
    has no change.

    `noted`: by `note_rows`. A table that was emptied or vacuumed is elsewhere too, without an altered column.
    """
    now = _rows_of(facts)
    if not now or noted == now:
        return ()
    was, is_now = ({} if text is None else json.loads(text) for text in (noted, now))
    types = was.get(TYPES, {})
    read_as = {name for name, fact in facts.items() if _differs(types.get(fact.number, {}), fact)}
    altered = {name for name, fact in facts.items() if was.get(fact.number) != fact.altered}
    if noted is None or was[ROWS] == is_now[ROWS]:
        altered = set()
    if not altered | read_as:
        note_rows(tunnel, copy, facts)
    return tuple(name for name in facts if name in altered | read_as)


def _differs(was: Mapping[str, str], fact: ColumnFact) -> bool:
    """Whether a part of the column's type was another one: values of before are read otherwise now."""
    return any(was.get(part, current) != current for part, current in fact.types.items())


def note_rows(tunnel: Tunnel, copy: TableCopy, facts: Mapping[str, ColumnFact]) -> None:
    """Note what `rewritten` compares, before the rows are read that the target gets."""
    now = _rows_of(facts)
    if now:
        tunnel.store.note(tunnel.name, ROWS + copy.stream, now)


def _rows_of(facts: Mapping[str, ColumnFact]) -> str:
    """ "" = the source has no such facts."""
    places = {fact.rows for fact in facts.values()}
    if not all(places):
        return ""
    types = {fact.number: dict(sorted(fact.types.items())) for fact in facts.values() if fact.types}
    altered = {fact.number: fact.altered for fact in facts.values()}
    return json.dumps({ROWS: " ".join(places), TYPES: types, **altered})


def other_columns(tunnel: Tunnel, copy: TableCopy, names: Collection[str]) -> tuple[str, ...]:
    """The columns that arrive and are not those that had their `names` when the target got them.

    They are not new to the target: two that swapped their names, or one that was dropped and added.

    Raises:
        SchemaError: as `changes_of`.
    """
    noted_numbers = columns_noted(tunnel, copy.stream)
    if not noted_numbers:
        return ()
    return changes_of(copy, noted_numbers, sorted(set(names).difference(OWN_COLUMNS))).filled


def filled_of(
    copy: TableCopy, noted_numbers: Mapping[str, str], facts: Mapping[str, ColumnFact]
) -> list[str]:
    """The columns in which existing rows may have other values than in the target, and which may get no change for
    long: new ones, and those whose name another column had.

    Raises:
        SchemaError: as `changes_of`.
    """
    names = {number: name for name, number in noted_numbers.items()}
    columns = []
    for name, fact in facts.items() if noted_numbers else ():
        mask = mask_of(copy.options.columns or {}, copy.stream, name)
        before = names.get(fact.number)
        if mask is not None and mask.kind == "drop":
            continue
        if before is None and fact.filled and copy.contract.columns == "evolve":
            columns.append(name)
        elif before not in (None, name) and name in noted_numbers:
            _check_masked(copy, str(before), name)
            columns.append(name)
    return columns


def has_other_names(
    noted_numbers: Mapping[str, str], noted: str | None, facts: Mapping[str, ColumnFact]
) -> bool:
    """Whether the target may have columns of other names, by their numbers, or by what `note_names` has `noted`."""
    numbers = {name: fact.number for name, fact in facts.items() if fact.number}
    if not numbers:
        return noted != _names_of(facts)
    return any(
        name not in noted_numbers and n in noted_numbers.values() for name, n in numbers.items()
    )


def note_names(tunnel: Tunnel, copy: TableCopy, facts: Mapping[str, ColumnFact]) -> None:
    """Note the names of columns that the target has, if the source has no numbers of them."""
    if not any(fact.number for fact in facts.values()):
        tunnel.store.note(tunnel.name, NAMES + copy.stream, _names_of(facts))


def _names_of(facts: Mapping[str, ColumnFact]) -> str:
    return json.dumps(sorted(facts))


def columns_unnoted(
    tunnel: Tunnel, copies: Collection[TableCopy], again: Collection[str]
) -> list[TableCopy]:
    """The tables whose numbers are not noted, or are of rows that are read `again`."""
    notes = tunnel.store.notes(tunnel.name)
    return [copy for copy in copies if copy.stream in again or COLUMNS + copy.stream not in notes]


def note_columns(
    tunnel: Tunnel,
    copy: TableCopy,
    handled: Sequence[str] | None = None,
    *,
    read: Mapping[str, ColumnFact] | None = None,
) -> bool:
    """Note the numbers of all columns, or of those that the target has `handled`; False: the source has none.

    `read`: the catalog's facts of before the rows were read again. Without `handled` they are read afterwards.
    """
    facts = reader_of(copy).column_facts() if read is None else read
    if read is not None or handled is None:
        note_rows(tunnel, copy, facts)
    numbers = {name: fact.number for name, fact in facts.items() if fact.number}
    if not numbers:
        return False
    if handled is not None:
        handled_numbers = {name: numbers[name] for name in handled if name in numbers}
        before = columns_noted(tunnel, copy.stream)
        other_numbers = {name: n for name, n in before.items() if n not in handled_numbers.values()}
        numbers = {**other_numbers, **handled_numbers}
    tunnel.store.note(tunnel.name, COLUMNS + copy.stream, json.dumps(numbers))
    return True


def masks_of_key(copy: TableCopy, key: Sequence[str]) -> str:
    """What masks make of a table's key: with others, the target's rows are not found by their keys.

    Raises:
        OptionError: the key of a mask is missing or too short.
    """
    masks = {name: mask_of(copy.options.columns or {}, copy.stream, name) for name in key}
    return state_of_masks({name: str(mask) for name, mask in masks.items() if mask is not None})


def note_masks(
    tunnel: Tunnel, copies: Collection[TableCopy], keys: Mapping[str, Sequence[str]]
) -> None:
    """Note `masks_of_key` of each table, when the target's rows have these masks or are to be read again."""
    notes = tunnel.store.notes(tunnel.name)
    for copy in copies:
        now, name = masks_of_key(copy, keys[copy.stream]), MASKS + copy.stream
        if notes.get(name) != now:
            tunnel.store.note(tunnel.name, name, now)


def key_of(copy: TableCopy) -> tuple[str, ...]:
    """The columns that identify a row of the table.

    Raises:
        OptionError: it has none, or a mask makes them alike.
    """
    key = copy.options.primary_key or reader_of(copy).primary_key()
    if not key:
        raise OptionError(
            f"{copy.stream} has no primary key, so its changes do not name their rows: give it one, or use mode full"
        )
    for name in key:
        mask = mask_of(copy.options.columns or {}, copy.stream, name)
        if mask is not None and mask.kind not in ("keep", "hmac", "sha256"):
            raise OptionError(
                f"primary key {name!r} has mask {mask}, which can make two keys equal: use hmac or sha256"
            )
    return key
