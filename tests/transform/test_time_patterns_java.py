"""Dates and times by Java's patterns: a value that its pattern would write otherwise is refused."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.errors import OptionError, SourceError
from spark_channel.transform.time_patterns import TimePattern
from tests.connectors.files.helpers import read_all, reader_of, write

TIME = dt.datetime(2024, 1, 5, 3, 4, 9, 123456)


@pytest.mark.parametrize(
    ("pattern", "text", "micros"),
    [
        ("dd/MM/yyyy", "05/01/2024", 0),
        ("d.M.yyyy H:m:s", "5.1.2024 3:4:9", 9_000_000),
        ("yyyy-MM-dd HH:mm:ss.SSS", "2024-01-05 03:04:09.123", 9_123_000),
        ("yyyyMMddHHmmssSSSSSS", "20240105030409123456", 9_123_456),
        ("yyy-MM-dd'T'HH:mm:ssXXX", "2024-01-05T03:04:09Z", 9_000_000),
        ("HH:mm dd.MM.yyyy Z", "03:04 05.01.2024 +0000", 0),
        ("yyyy'年'M'月'd'日'", "2024年1月5日", 0),
        ("''yyyy.MM.dd 'o''clock' HH", "'2024.01.05 o'clock 03", 0),
    ],
)
def test_what_a_pattern_writes_it_reads(pattern: str, text: str, micros: int) -> None:
    made = TimePattern.from_text(pattern)
    assert made.format(pa.array([TIME, None])).to_pylist() == [text, None]
    found = made.parse(pa.array([None, text, None, text]).slice(1))
    time = TIME if "H" in pattern else dt.datetime(2024, 1, 5)
    time = time.replace(second=0, microsecond=0) + dt.timedelta(microseconds=micros)
    if "mm" not in pattern and "m:s" not in pattern:
        time = time.replace(minute=0)
    assert found.to_pylist() == [
        time.replace(tzinfo=dt.UTC) if made.has_zone else time,
        None,
        time.replace(tzinfo=dt.UTC) if made.has_zone else time,
    ]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (
            "dd/MM/yyyy",
            [
                "31/02/2024",
                "30/02/2024",
                "29/02/2023",
                "00/01/2024",
                "01/13/2024",
                "1/1/2024",
                "01/01/24",
            ],
        ),
        (
            "dd/MM/yyyy",
            [
                "01/01/2024 ",
                " 01/01/2024",
                "01-01-2024",
                "01/01/02024",
                "2024-01-01",
                "+1/01/2024",
                "",
            ],
        ),
        (
            "dd/MM/yyyy HH:mm:ss",
            ["01/01/2024 23:59:60", "01/01/2024 24:00:00", "01/01/2024 10:60:00"],
        ),
        ("d/M/yyyy", ["31/2/2024", "05/2/2024", "5/02/2024", "0/1/2024"]),
        (
            "yyyy-MM-dd HH:mm:ss.SSS",
            ["2024-01-01 10:00:00", "2024-01-01 10:00:00.1", "2024-01-01 10:00:00.1234"],
        ),
        (
            "yyyy-MM-dd HH:mmXXX",
            ["2024-01-01 10:00+01", "2024-01-01 10:00", "2024-01-01 10:00+25:00"],
        ),
    ],
)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_value_that_a_pattern_would_write_otherwise_is_refused(
    tmp_path: Path, form: str, pattern: str, texts: list[str]
) -> None:
    path = tmp_path / f"data.{form}"
    zoned = "X" in pattern
    kind = pa.date32() if "H" not in pattern else pa.timestamp("us", "UTC" if zoned else None)
    option = "dateFormat" if "H" not in pattern else "timestampFormat"
    for text in filter(None, texts):
        path.write_text(f'{{"a":"{text}"}}\n' if form == "json" else f"a,b\n{text},1\n")
        reader = reader_of(form, path, **{option: pattern}).with_schema(
            pa.schema([("a", kind)] if form == "json" else [("a", kind), ("b", pa.int8())])
        )
        with pytest.raises(SourceError, match=r"line [12]: column 'a'.*cannot hold"):
            read_all(reader)
        if form == "csv":
            # Without a schema such a column stays text.
            assert read_all(reader_of(form, path, **{option: pattern})).column("a").to_pylist() == [
                text
            ]


def test_a_date_that_has_a_time_of_day_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    schema = pa.schema([("a", pa.date32())])
    path.write_text("a\n05.01.2024 00:00\n")
    reader = reader_of("csv", path, dateFormat="dd.MM.yyyy HH:mm").with_schema(schema)
    assert read_all(reader).column("a").to_pylist() == [dt.date(2024, 1, 5)]
    path.write_text("a\n05.01.2024 10:00\n")
    with pytest.raises(SourceError, match=r"cannot hold '05\.01\.2024 10:00'"):
        read_all(reader_of("csv", path, dateFormat="dd.MM.yyyy HH:mm").with_schema(schema))


@settings(deadline=None, max_examples=60)
@given(
    times=st.lists(st.one_of(st.none(), st.datetimes()), max_size=5),
    pattern=st.sampled_from(
        ["dd.MM.yyyy HH:mm:ss.SSSSSS", "d/M/yyyy H:m:s SSSSSS", "yyyyMMddHHmmssSSSSSSX"]
    ),
    unit=st.sampled_from(["us", "ns"]),
)
def test_any_time_survives_a_pattern_with_all_its_parts(
    times: list[dt.datetime | None], pattern: str, unit: str
) -> None:
    if unit == "ns":
        times = [time if time is None or 1700 < time.year < 2200 else None for time in times]
    made = TimePattern.from_text(pattern)
    found = made.parse(made.format(pa.array(times, pa.timestamp(unit))))
    assert [
        None if time is None else time.replace(tzinfo=None) for time in found.to_pylist()
    ] == times


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("yy-MM-dd", "'yy' is not among them"),
        ("d MMM yyyy", "'MMM' is not among them"),
        ("dd.MM.yyyy hh:mm a", "'hh' is not among them"),
        ("HH:mm", "a year, a month and a day"),
        ("MM/yyyy", "a year, a month and a day"),
        ("yyyy-MM-dd yyyy", "each part once"),
        ("yyyy-MM-dd SSSSSSSSS", "'SSSSSSSSS' is not among them"),
        ("yyyy-MM-dd'", '"\'" is not among them'),
    ],
)
def test_patterns_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, pattern: str, message: str
) -> None:
    for option in ("dateFormat", "timestampFormat"):
        with pytest.raises(OptionError, match=message):
            reader_of("csv", tmp_path, **{option: pattern})


def test_a_year_that_a_pattern_cannot_show_is_refused(tmp_path: Path) -> None:
    late = pa.table({"t": pa.array([253_402_300_800], pa.timestamp("s"))}).cast(
        pa.schema([("t", pa.timestamp("us"))])
    )
    with pytest.raises(Exception, match="years from 0 to 9999"):
        write("csv", tmp_path / "out", late, timestampFormat="yyyy-MM-dd HH:mm:ss")
