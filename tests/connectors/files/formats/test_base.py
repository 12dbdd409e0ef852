"""Every format: types that come back exactly, projection, pruning, splits."""

import datetime as dt
import decimal
import math
import os
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.connectors import FetchSize
from spark_channel.connectors.files.options import ParquetWriteOptions
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError, TargetError
from tests.connectors.files.helpers import FORMATS, read, read_all, reader_of, write, writer_of

NESTED = ("parquet", "json", "arrow", "orc")


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
dates = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
orc_dates = st.dates(dt.date(1582, 10, 15), dt.date(9999, 12, 31))
old_times = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
orc_times = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 12, 31)).map(
    lambda value: value if value.year >= 1970 else value.replace(microsecond=0)
)

SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "b": (pa.bool_(), st.booleans()),
    "i8": (pa.int8(), ints(8)),
    "i16": (pa.int16(), ints(16)),
    "i32": (pa.int32(), ints(32)),
    "i64": (pa.int64(), ints(64)),
    "f32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "dec": (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18, allow_nan=False)),
    "money": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2, allow_nan=False)),
    "s": (pa.string(), texts),
    "day": (pa.date32(), dates),
    "ts": (pa.timestamp("us"), old_times),
    "tz": (pa.timestamp("us", "UTC"), old_times.map(lambda value: value.replace(tzinfo=dt.UTC))),
}
DEEP: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bin": (pa.binary(), st.binary(max_size=5)),
    "list": (pa.list_(pa.int32()), st.lists(st.one_of(st.none(), ints(32)), max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.decimal128(9, 2)),
        st.dictionaries(texts, st.one_of(st.none(), SCALARS["money"][1]), max_size=3).map(
            lambda found: list(found.items())
        ),
    ),
    "struct": (
        pa.struct(
            [
                ("x", pa.float64()),
                ("y", pa.list_(pa.struct([("z", pa.date32()), ("w", pa.string())]))),
            ]
        ),
        st.fixed_dictionaries(
            {
                "x": st.one_of(st.none(), st.floats(-1e9, 1e9)),
                "y": st.one_of(
                    st.none(),
                    st.lists(
                        st.fixed_dictionaries(
                            {"z": st.one_of(st.none(), orc_dates), "w": st.one_of(st.none(), texts)}
                        ),
                        max_size=2,
                    ),
                ),
            }
        ),
    ),
}


@st.composite
def tables(draw: st.DrawFn, form: str) -> pa.Table:
    kinds = SCALARS if form == "csv" else SCALARS | DEEP
    rows = draw(st.integers(1, 5))
    columns = {}
    with decimal.localcontext(prec=60):
        for name, (kind, values) in kinds.items():
            if form == "orc" and pa.types.is_date(kind):
                values = orc_dates
            if form == "orc" and pa.types.is_timestamp(kind):
                values = (
                    orc_times
                    if kind.tz is None
                    else orc_times.map(lambda value: value.replace(tzinfo=dt.UTC))
                )
            items = draw(st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows))
            columns[name] = pa.array(items, kind)
    return pa.table(columns)


@pytest.mark.parametrize("form", FORMATS)
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=40)
@given(data=st.data())
def test_every_type_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    table = data.draw(tables(form))
    target = tmp_path_factory.mktemp("types") / "out"
    write(form, target, table)
    found = read(form, target)
    for name in table.schema.names:
        assert found.schema.field(name).type == table.schema.field(name).type
        assert found.column(name).to_pylist() == table.column(name).to_pylist(), name


@pytest.mark.parametrize("form", ["parquet", "json", "arrow", "csv", "orc"])
def test_what_is_not_a_number_comes_back(tmp_path: Path, form: str) -> None:
    table = pa.table({"f": [math.nan, math.inf, -math.inf, -0.0, 0.1, None], "n": range(6)})
    write(form, tmp_path / "out", table)
    assert repr(read(form, tmp_path / "out").column("f").to_pylist()) == repr(
        table.column("f").to_pylist()
    )


