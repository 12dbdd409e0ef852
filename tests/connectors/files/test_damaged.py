"""Files that a file library does not survive, or accepts as they are: each is read, or refused with its place."""

import base64
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from pyarrow import orc

from spark_channel.errors import ChannelError, SchemaError, SourceError
from tests.connectors.files.helpers import read, read_all, reader_of

BOM = b"\xef\xbb\xbf"

CHILD = """
import base64, json, logging, sys
import pyarrow as pa
from spark_channel.errors import ChannelError
from tests.connectors.files.helpers import read_all, reader_of
logging.disable(logging.CRITICAL)
for line in sys.stdin:
    form, path, column, options = json.loads(line)
    try:
        reader = reader_of(form, path, **options)
        if column:
            reader = reader.with_schema(pa.schema([(column, pa.int64())]))
        found = read_all(reader, 1).to_pylist()
    except ChannelError as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)
"""


Case = tuple[str, Path, str | None, dict[str, str]]
"""(format, file, its one column of int64, options)"""


def read_in_child(cases: list[Case]) -> list[Any]:
    """For each (format, file, its one column of int64, options): the rows, or the text of the error."""
    lines = "\n".join(
        json.dumps([form, str(path), column, options]) for form, path, column, options in cases
    )
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (
        f"ended with {done.returncode} at {cases[len(found)]}: {done.stderr[-500:]}"
    )
    return found


LINES = (
    b'{"a":1}',
    b'{"a":2}',
    b" 7\t",
    b"7 7",
    b"",
    b"  ",
    b"5",
    b'"x"',
    b"true",
    b"[]",
    b'[{"a":1}]',
    b'{"a":3}{"a":4}',
    b"{}7",
    b'{"a":null}',
    b' {"a":5} ',
    b"{",
    b'{"a":',
    b"\xff",
    BOM,
    b"nul",
)


def json_files() -> Iterator[bytes]:
    yield from (
        b"7\n" * 3,
        b'7\n{"a":1}\n',
        b'{"a":1}\n7\n7\n7\n{"a":2}\n',
        BOM,
        BOM + b"7",
    )
    yield BOM + b'{"a":1}\n{"a":2}\n{"a":3}\n'
    chosen = random.Random(1)
    for count, (end, mark) in itertools.product(
        range(1, 6), itertools.product((b"\n", b"\r\n"), (b"", BOM))
    ):
        for _ in range(4):
            made = mark + end.join(chosen.choices(LINES, k=count)) + chosen.choice((b"", end))
            if not made.removeprefix(BOM).lstrip().startswith((b"[", b"{\n", b"{\r")):
                # Refused as a whole.
                yield made


def judged(data: bytes) -> tuple[list[int | None], int | None]:
    """By Python's json: the values of the lines that are objects, and the number of the first that is none."""
    values: list[int | None] = []
    first = None
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except ValueError:
            row = None
        if isinstance(row, dict):
            values.append(row.get("a"))
        else:
            first = first or number
    return values, first


def test_json_lines_that_are_no_objects_are_the_same_in_splits_of_any_size(tmp_path: Path) -> None:
    cases: list[Case] = []
    expected: list[tuple[bytes, list[dict[str, Any]] | None, int | None]] = []
    for number, data in enumerate(json_files()):
        path = tmp_path / f"{number}.json"
        path.write_bytes(data)
        values, bad = judged(data)
        cases.append(("json", path, None, {}))
        expected.append((data, None, None))
        for size in ("1", "8", "100000"):
            cases.append(("json", path, "a", {"splitBytes": size, "mode": "DROPMALFORMED"}))
            expected.append((data, [{"a": value} for value in values], None))
            cases.append(("json", path, "a", {"splitBytes": size}))
            expected.append((data, None if bad else [{"a": value} for value in values], bad))
    for case, found, (data, rows, line) in zip(cases, read_in_child(cases), expected, strict=True):
        if rows is not None:
            assert found == rows, (data, case)
        elif line is not None:
            assert isinstance(found, str), (data, case, found)
            assert f"{case[1]}, line {line}: " in found, (data, case, found)


