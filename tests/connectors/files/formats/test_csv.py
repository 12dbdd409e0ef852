"""CSV: syntax, types, byte ranges, and rows that do not fit."""

import bz2
import csv
import datetime as dt
import gzip
import io
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.connectors import FetchSize
from spark_channel.errors import OptionError, SchemaError, SourceError, TargetError
from tests.connectors.files.helpers import read, read_all, reader_of, write, writer_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def rows(form_path: object, **options: Any) -> list[tuple[Any, ...]]:
    table = read("csv", form_path, **options)
    return list(zip(*table.to_pydict().values(), strict=True))


def test_names_and_types_are_found(file: Path) -> None:
    file.write_text(
        "id,name,ratio,ok,born,seen,zoned,clock,empty\n"
        "1,Ada,1.5,true,1815-12-10,2020-01-01 10:00:00,2020-01-01T10:00:00+01:00,10:00:00,\n"
        "2,,NaN,FALSE,1906-12-09,2020-01-01T10:00:00.123456,2020-01-01 10:00:00Z,,\n"
    )
    table = read("csv", file)
    assert [str(kind) for kind in table.schema.types] == [
        "int64",
        "string",
        "double",
        "bool",
        "date32[day]",
        "timestamp[us]",
        "timestamp[us, tz=UTC]",
        "string",
        "string",
    ]
    assert table.column("name").to_pylist() == ["Ada", None]
    assert table.column("zoned")[0].as_py() == dt.datetime(2020, 1, 1, 9, tzinfo=dt.UTC)
    assert table.column("seen")[1].as_py() == dt.datetime(2020, 1, 1, 10, 0, 0, 123456)


def test_sparks_own_defaults_can_be_asked_for(file: Path) -> None:
    file.write_text("1,x\n2,y\n")
    assert read("csv", file, header="false", inferSchema="false").to_pydict() == {
        "_c0": ["1", "2"],
        "_c1": ["x", "y"],
    }
    assert read("csv", file, header="false").to_pydict() == {"_c0": [1, 2], "_c1": ["x", "y"]}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a;b\n1;x\n", {"sep": ";"}, [(1, "x")]),
        ("a\tb\n1\tx\n", {"delimiter": r"\t"}, [(1, "x")]),
        ("a,b\n1,'x,y'\n", {"quote": "'"}, [(1, "x,y")]),
        ('a,b\n1,"x\n', {"quote": ""}, [(1, '"x')]),
        ('a,b\n1,"x ""y"""\n', {}, [(1, 'x "y"')]),
        ('a,b\n1,"x \\"y\\", z"\n', {}, [(1, 'x "y", z')]),
        ('a,b\n1,"C:\\\\dir\\\\"\n', {}, [(1, "C:\\dir\\")]),
        ('a,b\n1,"C:\\new"\n', {}, [(1, "C:\\new")]),
        ("a,b\n1,C:\\new\\\n", {}, [(1, "C:\\new\\")]),
        ('a,b\n1,"C:\\dir\\"\n', {"escape": '"'}, [(1, "C:\\dir\\")]),
        ("a,b\n1,NA\nNA,x\n", {"nullValue": "NA"}, [(1, None), (None, "x")]),
        ('a,b\n1,"NA"\n2,""\n3,\n', {"nullValue": "NA"}, [(1, "NA"), (2, ""), (3, None)]),
        ("# top\na,b\n#1,no\n1,x\n", {"comment": "#"}, [(1, "x")]),
        ("a,b\n1,  x \n", {}, [(1, "  x ")]),
        (
            "a,b\n1,  x \n",
            {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"},
            [(1, "x")],
        ),
        ("a,b\n\n1,x\n\n\n2,y", {}, [(1, "x"), (2, "y")]),
        ("a,b\r\n1,x\r\n2,y\r\n", {}, [(1, "x"), (2, "y")]),
        ("a,b\r1,x\r2,y\r", {}, [(1, "x"), (2, "y")]),
        ("\ufeffa,b\n1,x\n", {}, [(1, "x")]),
        ('a,b\n1,"x\ny"\n2,z\n', {"multiLine": "true"}, [(1, "x\ny"), (2, "z")]),
        ('a,b\n1,"x\\"\ny"\n2,z\n', {"multiLine": "true"}, [(1, 'x"\ny'), (2, "z")]),
        ("a,b\n31/12/2020,x\n", {"dateFormat": "dd/MM/yyyy"}, [(dt.date(2020, 12, 31), "x")]),
        (
            "a,b\n31.12.2020 13:05,x\n",
            {"timestampFormat": "dd.MM.yyyy HH:mm"},
            [(dt.datetime(2020, 12, 31, 13, 5), "x")],
        ),
    ],
)
def test_syntax(
    file: Path, text: str, options: dict[str, str], expected: list[tuple[Any, ...]]
) -> None:
    file.write_bytes(text.encode())
    assert rows(file, **options) == expected


