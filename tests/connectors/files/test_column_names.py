"""Columns of files are found by name: spelled exactly so, else in another case, one to one."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.errors import SchemaError, SourceError
from tests.connectors.files.helpers import FORMATS, read, read_all, reader_of, write

NESTED = [form for form in FORMATS if form != "csv"]
WHOLE = pa.int64()


def file_of(form: str, path: Path, table: pa.Table) -> None:
    """A file that no log describes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "orc":
        orc.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        rows = [table.schema.names, *(row.values() for row in table.to_pylist())]
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))


def numbers(**columns: int) -> pa.Table:
    return pa.table({name: pa.array([value], WHOLE) for name, value in columns.items()})


def rows_as(form: str, path: Path, *fields: tuple[str, pa.DataType], **options: Any) -> list[Any]:
    """The rows with a schema that a user gives."""
    given = pa.schema([pa.field(name, kind) for name, kind in fields])
    return list(read_all(reader_of(form, path, **options).with_schema(given)).to_pylist())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("logged", [True, False])
def test_a_given_schema_in_another_case(form: str, logged: bool, tmp_path: Path) -> None:
    table = numbers(ID=1, Name=2, rest=3)
    if logged:
        write(form, tmp_path / "t", table)
    else:
        file_of(form, tmp_path / "t" / "1", table)

    found = rows_as(form, tmp_path / "t", ("name", WHOLE), ("id", WHOLE), where="nAME = 2")

    assert found == [{"name": 2, "id": 1}]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("logged", [True, False])
def test_columns_that_differ_in_case_alone_are_two(form: str, logged: bool, tmp_path: Path) -> None:
    table = numbers(id=1, ID=2)
    if logged:
        write(form, tmp_path / "t", table)
    else:
        file_of(form, tmp_path / "t" / "1", table)

    assert read(form, tmp_path / "t").to_pylist() == [{"id": 1, "ID": 2}]
    assert read(form, tmp_path / "t", columns="ID").to_pylist() == [{"ID": 2}]
    assert rows_as(form, tmp_path / "t", ("ID", WHOLE)) == [{"ID": 2}]
    two = rows_as(form, tmp_path / "t", ("Id", WHOLE), ("id", WHOLE))
    assert two == [{"Id": 2, "id": 1}]
    with pytest.raises((SchemaError, SourceError), match=r"'Id'.*'id' or 'ID'"):
        rows_as(form, tmp_path / "t", ("Id", WHOLE))


@pytest.mark.parametrize("form", NESTED)
def test_a_file_with_one_of_two_such_columns_gives_no_value_twice(
    form: str, tmp_path: Path
) -> None:
    file_of(form, tmp_path / "t" / "1", numbers(id=1, ID=2))
    file_of(form, tmp_path / "t" / "2", numbers(ID=3))
    both = [{"id": 1, "ID": 2}, {"id": None, "ID": 3}]

    assert read(form, tmp_path / "t", 1).to_pylist() == both
    assert read(form, tmp_path / "t", 1, columns="id").to_pylist() == [{"id": 1}, {"id": None}]

    file_of(form, tmp_path / "t" / "3", numbers(Id=4))
    with pytest.raises((SchemaError, SourceError), match="'id' may both be 'Id'"):
        read(form, tmp_path / "t", 1)


@pytest.mark.parametrize("form", NESTED)
def test_fields_inside_are_found_in_another_case(form: str, tmp_path: Path) -> None:
    inner = pa.struct([("A", WHOLE), ("b", WHOLE)])
    kinds = {"S": inner, "l": pa.list_(inner)}
    rows = [{"S": {"A": 1, "b": 2}, "l": [{"A": 3, "b": 4}]}, {"S": None, "l": []}]
    file_of(form, tmp_path / "t", pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))))
    given = pa.struct([("B", WHOLE), ("a", WHOLE)])

    found = rows_as(form, tmp_path / "t", ("s", given), ("l", pa.list_(given)))

    assert found == [{"s": {"B": 2, "a": 1}, "l": [{"B": 4, "a": 3}]}, {"s": None, "l": []}]