def test_a_json_file_without_an_object_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\n7\n")
    [found] = read_in_child([("json", path, None, {})])
    assert found == f"SourceError: {path}, line 2: not an object: 7"


@pytest.mark.parametrize(
    ("text", "rows"), [("7\n", 0), ("\n\n", 0), ("7\n{}\n", None), ("{}\n", None)]
)
def test_json_without_a_field_has_no_columns(tmp_path: Path, text: str, rows: int | None) -> None:
    """As for Spark. Rows of no columns could not be counted."""
    path = tmp_path / "x.json"
    path.write_text(text)
    reader = reader_of("json", path, mode="DROPMALFORMED")
    assert reader.schema().names == []
    if rows is None:
        with pytest.raises(SourceError, match=r"have no field, .* give a schema"):
            read_all(reader, 1)
    else:
        assert read_all(reader, 1).num_rows == rows
    path.write_text("")
    with pytest.raises(SourceError, match=r"is empty, so its columns are unknown"):
        reader_of("json", path).schema()


@pytest.mark.parametrize(("opening", "end"), [("[", "]"), ('{"b":', "}")])
def test_a_json_value_may_nest_deeply(tmp_path: Path, opening: str, end: str) -> None:
    cases: list[Case] = []
    for depth in (60, 700, 1_500):
        path = tmp_path / f"{depth}.json"
        path.write_text('{"a":1}\n{"a":' + opening * depth + "1" + end * depth + "}\n")
        cases += [
            ("json", path, None, {}),
            ("json", path, "a", {}),
            ("json", path, None, {"mode": "DROPMALFORMED"}),
        ]
    texts, typed, _, *rest = read_in_child(cases)
    assert texts == [{"a": "1"}, {"a": opening.replace(":", ": ") * 60 + "1" + end * 60}]
    assert "line 2: column 'a' (int64) cannot hold" in typed
    for inferred, given, dropped in (rest[:3], rest[3:]):
        assert "line 2: nested too deeply" in inferred
        assert "line 2: nested too deeply" in given
        assert dropped == [{"a": 1}]


def test_a_deep_json_value_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":' + "[" * 700 + "]" * 700 + "}\n")
    [found] = read_in_child([("json", path, None, {})])
    assert found.startswith(f"SourceError: {path}, line 1: nested too deeply: ")


@pytest.mark.parametrize(
    "line", ['{"a":"\\ud800x"}', '{"a":"\\uDC00"}', '{"\\ud800":"x"}', '{"b":["\\ud800"]}']
)
def test_half_a_character_is_no_text(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":"ok"}\n' + line + '\n{"a":"\\ud83d\\ude00 \\\\ud800"}\n')
    with pytest.raises(SourceError, match=r"line 2: \\ud[8c]00 is half of a character"):
        read("json", path)
    kept = read("json", path, mode="DROPMALFORMED").column("a").to_pylist()
    assert kept == ["ok", "\U0001f600 \\ud800"]


def test_a_json_line_in_another_encoding_is_named_or_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a":"ok"}\n{"a":"caf\xe9"}\n{"a":"ok"}\n')
    with pytest.raises(
        SourceError, match=r"x.json, line 2: is not UTF-8: it holds byte 0xe9; .*encoding"
    ):
        read("json", path)
    assert read("json", path, mode="DROPMALFORMED").num_rows == 2
    assert read("json", path, encoding="ISO-8859-1").column("a")[1].as_py() == "café"


class Kms(encryption.KmsClient):  # type: ignore[misc] # its base is untyped
    def __init__(self, config: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(path: Path, table: pa.Table, column: str, **more: Any) -> Path:
    factory = encryption.CryptoFactory(Kms)
    settings = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": [column]}, **more
    )
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table, row_group_size=2)
    return path