@pytest.mark.parametrize(
    "encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "shift_jis", "utf-8"]
)
def test_encodings(file: Path, encoding: str) -> None:
    word = "カナ" if encoding == "shift_jis" else "Größe"
    lines = ["n,s"] + [f"{n},{word}" for n in range(500)]
    file.write_bytes("\n".join(lines).encode(encoding))
    table = read("csv", file, encoding=encoding, splitBytes="200")
    assert table.column("n").to_pylist() == list(range(500))
    assert set(table.column("s").to_pylist()) == {word}


@pytest.mark.parametrize("encoding", ["iso-2022-jp", "utf-16"])
def test_a_long_value_ends_in_an_encoding_that_shifts(tmp_path: Path, encoding: str) -> None:
    """The bytes of a quote depend on the character before it."""
    long = "カナ" * 200_000
    target = tmp_path / "t"
    write("csv", target, pa.table({"s": [long], "n": [1]}), encoding=encoding, header="false")
    (file,) = target.glob("*.csv")
    assert file.read_bytes() == f'"{long}",1\n'.encode(encoding)


def test_text_in_another_encoding_is_an_error_with_its_place(file: Path) -> None:
    file.write_bytes(b"n,s\n1,ok\n2,Gr\xf6\xdfe\n")
    with pytest.raises(SourceError, match=r"data.csv, line 3: column 's'"):
        read("csv", file)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst", "lz4"])
def test_compressed_files_are_read_whole(tmp_path: Path, suffix: str) -> None:
    codec = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}[suffix]
    path = tmp_path / f"data.csv.{suffix}"
    text = "n\n" + "".join(f"{n}\n" for n in range(50_000))
    halves = text[:100_000].encode(), text[100_000:].encode()
    compress = bz2.compress if codec == "bz2" else partial(pa.Codec(codec).compress, asbytes=True)
    path.write_bytes(b"".join(compress(half) for half in halves))
    reader = reader_of("csv", path)
    reader.schema()
    assert len(reader.split(8)) == 1
    assert read_all(reader).column("n").to_pylist() == list(range(50_000))


def test_a_broken_compressed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"n\n" + b"1\n" * 100_000)[:-50])
    with pytest.raises(SourceError, match=r"data\.csv\.gz"):
        read("csv", path)