def test_parquet_and_arrow_carry_more(tmp_path: Path) -> None:
    table = pa.table(
        {
            "large": pa.array(["x", None], pa.large_string()),
            "interval": pa.array([5, None], pa.duration("us")),
            "u": pa.array([2**32 - 1, None], pa.uint32()),
            "clock": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
            "zone": pa.array(
                [dt.datetime(2020, 7, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Berlin")
            ),
        }
    )
    for form in ("parquet", "arrow"):
        write(form, tmp_path / form, table)
        assert read(form, tmp_path / form).equals(table)
    months = pa.table({"m": pa.array([(1, 2, 3), None], pa.month_day_nano_interval())})
    write("arrow", tmp_path / "months", months)
    assert read("arrow", tmp_path / "months").equals(months)
    with pytest.raises(SchemaError, match="column 'm'"):
        write("parquet", tmp_path / "no", months)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("orc", pa.duration("us")),
        ("orc", pa.timestamp("us", "Europe/Berlin")),
        ("orc", pa.uint8()),
        ("json", pa.duration("us")),
        ("json", pa.map_(pa.int32(), pa.string())),
        ("json", pa.time64("us")),
        ("parquet", pa.list_(pa.struct([]))),
    ],
)
def test_a_type_that_cannot_be_carried_is_refused_by_name(
    tmp_path: Path, form: str, kind: pa.DataType
) -> None:
    table = pa.table({"fine": [1], "odd": pa.nulls(1, kind)})
    with pytest.raises(SchemaError, match="column 'odd'"):
        write(form, tmp_path / "out", table)
    assert list(tmp_path.iterdir()) == []


