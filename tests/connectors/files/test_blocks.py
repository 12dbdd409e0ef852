"""Text files give the same rows, or the same error, for every block size, limit and number of splits."""

import bz2
import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.connectors import FetchSize
from spark_channel.errors import ChannelError, SchemaError, SourceError
from tests.connectors.files.helpers import read, read_all, reader_of, write

MARK = "\ufeff".encode()

Outcome = list[tuple[Any, ...]] | str


def outcome(
    form: str, path: Path, schema: pa.Schema | None = None, fetch: int | None = None, **options: Any
) -> Outcome:
    """The rows, or the error."""
    try:
        reader = reader_of(form, path, **options)
        reader.fetch_size = FetchSize(rows=fetch, nbytes=fetch)
        if schema is not None:
            reader = reader.with_schema(schema)
        reader.schema()
        return [
            tuple(row.values())
            for split in reader.split(1)
            for batch in reader.read(split)
            for row in batch.to_pylist()
        ]
    except ChannelError as error:
        return str(error)


def same_everywhere(
    form: str, path: Path, schema: pa.Schema | None = None, **options: Any
) -> Outcome:
    """The outcome of one split and one block, which all others have."""
    one = outcome(form, path, schema, **options)
    size = max(1, path.stat().st_size)
    for splits in (1, 2, 7):
        for fetch in (None, 1, 64, 1024):
            found = outcome(
                form, path, schema, fetch, splitBytes=str(-(-size // splits)), **options
            )
            assert found == one, (splits, fetch, path.read_bytes())
    return one


CSV_PARTS = st.sampled_from(
    [
        "a",
        "1",
        ",",
        ",",
        '"',
        '""',
        '"b"',
        '"c\nd"',
        "\n",
        "\n",
        "\r\n",
        "\r",
        "#",
        " ",
        "\t",
        "\\",
        "\ufeff",
        "é",
    ]
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    parts=st.lists(CSV_PARTS, max_size=40),
    regular=st.booleans(),
    multi_line=st.sampled_from(["", "true", "false"]),
    header=st.booleans(),
    mode=st.sampled_from(["FAILFAST", "DROPMALFORMED"]),
    comment=st.sampled_from(["", "#"]),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)
def test_csv(
    tmp_path: Path,
    parts: list[str],
    regular: bool,
    multi_line: str,
    header: bool,
    mode: str,
    comment: str,
    encoding: str,
) -> None:
    path = tmp_path / "data.csv"
    text = "".join(parts)
    if regular:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(
            [("x", "y"), *((part, text[:number]) for number, part in enumerate(parts))]
        )
        text = buffer.getvalue()
    path.write_bytes(text.encode(encoding))
    options = {
        "header": str(header).lower(),
        "mode": mode,
        "encoding": encoding,
        "inferSchema": "false",
    }
    options |= {"multiLine": multi_line} if multi_line else {}
    options |= {"comment": comment} if comment else {}
    same_everywhere("csv", path, **options)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(
    rows=st.lists(
        st.tuples(st.text(alphabet='a",\n\r #\\', max_size=6), st.text(alphabet="b ", max_size=2)),
        min_size=1,
        max_size=20,
    ),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_pythons_reader_sees_the_same_rows(
    tmp_path: Path, rows: list[tuple[str, str]], end: str, quoting: Any
) -> None:
    """Line ends in quotes are found in the sample: no option says that there are some."""
    buffer = io.StringIO()
    if "\r" in "".join(first for first, _ in rows):
        quoting = csv.QUOTE_ALL  # Python writes a lone \r without quotes
    writer = csv.writer(buffer, lineterminator=end, quoting=quoting)
    writer.writerows([("x", "y"), *rows])
    path = tmp_path / "data.csv"
    path.write_bytes(buffer.getvalue().encode())
    with path.open(newline="", encoding="utf-8") as opened:
        judged = [tuple(row) for row in csv.reader(opened)][1:]
    found = same_everywhere("csv", path, escape='"', inferSchema="false", emptyIsNull="false")
    assert found == judged


def test_line_ends_in_quotes_are_read_at_any_speed(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("name,note\n" + "".join(f'n{n},"Dear {n},\nplease"\n' for n in range(40)))
    assert same_everywhere("csv", path) == [(f"n{n}", f"Dear {n},\nplease") for n in range(40)]


def test_a_line_end_in_quotes_behind_the_sample_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "1,x\n" * 500 + '1,"x\ny"\n' + "1,x\n" * 500)
    found = same_everywhere("csv", path, sampleBytes="1000")
    assert isinstance(found, str)
    assert 'line 502: a quote is not closed on its line: 1,"x; ' in found
    assert "set option multiLine=true" in found
    assert len(same_everywhere("csv", path, sampleBytes="1000", multiLine="true")) == 1001


@pytest.mark.parametrize("more", ["ok", '"ok"', '"o""k"', '"o,k"'])
def test_a_quote_that_is_never_closed_swallows_no_row(tmp_path: Path, more: str) -> None:
    path = tmp_path / "data.csv"
    lines = [f"{n},{more}" for n in range(300)]
    lines[5] = '5,"broken'
    path.write_text("id,note\n" + "\n".join(lines) + "\n")
    for options in ({}, {"multiLine": "false"}, {"multiLine": "true"}):
        found = same_everywhere("csv", path, **options)
        assert isinstance(found, str), options
        assert "line 7: " in found, options
        assert ': 5,"broken' in found, options
        assert "not closed" in found or "never closed" in found, options
    dropped = same_everywhere("csv", path, mode="DROPMALFORMED")
    assert [row[0] for row in dropped] == [n for n in range(300) if n != 5]


def test_rows_of_blanks_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("a\tb\n" + "1\tx\n" * 30 + "\t\n" * 640 + " \t \n" + "2\ty\n" * 30)
    assert len(same_everywhere("csv", path, sep="\\t", inferSchema="false")) == 701
    path.write_text("note\n" + "    \n" * 2000 + "end\n")
    assert same_everywhere("csv", path) == [("    ",)] * 2000 + [("end",)]
    nulls = pa.table({"a": pa.nulls(3, pa.string()), "b": pa.nulls(3, pa.string())})
    write("csv", tmp_path / "out", nulls, sep="\t")
    assert read("csv", tmp_path / "out").equals(nulls)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
def test_only_the_mark_at_a_files_start_is_dropped(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "data.csv"
    mark = "\ufeff" if encoding != "utf-16" else ""
    row = "\ufeffx,1\n"
    path.write_bytes(f"{mark}a,b\n{row * 40}".encode(encoding))
    assert same_everywhere("csv", path, encoding=encoding) == [("\ufeffx", 1)] * 40


@pytest.mark.parametrize("top", ["# made by x\n# it's \"z\n#\n", "\n\n\r\n", ""])
def test_the_header_is_found_behind_comments_in_any_split(tmp_path: Path, top: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(top + "id,name\na,b\nc,d\n")
    assert same_everywhere("csv", path, comment="#") == [("a", "b"), ("c", "d")]
    path.write_text(top * 9000 + "id,name\na,b\nc,d\n")
    assert outcome("csv", path, comment="#", splitBytes="20k") == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_another_header_is_refused_in_any_order_of_the_files(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    texts = "a,b\n1,2\n", "a,b,c\n3,4,5\n"
    for name, number in zip(("1.csv", "2.csv"), order, strict=True):
        (tmp_path / name).write_text(texts[number])
    with pytest.raises(SourceError, match="column 'c'"):
        read("csv", tmp_path)
    assert sorted(read("csv", tmp_path, columns="a,b").column("a").to_pylist()) == [1, 3]
    (tmp_path / "2.csv").write_text("x,y\n6,7\n")
    with pytest.raises(SourceError, match="has no column"):
        read("csv", tmp_path)


JSON_PARTS = st.sampled_from(
    [
        '{"a":1,"b":"x"}',
        '{"a":2}',
        '{"b":null}',
        "{}",
        "null",
        '{"a":3}{"a":4}',
        '{"a":5,',
        '"b":"y"}',
        "\n",
        "\n",
        "\n",
        "\r\n",
        "\r",
        " ",
        "\t",
        "\ufeff",
        '{"a":"6"}',
        '{"a":7.5}',
        '{"b":["z"]}',
        '{"b":"\\ud800"}',
        '{"a":8,"a":9}',
        '{"a":1e400}',
        '{"a":true}',
        "[]",
        '{"a":0,"b":"é"}',
        '{"b":{"c":[1]}}',
        "{",
    ]
)
KINDS = [
    pa.int64(),
    pa.float64(),
    pa.float32(),
    pa.string(),
    pa.decimal128(10, 2),
    pa.bool_(),
    pa.int8(),
]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80
)
@given(
    parts=st.lists(JSON_PARTS, max_size=25),
    kind=st.sampled_from(KINDS),
    inferred=st.booleans(),
    mode=st.sampled_from(["FAILFAST", "DROPMALFORMED"]),
)
def test_json(
    tmp_path: Path, parts: list[str], kind: pa.DataType, inferred: bool, mode: str
) -> None:
    path = tmp_path / "data.json"
    path.write_bytes("".join(parts).encode())
    schema = None if inferred else pa.schema([("a", kind), ("b", pa.string())])
    found = same_everywhere("json", path, schema, mode=mode)
    if (
        schema is not None
        and kind == pa.float64()
        and isinstance(found, list)
        and mode == "FAILFAST"
    ):
        lines = [
            json.loads(line.decode("utf-8-sig"))
            for line in path.read_bytes().split(b"\n")
            if line.strip()
        ]
        assert [row[0] for row in found] == [line.get("a") for line in lines]


def test_files_of_several_appends_are_read_with_the_dialect_of_each(tmp_path: Path) -> None:
    """As the log says it. A column that an append lacks is NULL in its rows."""
    table = pa.table({"a": ["1", None, "x,y"], "b": ["NULL", "p\nq", None]})
    dialects: list[dict[str, Any]] = [
        {},
        {"header": "false"},
        {"sep": ";"},
        {"nullValue": "NULL"},
        {"quote": "'", "escape": "'"},
        {"sep": "\t"},
    ]
    for number, dialect in enumerate(dialects):
        write("csv", tmp_path / "csv", table, job=f"j{number}", **dialect)
    turned = table.select(["b", "a"])
    write("csv", tmp_path / "csv", turned, job="turned", header="false")
    write("csv", tmp_path / "csv", pa.table({"B": ["only b"]}), job="only", header="false")
    write("csv", tmp_path / "csv", table.append_column("c", pa.array([1, 2, 3])), job="more")
    rows = list(zip(*table.to_pydict().values(), strict=True))
    expected = [(*row, None) for _ in range(7) for row in rows]
    expected += [(None, "only b", None), *((*row, n) for n, row in enumerate(rows, 1))]
    for size in ("1m", "7"):
        found = read("csv", tmp_path / "csv", splitBytes=size)
        assert found.column_names == ["a", "b", "c"]
        assert sorted(zip(*found.to_pydict().values(), strict=True), key=str) == sorted(
            expected, key=str
        )
    assert read("csv", tmp_path / "csv", columns="c").column("c").drop_null().to_pylist() == [
        1,
        2,
        3,
    ]
    times = pa.table({"t": pa.array([0, 1], pa.timestamp("s"))}).cast(
        pa.schema([("t", pa.timestamp("us"))])
    )
    for form in ("csv", "json"):
        for number, pattern in enumerate(("dd.MM.yyyy HH:mm:ss", "yyyyMMdd HHmmss")):
            write(form, tmp_path / form / "t", times, job=f"t{number}", timestampFormat=pattern)
        write(form, tmp_path / form / "t", times, job="iso")
        assert (
            read(form, tmp_path / form / "t").column("t").to_pylist()
            == times.column("t").to_pylist() * 3
        )


def test_files_beside_those_of_the_log_are_read_as_the_options_say(tmp_path: Path) -> None:
    write(
        "csv",
        tmp_path,
        pa.table({"a": pa.array([1], pa.int16()), "b": ["x"]}),
        header="false",
        sep=";",
    )
    (tmp_path / "other.csv").write_text("a,b\n2,y\n")
    (tmp_path / "_SUCCESS").write_text("")
    found = read("csv", tmp_path)
    assert sorted(found.to_pylist(), key=str) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert found.schema.field("a").type == pa.int16()


def test_appends_whose_types_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    write("csv", tmp_path / "out", pa.table({"a": pa.array([1], pa.int16())}), job="1")
    write("csv", tmp_path / "out", pa.table({"a": pa.array([70000], pa.int32())}), job="2")
    assert sorted(read("csv", tmp_path / "out").column("a").to_pylist()) == [1, 70000]
    write("csv", tmp_path / "out", pa.table({"a": ["007"]}), job="3")
    with pytest.raises(
        SchemaError, match=r"column 'a' is int32 in .* and string in .*Give a schema"
    ):
        read("csv", tmp_path / "out")
    given = reader_of("csv", tmp_path / "out").with_schema(pa.schema([("a", pa.string())]))
    assert sorted(read_all(given).column("a").to_pylist()) == ["007", "1", "70000"]


def test_a_json_line_nested_too_deeply_is_refused_in_any_block(tmp_path: Path) -> None:
    """Also in a field that is not read, beside lines that need another parser."""
    path = tmp_path / "data.json"
    schema = pa.schema([("a", pa.int64())])
    for other in ("", '{"a":"x"}\n'):
        for levels, kept in ((450, True), (700, False), (1_500, False)):
            deep = f'{{"z":{"[" * levels}{"]" * levels}}}\n'
            path.write_text('{"a":1}\n' + other + deep + '{"a":2}\n')
            found = same_everywhere("json", path, schema, mode="DROPMALFORMED")
            assert found == ([(1,), (None,), (2,)] if kept else [(1,), (2,)]), (other, levels)
            if not kept and not other:
                assert "line 2: nested too deeply" in str(outcome("json", path, schema))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_that_is_no_text_is_named_for_what_it_is(tmp_path: Path, form: str) -> None:
    path = tmp_path / "data.txt"
    for codec in ("gzip", "bz2", "zstd", "lz4"):
        text = b'{"a":1}\n' if form == "json" else b"a\n1\n"
        path.write_bytes(
            bz2.compress(text) if codec == "bz2" else pa.Codec(codec).compress(text, asbytes=True)
        )
        assert f"is compressed with {codec}" in str(outcome(form, path, splitBytes="3"))
        assert outcome(form, path, compression=codec) == [(1,)]
    pq.write_table(pa.table({"a": [1]}), path)
    assert "is a Parquet file" in str(outcome(form, path))
    path.write_bytes(b"PK\x03\x04...")
    assert "is a ZIP archive" in str(outcome(form, path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_of_only_a_byte_order_mark_is_empty(
    tmp_path: Path, form: str, encoding: str
) -> None:
    """A JSON file without an object has no columns, as for Spark."""
    (tmp_path / "1").write_bytes(("" if encoding == "utf-16" else "\ufeff").encode(encoding))
    found = outcome(form, tmp_path, encoding=encoding)
    assert found == [] if form == "json" else "is empty" in str(found)
    assert outcome(form, tmp_path, pa.schema([("a", pa.int64())]), encoding=encoding) == []
    (tmp_path / "2").write_bytes(('{"a":1}' if form == "json" else "a\n1\n").encode(encoding))
    assert outcome(form, tmp_path, encoding=encoding) == [(1,)]


def test_hadoops_marks_of_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "d=1").mkdir()
    (tmp_path / "d=1" / "a.csv").write_text("x\n5\n")
    for name in ("d=1_$folder$", "$folder$_$folder$", "d=1/e_$folder$"):
        (tmp_path / name).write_bytes(b"")
    assert read("csv", tmp_path).to_pylist() == [{"x": 5, "d": 1}]


EDGES = {
    pa.int8(): ("127", "128", "-128", "-129", "-0", "1.0", "1e2", "true", '"1"'),
    pa.int64(): ("9223372036854775807", "9223372036854775808", "-0"),
    pa.float32(): ("16777217", "3.5e38", "1e-400", '"NaN"', '"-Infinity"', "NaN"),
    pa.float64(): ("9007199254740993", "1e400", "-0", "-0.0"),
    pa.decimal128(5, 2): ("999.99", "1000", "70000", "1.005", "1e2", '"1.5"', "-999.99", "-1000"),
    pa.date32(): ('"0000-01-01"', '"0001-01-01"', '"2024-02-30"', '"9999-12-31"', '"20240101"'),
    pa.timestamp("us"): (
        '"0000-01-01 00:00:00"',
        '"2024-01-01T24:00:00"',
        '"2024-01-01 23:59:60"',
        '"2024-01-01"',
        '"2024-01-01T10:00Z"',
    ),
    pa.timestamp("us", "UTC"): (
        '"0000-12-31T23:00:00-01:00"',
        '"2024-01-01 10:00:00+01:00"',
        '"2024-01-01T10:00:00"',
    ),
    pa.struct([("x", pa.int8())]): ('{"x":128}', '{"x":-0}', '{"x":1,"y":2}', "[]", "{}"),
    pa.list_(pa.decimal128(3, 1)): ("[99.9]", "[100]", "[1.25]", "[null]"),
}


@pytest.mark.parametrize("kind", EDGES, ids=str)
def test_a_json_value_is_the_same_beside_a_line_that_is_no_object(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """Which Arrow's parser does not see: the lines of that block are read one by one."""
    path = tmp_path / "data.json"
    for value in EDGES[kind]:
        found = []
        for other in ("", '{"a":\n'):
            path.write_text(f'{{"a":{value}}}\n{other}')
            reader = reader_of("json", path, mode="DROPMALFORMED").with_schema(
                pa.schema([("a", kind)])
            )
            table = read_all(reader)
            table.validate(full=True)
            found.append(
                table.column("a").cast(pa.string())
                if not pa.types.is_nested(kind)
                else table.to_pylist()
            )
        assert found[0] == found[1], value


def test_a_decimal_of_too_many_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a\n1.5\n70000\n")
    schema = pa.schema([("a", pa.decimal128(5, 2))])
    assert "line 3: column 'a'" in str(outcome("csv", path, schema))
    assert outcome("csv", path, schema, mode="DROPMALFORMED") == [(Decimal("1.50"),)]
