"""Files, as spark-channel reads and writes them, and as readers do that share no code with it."""

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import ChannelError
from tests.behaviour.differential import inputs, judges
from tests.behaviour.differential.corpus import BAD, judge_folder
from tests.behaviour.differential.differences import PAGE, accepted, page, refused_on_purpose
from tests.behaviour.differential.inputs import (
    CSV_ODD,
    JSON_ODD,
    MODERN,
    PLAIN,
    SINCE_1970,
    UNSIGNED,
    Odd,
)
from tests.behaviour.differential.lengths import either_length, examples
from tests.behaviour.differential.tables import Found, difference, from_arrow, of_rows

FOLDER = "SPARK_CHANNEL_CORPUS"
"""The environment variable that names a folder of files that other programs made."""

ARROW_TYPES = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}


def assert_equal(form: str, ours: Found, theirs: Found, *, ordered: bool = True) -> None:
    found = difference(*accepted(form, ours, theirs), ordered=ordered)
    assert found is None, found


def test_the_page_of_differences_is_true() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.behaviour.differential.differences"
    )


# Columnar files


@st.composite
def parquet_settings(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "version": draw(st.sampled_from(["1.0", "2.4", "2.6"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "use_dictionary": draw(st.booleans()),
        "compression": draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"])),
        "row_group_size": draw(st.sampled_from([1, 3, 1000])),
        "data_page_size": draw(st.sampled_from([100, 1 << 20])),
        "store_schema": draw(st.booleans()),
        "write_statistics": draw(st.booleans()),
    }


@either_length
def test_parquet_of_arrow_is_read_as_duckdb_reads_it(tmp_path: Path, length: str) -> None:
    @examples(length)
    @given(
        inputs.tables([*PLAIN, *UNSIGNED, inputs.BINARY, inputs.CLOCK], deep=True),
        parquet_settings(),
    )
    def check(table: pa.Table, options: dict[str, Any]) -> None:
        path = tmp_path / "a.parquet"
        pq.write_table(table, path, **options)
        try:
            ours = judges.channel({"reader": "parquet", "path": str(path)}, splits=2)
        except ChannelError as error:
            if not refused_on_purpose("parquet", error):
                raise
        else:
            assert_equal("parquet", ours, judges.duckdb_reads("parquet", path))

    check()


@either_length
def test_parquet_of_duckdb_is_read_as_it_was_written(tmp_path: Path, length: str) -> None:
    @examples(length)
    @given(inputs.tables([*PLAIN, *UNSIGNED, inputs.BINARY, inputs.CLOCK], deep=True))
    def check(table: pa.Table) -> None:
        path = tmp_path / "a.parquet"
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("given", table)
            connection.execute(f"COPY given TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
        ours = judges.channel({"reader": "parquet", "path": str(path)})
        assert_equal("parquet", ours, judges.duckdb_reads("parquet", path))

    check()


@either_length
def test_orc_of_arrow_is_read_as_pyorc_reads_it(tmp_path: Path, length: str) -> None:
    pytest.importorskip("pyorc", reason="pyorc is the other reader of ORC files")

    @examples(length)
    @given(inputs.tables([*MODERN, inputs.BINARY], deep=True, names=("a", "B", "é")))
    def check(table: pa.Table) -> None:
        path = tmp_path / "a.orc"
        orc.write_table(table, path, compression="zstd", stripe_size=4096)
        ours = judges.channel({"reader": "orc", "path": str(path)}, splits=2)
        assert_equal("orc", ours, judges.pyorc_reads(path))

    check()


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "json"])
@either_length
def test_a_written_file_is_read_back_by_others(tmp_path: Path, form: str, length: str) -> None:
    kinds = {
        "parquet": [*PLAIN, inputs.BINARY, inputs.CLOCK],
        "orc": [*SINCE_1970, inputs.BINARY],
        "csv": [each for each in PLAIN if each[0] == pa.string()],
        "json": [
            each for each in PLAIN if each[0] in ARROW_TYPES.values() and each[0] != pa.float64()
        ],
    }[form]
    if form == "orc":
        pytest.importorskip("pyorc", reason="pyorc is the other reader of ORC files")
    number = 0

    @examples(length)
    @given(inputs.tables(kinds, deep=form in ("parquet", "orc"), names=("a", "B", "é", "c d")))
    def check(table: pa.Table) -> None:
        nonlocal number
        number += 1
        source, target = tmp_path / f"{number}.arrow", tmp_path / f"{number}"
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
        null = {"nullValue": "\\N"} if form == "csv" else {}
        report = spark_channel.transfer(
            None,
            {"name": "arrow", "path": str(source)},
            {"name": form, "path": str(target), **null},
            channels=1,
        )
        assert report.rows == table.num_rows
        (path,) = [each for each in target.iterdir() if each.is_file() and each.name[0] not in "._"]
        if form == "parquet":
            theirs = judges.duckdb_reads("parquet", path)
        elif form == "orc":
            theirs = judges.pyorc_reads(path)
        elif form == "json":
            theirs = judges.json_lines(
                path.read_bytes(), {c.name: c.kind for c in from_arrow(table).columns}
            )
        else:
            theirs = judges.text_rows(path.read_bytes().decode(), null="\\N")
        assert_equal(form, from_arrow(table), theirs)

    check()


# Text files


def read_texts(path: Path, **options: Any) -> Found:
    return judges.channel({"reader": "csv", "path": str(path), "inferSchema": "false", **options})


@pytest.mark.parametrize("odd", CSV_ODD, ids=lambda odd: odd.what)
def test_odd_csv(odd: Odd, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(odd.data)
    if odd.rows is None:
        with pytest.raises(ChannelError, match=r"a\.csv"):
            read_texts(path)
        return
    right = of_rows(odd.names, ["text"] * len(odd.names), odd.rows)
    assert_equal("csv", judges.text_rows(odd.data.decode("utf-8-sig")), right)
    assert_equal("csv", read_texts(path), right)


@either_length
def test_csv_is_read_as_a_parser_of_characters_reads_it(tmp_path: Path, length: str) -> None:
    path = tmp_path / "a.csv"

    @examples(length)
    @given(inputs.csv_texts(), st.booleans())
    def check(text: str, multi_line: bool) -> None:
        path.write_bytes(text.encode())
        theirs = judges.text_rows(text)
        try:
            ours = read_texts(path, multiLine=str(multi_line).lower())
        except ChannelError:
            # Line ends inside quotes may be refused where they were not announced, and nothing else.
            assert not multi_line
            assert any("\n" in str(v) or "\r" in str(v) for c in theirs.columns for v in c.values)
            return
        assert_equal("csv", ours, theirs)

    check()


@either_length
def test_inferred_types_of_csv_change_no_value(tmp_path: Path, length: str) -> None:
    path = tmp_path / "a.csv"
    words = st.sampled_from(inputs.ODD_NUMBERS)

    @examples(length)
    @given(st.lists(st.lists(words, min_size=1, max_size=4), min_size=2, max_size=2), st.booleans())
    def check(columns: list[list[str]], mixed: bool) -> None:
        rows = list(zip(*(column * 4 for column in columns), strict=False))[: 4 if mixed else 3]
        path.write_text("a,b\n" + "".join(",".join(row) + "\n" for row in rows))
        texts = judges.channel_table({"reader": "csv", "path": str(path), "inferSchema": "false"})
        typed = judges.channel_table({"reader": "csv", "path": str(path)})
        changed = judges.changed_texts(typed, texts)
        assert changed is None, changed

    check()


def test_an_empty_value_at_the_end_of_a_csv_file_is_null(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n"x",')
    assert_equal("csv", read_texts(path), of_rows(["a", "b"], ["text"] * 2, [["x", None]]))


@pytest.mark.parametrize("value", ["1 ", " 1", '"1 "'])
def test_blanks_make_no_text_of_a_number(value: str, tmp_path: Path) -> None:
    """As in DuckDB; Spark reads a text."""
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n{value},x\n")
    found = judges.channel_table({"reader": "csv", "path": str(path)})
    assert found.to_pylist() == [{"a": 1, "b": "x"}]


def test_an_arrow_file_without_offsets_has_no_rows(tmp_path: Path) -> None:
    """Arrow 0.14 wrote no offsets for a batch without rows."""
    path = tmp_path / "a.arrow"
    empty = pa.py_buffer(b"")
    batch = pa.RecordBatch.from_arrays([pa.StringArray.from_buffers(0, empty, empty)], ["a"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    ours = judges.channel({"reader": "arrow", "path": str(path)})
    assert_equal("arrow", ours, of_rows(["a"], ["text"], []))


@pytest.mark.parametrize("odd", JSON_ODD, ids=lambda odd: odd.what)
def test_odd_json(odd: Odd, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(odd.data)
    options = {"reader": "json", "path": str(path)}
    if odd.rows is None:
        with pytest.raises(ChannelError, match=r"a\.json"):
            judges.channel(options)
        return
    kind = "text" if isinstance(odd.rows[0][0], str) else "int64"
    right = of_rows(odd.names, [kind] * 2, odd.rows)
    assert_equal("json", judges.channel(options), right)


@either_length
def test_json_is_read_as_python_reads_it(tmp_path: Path, length: str) -> None:
    path = tmp_path / "a.json"

    @examples(length)
    @given(inputs.json_texts())
    def check(made: tuple[dict[str, str], str]) -> None:
        kinds, text = made
        path.write_text(text, newline="", encoding="utf-8")
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in kinds.items()])
        ours = judges.channel({"reader": "json", "path": str(path)}, schema=schema)
        assert_equal("json", ours, judges.json_lines(text.encode(), kinds))

    check()


# Spark's own readers


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "json"])
@either_length
def test_files_are_read_as_spark_reads_them(
    spark: SparkSession, form: str, tmp_path: Path, length: str
) -> None:
    texts = [each for each in PLAIN if each[0] == pa.string()]
    lines = [each for each in PLAIN if each[0] in (pa.int64(), pa.string(), pa.bool_())]
    kinds = {
        "parquet": [*PLAIN, inputs.BINARY],
        "orc": [*SINCE_1970, inputs.BINARY],
        "csv": texts,
        "json": lines,
    }
    number = 0

    @examples(length, quick=2)
    @given(
        inputs.tables(
            kinds[form], deep=form in ("parquet", "orc"), names=("a", "B", "é", "c d"), rows=30
        )
    )
    def check(table: pa.Table) -> None:
        nonlocal number
        number += 1
        path = tmp_path / f"{number}.{form}"
        options = {"reader": form, "path": str(path)}
        given: dict[str, Any] = {}
        if form == "parquet":
            pq.write_table(table, path)
        elif form == "orc":
            orc.write_table(table, path)
        elif form == "csv":
            _write_csv(table, path)
            options |= {"inferSchema": "false", "multiLine": "true"}
            given = {
                "header": True,
                "multiLine": True,
                "schema": ", ".join(f"`{name}` string" for name in table.column_names),
            }
            given |= {"nullValue": "", "emptyValue": ""}
        else:
            path.write_text(
                "".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8"
            )
            spark_names = {pa.int64(): "bigint", pa.string(): "string", pa.bool_(): "boolean"}
            given = {
                "schema": ", ".join(
                    f"`{field.name}` {spark_names[field.type]}" for field in table.schema
                )
            }
        theirs = judges.spark_reads(spark, form, path, **given)
        ours = judges.channel(options, schema=table.schema if form == "json" else None)
        assert_equal(form, ours, theirs)

    check()


def _write_csv(table: pa.Table, path: Path) -> None:
    """Texts in quotes, as both readers take them; Spark reads an empty one as NULL."""

    def shown(value: str | None) -> str:
        return "" if not value else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    rows = [table.column_names, *(row.values() for row in table.to_pylist())]
    path.write_bytes("".join(",".join(map(shown, row)) + "\n" for row in rows).encode())


# Files that others made


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_files_of_others() -> None:
    """Set SPARK_CHANNEL_CORPUS to a folder of Parquet, ORC, CSV, JSON, Arrow files and Delta tables."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        pytest.skip(f"{FOLDER} names no folder")
    verdicts = judge_folder(
        Path(folder), report=lambda each: print(each.outcome, each.path, each.reason)
    )
    faults = [each for each in verdicts if each.outcome in BAD]
    assert verdicts
    assert not faults, "\n".join(f"{each.outcome} {each.path}: {each.reason}" for each in faults)