def test_orc_refuses_times_that_it_could_not_give_back(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us"))})
    with pytest.raises(TargetError, match=r"column 't' holds a time outside"):
        write("orc", tmp_path / "out", table)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_orc_refuses_parts_of_a_second_that_spark_fails_at(
    tmp_path: Path, zone: str | None
) -> None:
    for number, (value, good) in enumerate(
        [(-1, False), (-1_500_000, False), (-2_000_000, True), (0, True), (1, True)]
    ):
        times = pa.array([value, None], pa.int64()).cast(pa.timestamp("us", zone))
        for name, values in (("t", times), ("l", pa.ListArray.from_arrays([0, 2], times))):
            table, target = pa.table({name: values}), tmp_path / f"{name}{number}"
            if good:
                write("orc", target, table)
                assert read("orc", target).column(name).to_pylist() == values.to_pylist()
                continue
            with pytest.raises(TargetError, match=rf"column '{name}' holds 1969-12-31 23:59:5"):
                write("orc", target, table)


def test_orc_refuses_days_that_spark_would_read_as_others(tmp_path: Path) -> None:
    for number, values in enumerate(([dt.date(1582, 10, 14)], [[dt.date(1000, 1, 1)]])):
        with pytest.raises(TargetError, match=r"column 'd' holds the date 1\d\d\d-"):
            write("orc", tmp_path / str(number), pa.table({"d": values}))


@pytest.fixture
def wide() -> pa.Table:
    return pa.table(
        {
            "i": range(1000),
            "s": [f"row {i}" for i in range(1000)],
            "f": [i / 7 for i in range(1000)],
        }
    )


def store_in_parts(form: str, folder: Path, table: pa.Table) -> Path:
    """One foreign file that the format can be split in, in ten parts where it has parts."""
    path = folder / f"data.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=100)
    elif form == "orc":
        with orc.ORCWriter(str(path), stripe_size=1024, batch_size=100) as out:
            for start in range(0, 1000, 100):
                out.write(table.slice(start, 100))
    elif form == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as out:
            out.write_table(table, max_chunksize=100)
    else:
        write(form, folder / "made", table)
        next((folder / "made").glob("part-*")).rename(path)
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_a_large_file_is_cut_and_covered_once(tmp_path: Path, wide: pa.Table, form: str) -> None:
    path = store_in_parts(form, tmp_path, wide)
    for size in (100, 2000, 10**9):
        reader = reader_of(form, path, splitBytes=str(size))
        found = read_all(reader)
        assert found.column("i").to_pylist() == list(range(1000))
        assert found.column("s").equals(wide.column("s"))
        splits = reader.split(1)
        assert (len(splits) > 1) == (size < 10**9)
        assert sum(split.nbytes or 0 for split in splits) <= path.stat().st_size
        if form in ("parquet", "orc"):
            assert abs(sum(split.rows or 0 for split in splits) - 1000) < len(splits)


@pytest.mark.parametrize("form", FORMATS)
def test_small_files_are_packed(tmp_path: Path, wide: pa.Table, form: str) -> None:
    write(form, tmp_path / "out", *[wide.slice(n * 10, 10) for n in range(100)])
    total = sum(path.stat().st_size for path in (tmp_path / "out").glob("part-*"))
    reader = reader_of(form, tmp_path / "out", splitBytes=str(total // 10))
    reader.schema()
    splits = reader.split(10)
    assert 5 <= len(splits) <= 20
    sizes = [split.nbytes or 0 for split in splits]
    assert max(sizes) < 3 * (sum(sizes) / len(sizes))
    assert sum(split.rows or 0 for split in splits) == 1000
    assert sorted(read_all(reader).column("i").to_pylist()) == list(range(1000))


@pytest.mark.parametrize("form", FORMATS)
def test_columns_and_where(tmp_path: Path, wide: pa.Table, form: str) -> None:
    path = store_in_parts(form, tmp_path, wide)
    found = read(form, path, columns="F, i", where="s LIKE 'row 1_' AND i <> 13")
    assert found.schema.names == ["f", "i"]
    assert found.column("i").to_pylist() == [10, 11, 12, 14, 15, 16, 17, 18, 19]
    assert read(form, path, where="1 = 0").num_rows == 0
    with pytest.raises(OptionError, match="'columns' names 'zz'"):
        read(form, path, columns="i,zz")


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, wide: pa.Table) -> None:
    path = store_in_parts("parquet", tmp_path, wide)
    reader = reader_of("parquet", path, where="i BETWEEN 250 AND 349", splitBytes="1")
    reader.schema()
    splits = reader.split(1)
    assert sum(split.rows or 0 for split in splits) == 200
    assert read_all(reader).num_rows == 100
    nothing = reader_of("parquet", path, where="i > 5000")
    nothing.schema()
    assert nothing.split(4) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_fetch_brings_no_more_than_the_limit_wants(
    tmp_path: Path, wide: pa.Table, form: str
) -> None:
    path = store_in_parts(form, tmp_path, wide)
    reader = reader_of(form, path)
    reader.fetch_size = FetchSize(rows=7)
    reader.schema()
    batches = [batch for split in reader.split(1) for batch in reader.read(split)]
    assert max(batch.num_rows for batch in batches) <= 7
    assert sum(batch.num_rows for batch in batches) == 1000


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
def test_files_that_differ(tmp_path: Path, form: str) -> None:
    write(form, tmp_path / "a", pa.table({"x": pa.array([1], pa.int32()), "y": ["one"]}))
    write(form, tmp_path / "b", pa.table({"X": pa.array([2], pa.int64()), "z": [True]}))
    for name in ("a", "b"):
        next((tmp_path / name).glob("part-*")).rename(tmp_path / f"{name}.{form}")
    os.utime(tmp_path / f"b.{form}", ns=(time.time_ns() + 10**9,) * 2)
    found = read(form, tmp_path / f"*.{form}")
    assert found.to_pydict() == {"x": [1, 2], "y": ["one", None], "z": [None, True]}
    wrong = reader_of(form, tmp_path / f"a.{form}").with_schema(
        pa.schema([("x", pa.int8()), ("y", pa.int64())])
    )
    with pytest.raises(SourceError, match=r"column 'y' is string there and does not fit int64"):
        read_all(wrong)


def test_merged_schemas(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": pa.array([2], pa.int64()), "y": ["two"]}), tmp_path / "2.parquet")
    os.utime(tmp_path / "2.parquet", ns=(time.time_ns() + 10**9,) * 2)
    found = read("parquet", tmp_path)
    assert found.to_pydict() == {"x": [1, 2], "y": [None, "two"]}
    assert found.schema.field("x").type == pa.int32()
    merged = read("parquet", tmp_path, mergeSchema="true")
    assert merged.to_pydict() == {"x": [1, 2], "y": [None, "two"]}
    assert merged.schema.field("x").type == pa.int64()


def test_a_merged_column_that_a_file_lacks_may_be_null(tmp_path: Path) -> None:
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"n": [1], "m": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2]}, schema=required), tmp_path / "b.parquet")
    more = pa.schema([*required, pa.field("r", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"n": [3], "r": [3]}, schema=more), tmp_path / "c.parquet")
    merged = read("parquet", tmp_path, mergeSchema="true")
    assert merged.to_pydict() == {
        "n": [1, 2, 3],
        "m": ["x", None, None],
        "r": [None, None, 3],
    }


