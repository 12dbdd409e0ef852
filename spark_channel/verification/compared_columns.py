"""The columns that are compared, the key among them, and the ranges that the key is cut into."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from spark_channel.errors import OptionError, SchemaError
from spark_channel.planning import Split
from spark_channel.verification.compare import Places
from spark_channel.verification.compared_tables import Side
from spark_channel.verification.forms import Form, common_form
from spark_channel.verification.ordinals import has_ordinals
from spark_channel.verification.report import TextForm

__all__ = ["Columns", "bucket_edges", "match_columns"]

_ONE_SPELLING = frozenset({"integer", "unsigned integer", "text", "date"})
"""Forms in which equal values are written in one way: not so a UUID, or a text in NFC."""


@dataclass(frozen=True)
class Columns:
    """The columns that are compared, with their names on both sides, and which of them are the key.

    Without a key all columns are it: rows are compared as a multiset.
    """

    names: tuple[tuple[str, str], ...]
    forms: tuple[Form, ...]
    key: tuple[int, ...] = ()
    excluded: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def key_names(self, side: int) -> tuple[str, ...]:
        return tuple(self.names[position][side] for position in self.key)

    @property
    def has_one_spelling(self) -> bool:
        """Whether equal keys are one literal on both sides, by which a database finds them."""
        return all(self.forms[position].name in _ONE_SPELLING for position in self.key)

    @property
    def has_ranges(self) -> bool:
        """Whether both sides have the rows in the order of whole numbers."""
        return bool(self.key) and has_ordinals(self.forms[self.key[0]])


def match_columns(
    source: Side,
    target: Side,
    *,
    key: Sequence[str] | None,
    exclude: Sequence[str],
    json: Sequence[str],
    text: TextForm,
    copied_only: bool = False,
) -> Columns:
    """Pair the columns by name, the exact one or else one that differs in case only; choose their forms and the key.

    Raises:
        SchemaError: a column of one side alone, or types that are not compared. OptionError: a name that is not there.
    """
    left_out = {name.lower() for name in exclude}
    compared = [
        [name for name in side.schema.names if name.lower() not in left_out]
        for side in (source, target)
    ]
    pairs = _pairs(*compared)
    lacks = {
        "target": [name for name in compared[0] if name not in dict(pairs)],
        "source": [name for name in compared[1] if name not in {b for _, b in pairs}],
    }
    if copied_only:
        exclude = (*exclude, *lacks.pop("source"))
    for role, names in lacks.items():
        if names:
            raise SchemaError(
                f"the {role} lacks column {', '.join(map(repr, names))}, so the rows are not the same. To compare the "
                "other columns, name those to leave out with 'exclude'"
            )
    if not pairs:
        raise SchemaError("no column is left to compare: option 'exclude' leaves all out")
    json_positions = _places(pairs, json, "json")
    forms = []
    for position, (one, other) in enumerate(pairs):
        form = common_form(
            source.schema.field(one).type, target.schema.field(other).type, one, text
        )
        is_json = position in json_positions or (one in source.json and other in target.json)
        if is_json and form.name.startswith("text"):
            form = Form("json")
        elif position in json_positions:
            raise OptionError(
                f"option 'json' names column {one!r}, which is compared as {form}; it takes columns of text",
                option="json",
                got=one,
            )
        forms.append(form)
    places, notes = _key(source, target, pairs, key)
    if source.steps.steps:
        notes = (
            *notes,
            "the job's transformers ran on the source's rows; rows that they drop are not compared",
        )
    return Columns(tuple(pairs), tuple(forms), places, tuple(exclude), notes)


def _pairs(source: Sequence[str], target: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for name in source:
        alike = [candidate for candidate in target if candidate.lower() == name.lower()]
        if name in alike:
            pairs.append((name, name))
        elif len(alike) == 1 and alike[0] not in source:
            pairs.append((name, alike[0]))
    return pairs


def _places(pairs: Sequence[tuple[str, str]], names: Sequence[str], option: str) -> list[int]:
    """Where columns are that an option names.

    Raises:
        OptionError: one is not there.
    """
    positions = []
    for name in names:
        position = next((n for n, pair in enumerate(pairs) if name in pair), None)
        if position is None:
            position = next(
                (n for n, pair in enumerate(pairs) if name.lower() == pair[0].lower()), None
            )
        if position is None:
            takes = ", ".join(one for one, _ in pairs)
            raise OptionError(
                f"option {option!r} names column {name!r}; the tables have {takes}",
                option=option,
                got=name,
                takes=takes,
            )
        positions.append(position)
    return positions


def _key(
    source: Side, target: Side, pairs: Sequence[tuple[str, str]], named_key: Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if named_key is not None:
        return tuple(dict.fromkeys(_places(pairs, named_key, "key"))), ()
    for number, side in ((1, target), (0, source)):
        places = [
            next((n for n, pair in enumerate(pairs) if pair[number] == name), -1)
            for name in side.key
        ]
        if places and -1 not in places:
            return tuple(places), ()
    note = (
        "no key is known, so rows are compared as wholes: a changed row is one missing row and one extra row, and "
        "nothing can be repaired. Name the columns of a key with 'key'"
    )
    return (), (note,)


def bucket_edges(
    sides: Sequence[Side], columns: Columns, splits: Sequence[Sequence[Split]], most: int
) -> tuple[Places, tuple[int, int]] | None:
    """The first whole number of each bucket of the key's first column but the first; the least and the largest key.

    None = it has no ranges. They are even between the bounds of the readers' splits, which have about equal rows.
    """
    if not columns.has_ranges:
        return None
    names = [columns.names[columns.key[0]][number] for number in (0, 1)]
    limits_of_sides = [side.limits_of(name) for side, name in zip(sides, names, strict=True)]
    limits = [limit for limit in limits_of_sides if limit is not None]
    if not limits:
        return None
    least, largest = min(limit[0] for limit in limits), max(limit[1] for limit in limits)
    bounds = [
        {bound for split in side_splits if (bound := _bound(split, name)) is not None}
        for name, side_splits in zip(names, splits, strict=True)
    ]
    # The bounds of one side only: small ranges between those of two equal tables would take half of the buckets.
    inner = {bound for bound in max(bounds, key=len) if least < bound <= largest}
    points = [least, *sorted(inner), largest + 1]
    share = max(1, most // (len(points) - 1))
    edges: set[int] = set()
    for lower, upper in pairwise(points):
        count = min(share, upper - lower)
        edges.update(lower + (upper - lower) * number // count for number in range(count))
    ordered = sorted(edge for edge in edges if -(1 << 63) <= edge < 1 << 63)
    return np.array(ordered, np.int64), (least, largest)


def _bound(split: Split, name: str) -> int | None:
    """Where a range of one column of whole numbers begins."""
    params = split.params
    if params.get("kind") != "range" or params.get("key") != [name] or not params.get("lower"):
        return None
    try:
        return int(params["lower"][0])
    except (TypeError, ValueError):
        return None