def test_an_encrypted_column_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "n": [{"p": 1, "q": [1]}] * 3})
    flat = write_encrypted(tmp_path / "flat.parquet", table, "a", plaintext_footer=True)
    nested = write_encrypted(tmp_path / "nested.parquet", table, "n.p", plaintext_footer=True)
    footer = write_encrypted(tmp_path / "footer.parquet", table, "a")
    first: dict[str, str] = {"columns": "b"}
    cases: list[tuple[str, Path, str | None, dict[str, str]]] = [
        ("parquet", path, None, options)
        for path in (flat, nested)
        for options in (
            first,
            {**first, "where": "b > 'x'"},
            {**first, "where": "b > 'x'", "splitBytes": "1"},
        )
    ]
    cases.append(("parquet", nested, None, {**first, "where": "a > 2"}))
    cases += [
        ("parquet", path, None, more)
        for path in (flat, nested)
        for more in ({}, {"where": "a > 1"})
    ]
    cases.append(("parquet", footer, None, {}))
    *rows, by_a, a1, a2, n1, n2, whole = read_in_child(cases)
    assert rows == [[{"b": "x"}, {"b": "y"}, {"b": "z"}], *[[{"b": "y"}, {"b": "z"}]] * 2] * 2
    assert by_a == [{"b": "z"}]
    assert all(f"{flat}: column 'a' is encrypted" in found for found in (a1, a2))
    assert all(f"{nested}: column 'n' is encrypted" in found for found in (n1, n2))
    assert f"{footer} cannot be read: its footer is encrypted" in whole


def test_a_row_group_has_the_rows_that_its_footer_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(8))}), path, compression="none", use_dictionary=False)
    data = path.read_bytes()
    # Fields 4 (codec: 0) and 5 (values: 8) of the column's metadata.
    assert data.count(b"\x15\x00\x16\x10\x16") == 1
    path.write_bytes(data.replace(b"\x15\x00\x16\x10\x16", b"\x15\x00\x16\x00\x16"))
    with pytest.raises(
        SourceError, match=r"x.parquet: row group 1 has 0 rows, and the footer says 8"
    ):
        read("parquet", path)


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)


def write_orc(path: Path, table: pa.Table) -> None:
    orc.write_table(table, path)


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "parquet": write_parquet,
    "orc": write_orc,
    "arrow": write_arrow,
}


def bad_text() -> pa.Array:
    return pa.array([b"ok", "ü".encode(), b"caf\xe9"], pa.binary()).view(pa.string())


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("where", ["column", "list", "struct", "cut"])
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, form: str, where: str) -> None:
    text = bad_text()
    if where == "list":
        values: pa.Array = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    elif where == "struct":
        values = pa.StructArray.from_arrays([text], ["t"])
    elif where == "cut":  # each value is half a character, and both together are one
        values = pa.array([b"\xc3", b"\xbc"], pa.binary()).view(pa.string())
    else:
        values = text
    path = tmp_path / f"x.{form}"
    WRITERS[form](path, pa.table({"good": ["a"] * len(values), "bad": values}))
    with pytest.raises(
        SourceError, match=rf"x.{form}: column 'bad' \(.*\) holds a value that is not valid"
    ):
        read(form, path)
    assert read(form, path, columns="good").num_rows == len(values)
    if form == "parquet" and where == "column":
        with pytest.raises(duckdb.Error, match=r"(?i)utf"):
            duckdb.execute(f"SELECT bad FROM '{path}'").fetchall()
    if where in ("column", "cut"):
        given = pa.schema([("bad", pa.binary())])
        found = read_all(reader_of(form, path).with_schema(given)).column("bad")
        assert found.to_pylist() == values.view(pa.binary()).to_pylist()


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, form: str, inside: bool) -> None:
    path = tmp_path / f"x.{form}"
    column = [{"nameless": 1}] if inside else [1]
    WRITERS[form](path, pa.table({"a": [1], "outer" if inside else "nameless": column}))
    path.write_bytes(path.read_bytes().replace(b"nameless", b"name\xff\xfe\xfdx"))
    with pytest.raises(ChannelError, match=rf"x\.{form}.* the name of .* is not UTF-8: b'.*\\xff"):
        read(form, path)


@pytest.mark.parametrize(
    "line", [b'{"a":2,"\xff":1}', b'{"a":2,"b":{"\xff":1}}', b'{"\xff":{"\xff":{"b":1}}}']
)
def test_a_json_name_that_is_no_text_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a":1}\n' + line + b"\n")
    with pytest.raises(SourceError, match=r"x.json, line 2: is not UTF-8"):
        read("json", path)
    assert read("json", path, mode="DROPMALFORMED").to_pylist() == [{"a": 1}]