@pytest.mark.parametrize("form", ["parquet", "orc", "arrow"])
def test_columns_of_several_appends_do_not_depend_on_the_names_of_files(
    tmp_path: Path, form: str
) -> None:
    """Each job's id is in the names of its files."""
    for number, (first, second) in enumerate([("a", "z"), ("z", "a")]):
        folder = tmp_path / str(number)
        write(form, folder, pa.table({"x": [1]}), job=first)
        write(form, folder, pa.table({"c": ["new"], "x": [2]}), job=second)
        found = read(form, folder)
        assert found.schema.names == ["x", "c"]
        assert sorted(found.to_pylist(), key=lambda row: row["x"]) == [
            {"x": 1, "c": None},
            {"x": 2, "c": "new"},
        ]


@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")])
def test_a_column_is_not_null_if_it_is_so_in_all_files(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"id": [1, 2]}, schema=required), tmp_path / f"{names[0]}.parquet")
    pq.write_table(
        pa.table({"id": pa.array([3, None], pa.int64())}), tmp_path / f"{names[1]}.parquet"
    )
    found = read("parquet", tmp_path).column("id").to_pylist()
    assert sorted(found, key=str) == [1, 2, 3, None]


def test_one_column_in_two_spellings_is_one(tmp_path: Path) -> None:
    for number, name in enumerate(("Id", "id")):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({name: [number]}), path)
        os.utime(path, ns=(time.time_ns() + number * 10**9,) * 2)
    for merge in ("false", "true"):
        assert read("parquet", tmp_path, mergeSchema=merge).to_pydict() == {"Id": [0, 1]}


def test_dictionary_columns_come_as_their_values(tmp_path: Path) -> None:
    table = pa.table({"d": pa.array(["x", "y", None]).dictionary_encode()})
    pq.write_table(table, tmp_path / "d.parquet")
    found = read("parquet", tmp_path / "d.parquet", where="d = 'x'")
    assert found.to_pydict() == {"d": ["x"]}
    assert found.schema.field("d").type == pa.string()


def test_an_arrow_stream_is_read_too(tmp_path: Path, wide: pa.Table) -> None:
    with pa.ipc.new_stream(str(tmp_path / "s.arrow"), wide.schema) as out:
        out.write_table(wide, max_chunksize=100)
    assert read("arrow", tmp_path / "s.arrow", splitBytes="1", columns="i").column(
        "i"
    ).to_pylist() == list(range(1000))