cells = st.text(alphabet=st.sampled_from("ab,\"\\ 1é'#"), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.lists(st.tuples(cells, cells), max_size=30),
    size=st.integers(1, 60),
    fetch=st.one_of(st.none(), st.integers(1, 64)),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
def test_ranges_cover_every_row_once(
    tmp_path: Path,
    data: list[tuple[str, str]],
    size: int,
    fetch: int | None,
    newline: str,
    last: bool,
) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator=newline)
    writer.writerow(["a", "b"])
    writer.writerows(data)
    path = tmp_path / "data.csv"
    text = buffer.getvalue()
    path.write_bytes((text if last else text.removesuffix(newline)).encode())
    options = {"escape": '"', "inferSchema": "false"}
    reader = reader_of("csv", path, splitBytes=str(size), **options)
    reader.fetch_size = FetchSize(nbytes=fetch)
    reader.schema()
    splits = reader.split(1)
    header = len('"a","b"') + len(newline)
    assert len(splits) >= ((path.stat().st_size - header) // size if data else 0)
    assert read_all(reader).to_pydict() == {"a": [a for a, _ in data], "b": [b for _, b in data]}


awkward = st.text(alphabet=st.sampled_from('a,"\\\n\r #'), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.lists(st.tuples(st.one_of(st.none(), awkward), st.integers(0, 9)), max_size=20),
    escape=st.sampled_from(["\\", '"']),
    quote_all=st.booleans(),
    sep=st.sampled_from([",", "|"]),
    null=st.sampled_from(["", "NULL", "a"]),
    size=st.integers(1, 40),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[tuple[str | None, int]],
    escape: str,
    quote_all: bool,
    sep: str,
    null: str,
    size: int,
) -> None:
    """Without a word about how it was written: the manifest says so. In splits as small as a row."""
    table = pa.table(
        {
            "s": pa.array([s for s, _ in data], pa.string()),
            "n": pa.array([n for _, n in data], pa.int16()),
        }
    )
    target = tmp_path_factory.mktemp("csv") / "out"
    write(
        "csv",
        target,
        table,
        escape=escape,
        quoteAll=str(quote_all).lower(),
        sep=sep,
        nullValue=null,
    )
    assert read("csv", target, splitBytes=str(size)).equals(table)


@pytest.mark.parametrize(
    ("text", "schema", "message"),
    [
        (
            "id,s\n1,a\nx,b\n3,c\n",
            {"id": pa.int64(), "s": pa.string()},
            r"line 3: column 'id' \(int64\) cannot hold 'x'",
        ),
        ("id,s\n1,a\n2\n", None, r"line 3: 1 values for 2 columns: 2"),
        ("id,s\n1,a\n2,b,c\n", None, r"line 3: 3 values for 2 columns: 2,b,c"),
        (
            "id,s\n300,a\n",
            {"id": pa.int8(), "s": pa.string()},
            r"line 2: column 'id' \(int8\) cannot hold '300'",
        ),
        ("id,s\n1.5,a\n", {"id": pa.decimal128(3, 0), "s": pa.string()}, r"line 2: column 'id'"),
        (
            "d,s\n2020-02-30,a\n",
            {"d": pa.date32(), "s": pa.string()},
            r"line 2: column 'd'.*2020-02-30",
        ),
        (
            "t,s\nyesterday,a\n",
            {"t": pa.timestamp("us", "UTC"), "s": pa.string()},
            r"line 2: column 't'.*yesterday",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    file: Path, text: str, schema: dict[str, pa.DataType] | None, message: str
) -> None:
    file.write_text(text)
    reader = reader_of("csv", file)
    if schema is not None:
        reader = reader.with_schema(pa.schema(schema))
    with pytest.raises(SourceError, match=rf"{file}, {message}") as caught:
        read_all(reader)
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(bad=st.integers(0, 199), size=st.integers(5, 400), blank=st.booleans())
def test_the_line_is_right_in_every_range(tmp_path: Path, bad: int, size: int, blank: bool) -> None:
    lines = ["n", *(str(n) for n in range(200))]
    lines[1 + bad] = "oops"
    if blank:
        lines.insert(1, "")
    path = tmp_path / "data.csv"
    path.write_text("\n".join(lines) + "\n")
    reader = reader_of("csv", path, splitBytes=str(size)).with_schema(
        pa.schema([("n", pa.int64())])
    )
    with pytest.raises(SourceError, match=f"line {2 + bad + blank}: column 'n'.*'oops'"):
        read_all(reader)


def test_values_found_beyond_the_sample_are_an_error_and_not_null(file: Path) -> None:
    file.write_text("n\n" + "1\n" * 5000 + "1.5\n")
    with pytest.raises(
        SourceError, match=r"line 5002: column 'n' \(int64\) cannot hold '1.5'; give another type"
    ):
        read("csv", file, sampleBytes="1000")
    assert read("csv", file).schema.field("n").type == pa.float64()


def test_malformed_rows_are_dropped_when_asked(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"{n},x" for n in range(300)]
    lines[7], lines[8], lines[299] = "7", "oops,x", "a,b,c"
    file.write_text("n,s\n" + "\n".join(lines) + "\n")
    reader = reader_of("csv", file, mode="dropmalformed")
    table = read_all(reader.with_schema(pa.schema([("n", pa.int32()), ("s", pa.string())])))
    assert table.column("n").to_pylist() == [n for n in range(300) if n not in (7, 8, 299)]
    assert "3 rows did not fit" in caplog.text


def test_an_open_quote_is_an_error_that_names_multi_line(file: Path) -> None:
    file.write_text('a,b\n1,"x\ny"\n2,z\n' * 1)
    reader = reader_of("csv", file, splitBytes="8", multiLine="false")
    with pytest.raises(SourceError, match=r"line 2: a quote is not closed on its line.*multiLine"):
        read_all(reader.with_schema(pa.schema([("a", pa.int64()), ("b", pa.string())])))


def test_given_columns_are_found_by_name_then_by_order(file: Path) -> None:
    file.write_text("b,a,c\n1,2,3\n")
    by_name = reader_of("csv", file).with_schema(pa.schema([("a", pa.string()), ("B", pa.int16())]))
    assert read_all(by_name).to_pydict() == {"a": ["2"], "B": [1]}
    by_order = pa.schema([("x", pa.int8()), ("y", pa.string()), ("z", pa.float64())])
    assert read_all(reader_of("csv", file).with_schema(by_order)).to_pydict() == {
        "x": [1],
        "y": ["2"],
        "z": [3.0],
    }
    with pytest.raises(SourceError, match="has no column 'x'"):
        read_all(reader_of("csv", file, enforceSchema="false").with_schema(by_order))
    with pytest.raises(SourceError, match="column 'x'"):
        read_all(reader_of("csv", file).with_schema(pa.schema([("x", pa.int8())])))


def test_files_with_their_columns_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,x\n")
    (tmp_path / "2.csv").write_text("B,a\ny,2\n")
    assert read("csv", tmp_path).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    (tmp_path / "3.csv").write_text("a,other\n3,z\n")
    with pytest.raises(SourceError, match=r"3.csv has no column 'b'; its header has a, other"):
        read("csv", tmp_path)


def test_times_without_a_zone_are_in_the_one_given(file: Path) -> None:
    file.write_text("t\n2020-07-01 12:00:00\n2020-07-01T12:00:00Z\n\n2020-01-01\n")
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    found = (
        read_all(reader_of("csv", file, timeZone="Europe/Berlin").with_schema(schema))
        .column("t")
        .to_pylist()
    )
    assert [value.hour for value in found] == [10, 12, 23]
    utc = read_all(reader_of("csv", file).with_schema(schema)).column("t").to_pylist()
    assert [value.hour for value in utc] == [12, 12, 0]


def test_columns_where_and_many_types(file: Path) -> None:
    file.write_text("i,q,s\n1,1.10,a\n2,2.25,b\n3,,c\n")
    schema = pa.schema([("i", pa.int64()), ("q", pa.decimal128(10, 2)), ("s", pa.string())])
    write("csv", file.parent / "out", read_all(reader_of("csv", file).with_schema(schema)))
    found = read("csv", file.parent / "out", columns="q", where="s <> 'b' and i > 0")
    assert found.to_pydict() == {"q": [Decimal("1.10"), None]}


def test_an_empty_file_and_a_header_only(file: Path) -> None:
    file.write_text("a,b\n")
    assert read("csv", file).to_pydict() == {"a": [], "b": []}
    file.write_text("")
    with pytest.raises(
        SourceError, match=r"data.csv is empty, so its columns are unknown; give a schema"
    ):
        read("csv", file)
    reader = reader_of("csv", file).with_schema(pa.schema([("a", pa.int64())]))
    assert reader.split(4) == []


def test_two_columns_of_one_name_are_refused(file: Path) -> None:
    file.write_text("a,a\n1,2\n")
    with pytest.raises(SchemaError, match="column 'a' occurs more than once"):
        read("csv", file)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1]),
        (pa.struct([("x", pa.int64())]), {"x": 1}),
        (pa.binary(), b"x"),
        (pa.duration("us"), 1),
    ],
)
def test_types_that_csv_cannot_carry_are_refused_by_name(
    tmp_path: Path, kind: pa.DataType, value: object
) -> None:
    table = pa.table({"fine": [1], "odd": pa.array([value], kind)})
    with pytest.raises(SchemaError, match="column 'odd'"):
        write("csv", tmp_path / "out", table)
    assert not (tmp_path / "out").exists()


