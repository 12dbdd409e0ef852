"""Folders of files that differ: order, case, types and NULLs of columns, names with dots, with and without a log.

The rows are those that pyarrow reads file by file, united here in plain Python. DuckDB unites them once more.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from spark_channel.errors import ChannelError
from tests.behaviour.differential.lengths import either_length, examples
from tests.connectors.files.helpers import read, write

Row = dict[str, Any]

INSIDE = pa.struct([("b", pa.int64())])
TYPES: dict[str, list[pa.DataType]] = {
    "id": [pa.int64(), pa.int64(), pa.int64(), pa.int32()],
    "a": [INSIDE],
    "a.b": [pa.int64()],
    "a.b.c": [pa.int64()],
    "Mixed": [pa.int64()],
    "t": [pa.string()],
    "t.list.element": [pa.string()],
}
COMPARED = ("id", "a.b", "a.b.c", "mixed")
TWINS = ("Twin", "tWin")
BASE = 1_700_000_000


@dataclass(frozen=True)
class Written:
    """One file: how it is written, and what is in it."""

    table: pa.Table
    own: bool
    group: int
    statistics: bool


@dataclass(frozen=True)
class Folder:
    files: tuple[Written, ...]

    @property
    def names(self) -> dict[str, None]:
        return dict.fromkeys(name for file in self.files for name in file.table.column_names)

    @property
    def types_differ(self) -> bool:
        types: dict[str, set[str]] = {}
        for field in (field for file in self.files for field in file.table.schema):
            types.setdefault(field.name.lower(), set()).add(str(field.type))
        return any(len(kinds) > 1 for kinds in types.values())

    @property
    def has_twins(self) -> bool:
        """Whether names that differ in case alone are two columns of a file."""
        return any(set(TWINS) <= set(file.table.column_names) for file in self.files)

    def key_of(self, name: str) -> str:
        return name if self.has_twins and name in TWINS else name.lower()

    def rows(self) -> list[Row]:
        keys = dict.fromkeys(self.key_of(name) for name in self.names)
        found = []
        for file in self.files:
            there = {self.key_of(name): name for name in file.table.column_names}
            found += [
                {key: row[there[key]] if key in there else None for key in keys}
                for row in file.table.to_pylist()
            ]
        return found


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    small = st.integers(0, 9)
    if kind == INSIDE:
        return st.fixed_dictionaries({"b": st.one_of(st.none(), st.integers(100, 109))})
    if kind == pa.string():
        return st.sampled_from(["", "x", "é", "z" * 40])
    if kind == pa.int64():
        return st.one_of(small, small, small, st.just(2**40))
    return small


@st.composite
def written_files(draw: st.DrawFn, names: Sequence[str], *, nullable_only: bool) -> Written:
    chosen = draw(st.permutations(names))
    chosen = chosen[: draw(st.integers(max(1, len(chosen) - 2), len(chosen)))]
    rows = draw(st.integers(1, 6))
    fields, columns = [], []
    for name in chosen:
        kind = draw(st.sampled_from(TYPES.get(name, [pa.int64()])))
        required = not nullable_only and draw(st.booleans())
        values = _values(kind)
        if not required:
            values = st.one_of(values, values, st.none())
        spelled = (
            name
            if name in TWINS
            else draw(st.sampled_from([name, name, name.upper(), name.title()]))
        )
        fields.append(pa.field(spelled, kind, not required))
        columns.append(pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind))
    return Written(
        pa.Table.from_arrays(columns, schema=pa.schema(fields)),
        own=draw(st.booleans()),
        group=draw(st.sampled_from([1, 2, 100])),
        statistics=draw(st.booleans()),
    )


@st.composite
def folders(draw: st.DrawFn, form: str) -> Folder:
    names = draw(st.lists(st.sampled_from(list(TYPES)), min_size=2, max_size=5, unique=True))
    if draw(st.integers(0, 4)) == 0:
        names = [*names, *TWINS]
    one = written_files(names, nullable_only=form == "orc")
    return Folder(tuple(draw(st.lists(one, min_size=2, max_size=5))))


def fill(folder: Folder, form: str, path: Path) -> None:
    path.mkdir()
    for number, file in enumerate(folder.files):
        if file.own:
            write(form, path, file.table, job=f"{path.name}-{number}")
            continue
        other = path / f"{number}.{form}"
        if form == "parquet":
            pq.write_table(
                file.table, other, row_group_size=file.group, write_statistics=file.statistics
            )
        elif form == "orc":
            orc.write_table(file.table, other, stripe_size=1024, batch_size=file.group)
        else:
            with pa.ipc.new_file(other, file.table.schema) as writer:
                writer.write_table(file.table, max_chunksize=file.group)
        os.utime(other, (BASE + number, BASE + number))


CONDITIONS: Mapping[str, Callable[[int], bool]] = {
    **{f"= {n}": lambda value, n=n: value == n for n in (0, 3, 9, 104)},  # type: ignore[misc]
    "> 4": lambda value: value > 4,
    "< 4": lambda value: value < 4,
    "<> 3": lambda value: value != 3,
    "IN (1, 8)": lambda value: value in (1, 8),
}


@st.composite
def conditions(draw: st.DrawFn, names: Sequence[str]) -> tuple[str, str, Callable[[Any], bool]]:
    """(name, operator and operand, whether a value is let through)"""
    name = draw(st.sampled_from(names))
    if draw(st.integers(0, 2)) == 0:
        negated = draw(st.booleans())
        return name, f"IS {'NOT ' * negated}NULL", lambda value: (value is None) != negated
    shown = draw(st.sampled_from(list(CONDITIONS)))
    holds = CONDITIONS[shown]
    return name, shown, lambda value: value is not None and holds(value)


def counted(rows: Sequence[Row], keys: Sequence[str]) -> Counter[str]:
    return Counter(repr([row[key] for key in keys]) for row in rows)


def _is_refused_on_purpose(error: ChannelError, folder: Folder, form: str) -> bool:
    """Whether the folder may be refused, and the error names one of its files or columns."""
    text = str(error).lower()
    is_named = f".{form}" in text or any(repr(name.lower()) in text for name in folder.names)
    return is_named and (folder.types_differ or folder.has_twins)


@pytest.mark.parametrize("form", ["parquet", "orc", "arrow"])
@either_length
def test_a_folder_has_the_rows_of_all_its_files(tmp_path: Path, form: str, length: str) -> None:
    numbers = itertools.count()
    outcomes: Counter[str] = Counter()

    @examples(length, quick=15)
    @given(folders(form), st.data())
    def check(folder: Folder, data: st.DataObject) -> None:
        path = tmp_path / str(next(numbers))
        fill(folder, form, path)
        right = folder.rows()
        if form == "parquet" and not folder.has_twins:
            _judge_the_union(folder, path, right)
        options: dict[str, Any] = {
            "mergeSchema": data.draw(st.sampled_from(["false", "true"])),
            # Files of other programs are not visible in a folder with a log.
            "useManifest": "true" if len({file.own for file in folder.files}) == 1 else "false",
        }
        advice = data.draw(st.integers(1, 7))
        asked = [name for name in folder.names if name.lower() in COMPARED]
        is_filtered, is_some = data.draw(st.tuples(st.booleans(), st.booleans()))
        if asked and is_filtered:
            name, shown, holds = data.draw(conditions(asked))
            options["where"] = f'"{name}" {shown}'
            right = [row for row in right if holds(row[folder.key_of(name)])]
        keys = sorted(dict.fromkeys(folder.key_of(name) for name in folder.names))
        if is_some:
            some = data.draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
            keys = sorted(some)
            options["columns"] = ",".join(some)
        try:
            table = read(form, path, advice, **options)
        except ChannelError as error:
            if not _is_refused_on_purpose(error, folder, form):
                raise
            outcomes["refused"] += 1
            return
        ours = [
            {folder.key_of(name): value for name, value in row.items()} for row in table.to_pylist()
        ]
        assert sorted(map(folder.key_of, table.column_names)) == keys
        assert counted(ours, keys) == counted(right, keys), options
        outcomes["equal"] += 1

    check()
    assert outcomes["equal"] > outcomes["refused"], "most folders are read"


def _judge_the_union(folder: Folder, path: Path, right: Sequence[Row]) -> None:
    """DuckDB, which knows nothing of the log, has the same rows in the files that are there."""
    files = [str(file) for file in path.rglob("*.parquet") if "_spark_channel" not in file.parts]
    with duckdb.connect(config={"threads": 1}) as connection:
        relation = connection.sql(f"SELECT * FROM read_parquet({files!r}, union_by_name=true)")
        theirs = relation.to_arrow_table()
    rows = [{name.lower(): value for name, value in row.items()} for row in theirs.to_pylist()]
    keys = sorted({name.lower() for name in folder.names})
    assert counted(rows, keys) == counted(right, keys)