@pytest.mark.parametrize(
    ("form", "codec", "level"),
    [("parquet", c, None) for c in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")]
    + [("parquet", "zstd", "9"), ("arrow", "lz4", None), ("arrow", "zstd", "3")]
    + [("orc", "snappy", None), ("orc", "zlib", None), ("orc", "none", None)]
    + [(form, codec, None) for form in ("csv", "json") for codec in ("gzip", "bz2", "zstd", "lz4")]
    + [("csv", "gzip", "9"), ("json", "bz2", "1")],
)
def test_codecs(tmp_path: Path, wide: pa.Table, form: str, codec: str, level: str | None) -> None:
    options: dict[str, Any] = {"compression": codec} | (
        {"compressionLevel": level} if level else {}
    )
    write(form, tmp_path / "out", wide, **options)
    assert read(form, tmp_path / "out").equals(wide)


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("parquet", {"compression": "lzo"}, "one of none, snappy"),
        ("parquet", {"compressionLevel": "3"}, "nothing for snappy"),
        ("csv", {"compression": "gzip", "compressionLevel": "11"}, "1 to 9 for gzip"),
        ("orc", {"compressionLevel": "3"}, "has a strategy"),
        ("csv", {"partitionBy": "k"}, "one directory"),
        ("json", {"multiLine": "true"}, "unknown option"),
    ],
)
def test_write_options_that_are_refused(
    tmp_path: Path, form: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        writer_of(form, tmp_path, **options)


def test_files_end_after_the_records_that_spark_s_option_names(tmp_path: Path) -> None:
    options, _ = ParquetWriteOptions.parse({"path": str(tmp_path), "maxRecordsPerFile": "3"})
    assert options.max_rows_per_file == 3


def test_row_groups_have_the_size_asked_for(tmp_path: Path, wide: pa.Table) -> None:
    write("parquet", tmp_path / "out", wide, rowGroupRows="300")
    (path,) = (tmp_path / "out").glob("part-*")
    meta = pq.ParquetFile(path).metadata
    assert [meta.row_group(n).num_rows for n in range(meta.num_row_groups)] == [300, 300, 300, 100]


def test_json_values_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"a": 1.10, "b": "NaN", "c": {"k": [1]}, "d": "2020-01-01", "t": "2020-01-01T00:00:00+01:00"}\n'
        '\n{"c": 5}\n'
    )
    schema = pa.schema(
        [
            ("a", pa.decimal128(5, 2)),
            ("b", pa.float64()),
            ("c", pa.string()),
            ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    found = read_all(reader_of("json", path).with_schema(schema)).to_pylist()
    assert found[0]["a"] == Decimal("1.10")
    assert math.isnan(found[0]["b"])
    assert found[0]["c"] == '{"k": [1]}'
    assert found[0]["d"] == dt.date(2020, 1, 1)
    assert found[0]["t"] == dt.datetime(2019, 12, 31, 23, tzinfo=dt.UTC)
    assert found[1] == {"a": None, "b": None, "c": "5", "d": None, "t": None}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"n": "x"}', r"line 3: column 'n' \(int64\) cannot hold \"x\""),
        ('{"n": 1.5}', r"line 3: column 'n' \(int64\) cannot hold"),
        (
            '{"n": 99999999999999999999}',
            r"line 3: column 'n' \(int64\) cannot hold 99999999999999999999",
        ),
        ('{"n": ', r"line 3: not JSON"),
        ("[1]", r"line 3: not an object"),
    ],
)
def test_a_json_line_that_does_not_fit_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n{"n": null}\n' + line + "\n")
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(SourceError, match=message):
        read_all(reader_of("json", path, splitBytes="12").with_schema(schema))
    kept = read_all(reader_of("json", path, mode="DROPMALFORMED").with_schema(schema))
    assert kept.column("n").to_pylist() == [1, None]


def test_a_json_field_beyond_the_sample_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 100 + '{"a": 1, "late": 2}\n')
    with pytest.raises(SourceError, match=r"line 101: field late was not in the sample"):
        read("json", path, sampleBytes="50")
    assert read("json", path).column("late").null_count == 100
    assert read("json", path, columns="a", sampleBytes="50").num_rows == 101


def test_a_json_field_of_several_kinds_is_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"a": 1, "b": [1]}\n{"a": "x", "b": [2.5, null]}\n{"a": {"k": true}, "c": null}\n'
    )
    found = read("json", path)
    assert found.to_pylist() == [
        {"a": "1", "b": [1.0], "c": None},
        {"a": "x", "b": [2.5, None], "c": None},
        {"a": '{"k": true}', "b": None, "c": None},
    ]


def test_json_texts_stay_text_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"t": "2020-01-01T00:00:00"}\n')
    assert read("json", path).column("t").to_pylist() == ["2020-01-01T00:00:00"]
    assert read("json", path, inferTimestamp="true").column("t").to_pylist() == [
        dt.datetime(2020, 1, 1)
    ]