def test_a_single_column_of_nulls_needs_a_null_value(tmp_path: Path) -> None:
    table = pa.table({"s": ["a", None, ""]})
    with pytest.raises(TargetError, match="set option nullValue"):
        write("csv", tmp_path / "out", table)
    write("csv", tmp_path / "out", table, nullValue="\\N", job="second")
    assert read("csv", tmp_path / "out").equals(table)


def test_pythons_own_reader_agrees(tmp_path: Path) -> None:
    table = pa.table({"s": ['a"b', "c,d", "e\nf", " g", ""], "n": [1, 2, 3, 4, 5]})
    write("csv", tmp_path / "out", table, escape='"')
    (written,) = (tmp_path / "out").glob("*.csv")
    with written.open(newline="") as opened:
        assert list(csv.reader(opened)) == [
            ["s", "n"],
            *([s, str(n)] for s, n in zip(*table.to_pydict().values(), strict=True)),
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "PERMISSIVE"}, "which a copy must not"),
        ({"sep": "::"}, "one ASCII character"),
        ({"sep": '"'}, "also the quote"),
        ({"encoding": "klingon"}, "an encoding that Python knows"),
        ({"dateFormat": "EEE, d MMM"}, "'EEE' is not among them"),
        ({"columnNameOfCorruptRecord": "x"}, "PERMISSIVE"),
        ({"ignoreCorruptFiles": "true"}, "must not lose rows"),
        ({"headers": "true"}, "did you mean 'header'"),
        ({"lineSep": "x"}, r"\\n, \\r\\n or \\r"),
        ({"compression": "rar"}, "none, gzip"),
        ({"timeZone": "Mars"}, "a time zone such as"),
    ],
)
def test_options_that_are_refused_say_why(
    file: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        reader_of("csv", file, **options)


def test_a_single_character_can_be_written_as_it_is_spelled_in_spark(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'nullValue'"):
        writer_of("csv", tmp_path, nullValue="a,b")
    writer: Any = writer_of("csv", tmp_path, sep="\\t")
    assert writer.options.sep == "\t"


def test_the_first_line_may_have_fewer_values_than_a_row(file: Path) -> None:
    file.write_text("1\n2,b,c\n3,d,e,f\n")
    options: dict[str, Any] = {"header": "false", "inferSchema": "false", "mode": "MARK"}
    assert read("csv", file, **options).num_columns == 1
    rows = read("csv", file, leastColumns="3", **options).to_pylist()
    assert "1 values for 3 columns" in rows[0]["_c0"]
    assert [tuple(row.values()) for row in rows[1:]] == [("2", "b", "c"), ("3", "d", "e")]