def test_arrow_files_with_wrong_offsets(tmp_path: Path) -> None:
    data = pa.py_buffer(b"abcdef")

    def offsets(*values: int) -> pa.Buffer:
        return pa.array(values, pa.int32()).buffers()[1]

    far = 1 << 30
    elements = pa.array(range(6), pa.int8())
    good = pa.ListArray.from_arrays(pa.array([0, 1, 6], pa.int32()), elements)
    wrong = pa.Array.from_buffers(good.type, 2, [None, offsets(0, far, 6)], children=[elements])
    columns = {
        "text": pa.Array.from_buffers(pa.string(), 2, [None, offsets(0, far, 6), data]),
        "falling": pa.Array.from_buffers(pa.string(), 2, [None, offsets(0, 6, 3), data]),
        "bytes": pa.Array.from_buffers(pa.binary(), 2, [None, offsets(0, far, 6), data]),
        "list": wrong,
        "entry": pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int32()), ["x"], safe=False),
    }
    cases: list[Case] = []
    for name, values in columns.items():
        path = tmp_path / f"{name}.arrow"
        write_arrow(path, pa.Table.from_arrays([values], [name]))
        cases.append(("arrow", path, None, {}))
    for (_, path, _, _), found in zip(cases, read_in_child(cases), strict=True):
        assert isinstance(found, str), (path, found)
        assert f"{path}: column '{path.stem}'" in found


def test_a_type_that_pyarrow_cannot_represent_is_refused_by_name(tmp_path: Path) -> None:
    from pyarrow.cffi import ffi

    batch = pa.record_batch([pa.array(["x"]), pa.array([1], pa.int32())], names=["a", "m"])
    array, schema = ffi.new("struct ArrowArray*"), ffi.new("struct ArrowSchema*")
    batch._export_to_c(int(ffi.cast("uintptr_t", array)), int(ffi.cast("uintptr_t", schema)))
    months = ffi.new("char[]", b"tiM")
    schema.children[1].format = months
    made = pa.RecordBatch._import_from_c(
        int(ffi.cast("uintptr_t", array)), int(ffi.cast("uintptr_t", schema))
    )
    path = tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, made.schema) as writer:
        writer.write_batch(made)
    with pytest.raises(
        SchemaError, match=r"x.arrow: column 'm' \(month_interval\) has a type that pyarrow cannot"
    ):
        read("arrow", path)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_time_that_no_day_has_is_refused(
    tmp_path: Path, form: str, unit: str, inside: bool
) -> None:
    if form == "parquet" and unit == "s":
        pytest.skip("Parquet has no times of whole seconds")
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    path = tmp_path / f"a.{form}"
    for value, good in ((-1, False), (0, True), (day - 1, True), (day, False)):
        plain = pa.array([None, value], pa.int32() if kind.bit_width == 32 else pa.int64())
        times = plain.view(kind)
        values = pa.StructArray.from_arrays([times], ["t"]) if inside else times
        WRITERS[form](path, pa.table({"a": values}))
        if good:
            read(form, path)
            continue
        with pytest.raises(
            SourceError, match=rf"a\.{form}: column 'a' .* not valid: .*\[{unit}\] {value} "
        ):
            read(form, path)


@pytest.mark.parametrize("form", WRITERS)
def test_cut_files_are_refused(tmp_path: Path, form: str) -> None:
    whole = tmp_path / f"whole.{form}"
    WRITERS[form](whole, pa.table({"a": list(range(100)), "b": ["x" * n for n in range(100)]}))
    data = whole.read_bytes()
    cases: list[Case] = []
    for size in sorted({*range(16), *range(16, len(data), len(data) // 20), len(data) - 1}):
        path = tmp_path / f"{size}.{form}"
        path.write_bytes(data[:size])
        cases.append((form, path, None, {}))
    for (_, path, _, _), found in zip(cases, read_in_child(cases), strict=True):
        assert isinstance(found, str), (path, found)
        assert found.startswith("SourceError: ")
        assert str(path) in found