def lines(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_each_line_of_json_has_its_own_spelling(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t", '{"ID": 1}', '{"id": 2}', '{"Id": 3, "x": 0}', '{"id": 4, "ID": 5}'
    )

    assert [row["id"] for row in rows_as("json", path, ("id", WHOLE))] == [1, 2, 3, 4]


def test_lines_of_json_are_read_by_block_in_whatever_case(tmp_path: Path) -> None:
    rows = [*(f'{{"ID": {n}}}' for n in range(9000)), *(f'{{"id": {n}}}' for n in range(9000))]
    rows += [f'{{"id": {n}, "ID": -1}}' for n in range(9000)]
    path = lines(tmp_path / "t", *rows)

    reader = reader_of("json", path).with_schema(pa.schema([("id", WHOLE)]))
    reader.fetch_size = FetchSize(rows=1000)

    assert read_all(reader).column("id").to_pylist() == [*range(9000)] * 3


@pytest.mark.parametrize(
    "line", ['{"GRÖSSE": 1}', '{"gr\\u00f6sse": 1}', '{"Größe": 0, "grössE": 1}', '{"grösse"  : 1}']
)
def test_names_outside_ascii_and_with_escapes(line: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "t", line)

    assert rows_as("json", path, ("grösse", WHOLE), encoding="utf-8") == [{"grösse": 1}]


def test_a_line_of_json_that_may_mean_two_fields_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "t", '{"id": 1}', '{"ID": 2, "Id": 3}')

    with pytest.raises(SourceError, match=r"line 2: .*'id'.*'ID' or 'Id'"):
        rows_as("json", path, ("id", WHOLE))


def test_a_text_that_looks_like_a_field_is_none(tmp_path: Path) -> None:
    path = lines(tmp_path / "t", '{"id": 1, "x": "ID"}', '{"id": null, "x": "{\\"ID\\": 5}"}')

    assert rows_as("json", path, ("id", WHOLE)) == [{"id": 1}, {"id": None}]


@pytest.mark.parametrize("form", FORMATS)
def test_columns_are_in_the_order_of_the_appends(form: str, tmp_path: Path) -> None:
    names = [chr(ord("a") + number) for number in range(6)]
    for number, name in reversed(list(enumerate(names))):
        write(form, tmp_path, numbers(key=number, **{name: number}), job=name)

    found = read(form, tmp_path)

    assert found.schema.names == ["key", *reversed(names)]
    assert all(found.schema.field(name).nullable for name in names)
    keys = {row["key"]: row for row in found.to_pylist()}
    assert all(keys[number][name] == number for number, name in enumerate(names))


@pytest.mark.parametrize("form", FORMATS)
def test_appends_whose_names_differ_in_case_alone_have_one_column(
    form: str, tmp_path: Path
) -> None:
    write(form, tmp_path, numbers(Id=1), job="one")
    write(form, tmp_path, numbers(ID=2), job="two")

    assert sorted(row["Id"] for row in read(form, tmp_path).to_pylist()) == [1, 2]


@pytest.mark.parametrize("form", FORMATS)
def test_two_directories_with_logs_have_the_columns_of_both(form: str, tmp_path: Path) -> None:
    write(form, tmp_path / "1", numbers(a=1, b=2))
    write(form, tmp_path / "2", numbers(a=3, c=4))
    paths = json.dumps([str(tmp_path / "1"), str(tmp_path / "2")])
    reader, _ = load_reader({"reader": form, "paths": paths})

    assert read_all(reader).to_pylist() == [
        {"a": 1, "b": 2, "c": None},
        {"a": 3, "b": None, "c": 4},
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_the_files_of_others_beside_a_log_may_hold_null(form: str, tmp_path: Path) -> None:
    never = pa.schema([pa.field("a", WHOLE, nullable=False), pa.field("b", WHOLE)])
    write(form, tmp_path / "1", numbers(a=1, b=2).cast(never))
    other = pa.table({"a": pa.array([None], WHOLE), "b": pa.array([3], WHOLE)})
    file_of(form, tmp_path / "2", other)
    if form == "csv":
        (tmp_path / "2").write_text("a,b\n,3\n")
    paths = json.dumps([str(tmp_path / "1"), str(tmp_path / "2")])
    reader, _ = load_reader({"reader": form, "paths": paths})

    assert [row["a"] for row in read_all(reader).to_pylist()] == [1, None]


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_that_is_never_null_is_in_each_file(form: str, tmp_path: Path) -> None:
    file_of(form, tmp_path / "t" / "1", numbers(a=1, b=2))
    file_of(form, tmp_path / "t" / "2", numbers(a=3))
    given = pa.schema([("a", WHOLE), pa.field("b", WHOLE, nullable=False)])
    reader = reader_of(form, tmp_path / "t").with_schema(given)

    with pytest.raises(SourceError, match="column 'b'"):
        read_all(reader)


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_s_column_in_another_case_is_the_folder_s(form: str, tmp_path: Path) -> None:
    file_of(form, tmp_path / "t" / "month=7" / "1", numbers(a=1, Month=2))

    assert read(form, tmp_path / "t", columns="month,a").to_pylist() == [{"month": 7, "a": 1}]
    given = rows_as(form, tmp_path / "t", ("A", WHOLE), ("MONTH", WHOLE))
    assert given == [{"A": 1, "MONTH": 7}]