def test_json_nulls_can_be_written(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None], "b": [None, "x"]})
    write("json", tmp_path / "out", table, ignoreNullFields="false")
    (path,) = (tmp_path / "out").glob("part-*")
    assert path.read_text() == '{"a":1,"b":null}\n{"a":null,"b":"x"}\n'
    write("json", tmp_path / "short", table)
    (path,) = (tmp_path / "short").glob("part-*")
    assert path.read_text() == '{"a":1}\n{"b":"x"}\n'


@pytest.mark.parametrize("form", NESTED)
def test_a_null_struct_whose_field_is_never_null(form: str, tmp_path: Path) -> None:
    """What Spark makes of `SELECT named_struct('b', named_struct('c', 2)) UNION ALL SELECT NULL`."""
    inner = pa.struct([pa.field("c", pa.int32(), nullable=False)])
    kind = pa.struct([pa.field("b", inner, nullable=True)])
    rows = [{"b": {"c": 2}}, None, {"b": None}]
    write(
        form,
        tmp_path / "out",
        pa.table({"s": pa.array(rows, kind), "l": pa.array([rows] * 3, pa.list_(kind))}),
    )
    found = read(form, tmp_path / "out")
    assert found.column("s").to_pylist() == rows
    assert found.column("l").to_pylist() == [rows] * 3


@pytest.mark.parametrize("most", ["3", "7", "100"])
@pytest.mark.parametrize("form", NESTED)
def test_null_structs_in_parts_of_a_batch(form: str, most: str, tmp_path: Path) -> None:
    """A batch is cut where files end, and by limits on rows."""
    point = pa.struct([("x", pa.int32()), ("y", pa.string())])
    points = [None if n % 3 == 0 else {"x": n, "y": str(n)} for n in range(60)]
    pairs = [points[n : n + n % 4] for n in range(60)]
    rows: dict[str, tuple[pa.DataType, list[Any]]] = {
        "n": (pa.int64(), list(range(60))),
        "struct": (point, points),
        "inner": (
            pa.struct([("p", point), ("z", pa.int64())]),
            [{"p": each, "z": n} for n, each in enumerate(points)],
        ),
        "list": (pa.list_(point), [None if n % 5 == 0 else each for n, each in enumerate(pairs)]),
        "map": (
            pa.map_(pa.string(), point),
            [[(str(at), each) for at, each in enumerate(pair)] for pair in pairs],
        ),
        "of_lists": (
            pa.struct([("l", pa.list_(pa.struct([("p", point)])))]),
            [
                None if n % 7 == 0 else {"l": [{"p": each} for each in pair]}
                for n, pair in enumerate(pairs)
            ],
        ),
    }
    table = pa.table({name: pa.array(values, kind) for name, (kind, values) in rows.items()})
    write(form, tmp_path / "out", table, maxRecordsPerFile=most)
    found = read(form, tmp_path / "out").sort_by("n")
    for name, (kind, values) in rows.items():
        assert found.schema.field(name).type == kind
        assert found.column(name).to_pylist() == pa.array(values, kind).to_pylist(), name


def test_orc_refuses_the_nanoseconds_that_it_cannot_read(tmp_path: Path) -> None:
    kind = pa.timestamp("ns")
    write("orc", tmp_path / "whole", pa.table({"t": pa.array([1_000, None], kind)}))
    assert read("orc", tmp_path / "whole").num_rows == 2
    with pytest.raises(ChannelError, match="'t' holds a time with nanoseconds"):
        write("orc", tmp_path / "parts", pa.table({"t": pa.array([1_000, 1_001], kind)}))


def test_row_groups_have_about_the_bytes_asked_for(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(10_000), pa.int64())})
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=1_000))
    write("parquet", tmp_path / "out", batches, rowGroupBytes="16kB")
    (path,) = (tmp_path / "out").glob("part-*")
    meta = pq.ParquetFile(path).metadata
    assert {meta.row_group(n).num_rows for n in range(meta.num_row_groups)} == {2_000}
