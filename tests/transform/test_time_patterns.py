"""Times by patterns, with Java's SimpleDateFormat as the judge of Java's patterns."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_channel.errors import OptionError
from spark_channel.transform import strptime_pattern
from spark_channel.transform.time_patterns import formatted, parsed

EPOCH = datetime(1970, 1, 1)


def read(java: str, *texts: str | None) -> list[Any]:
    found: list[Any] = parsed(pa.array(texts, pa.string()), strptime_pattern(java)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("java", "text", "wanted"),
    [
        (
            "yyyy-MM-dd HH:mm:ss.SSS",
            "2024-02-29 01:02:03.004",
            datetime(2024, 2, 29, 1, 2, 3, 4000),
        ),
        ("yyyyMMddHHmmssSSS", "20240229010203004", datetime(2024, 2, 29, 1, 2, 3, 4000)),
        ("yyy/M/d", "2024/1/2", datetime(2024, 1, 2)),
        ("yyyy-MM-dd HH:mm:ss", "2024-1-2 3:4:5", datetime(2024, 1, 2, 3, 4, 5)),
        ("yyyy-MM-dd", "0001-01-01", datetime(1, 1, 1)),
        ("yyyy-MM", "2024-02", datetime(2024, 2, 1)),
        ("HH:mm:ss", "23:59:58", datetime(1970, 1, 1, 23, 59, 58)),
        ("dd MMMM yyyy", "3 may 2024", datetime(2024, 5, 3)),
        ("EEE, dd MMM yyyy hh:mm a", "Wed, 31 Jan 2024 12:30 am", datetime(2024, 1, 31, 0, 30)),
        ("EEEE dd.MM.yyyy", "Wednesday 31.01.2024", datetime(2024, 1, 31)),
        ("yyyy'年'MM月dd日", "2024年01月31日", datetime(2024, 1, 31)),
        ("yyyy-MM-dd HH:mm:ss.S", "2022-12-28 00:00:00.0", datetime(2022, 12, 28)),
    ],
)
def test_a_text_is_read(java: str, text: str, wanted: datetime) -> None:
    assert read(java, text, None, text) == [wanted, None, wanted]


@pytest.mark.parametrize(
    ("java", "text"),
    [
        ("dd/MM/yyyy", "31/02/2024"),
        ("dd/MM/yyyy", "29/02/2023"),
        ("dd/MM/yyyy", "31/04/2024"),
        ("dd/MM/yyyy", "00/04/2024"),
        ("dd/MM/yyyy", "01/13/2024"),
        ("dd/MM/yyyy", "01/01/24"),
        ("dd/MM/yyyy", "01/01/2024x"),
        ("dd/MM/yyyy", "01/01/0000"),
        ("yyyyMMdd", "2024111"),
        ("HH:mm:ss", "24:00:00"),
        ("HH:mm:ss", "23:59:60"),
        ("yyyy-MM-dd HH:mm:ss", "2024-01-01 23:59:60"),
        ("yyyy-MM-dd HH:mm:ss", "2024-01-01 24:00:00"),
        ("hh:mm", "13:00"),
        ("EEE yyyy-MM-dd", "Tue 2024-01-31"),
        ("HH:mm:ss.SSS", "00:00:00.5"),  # five milliseconds for Java, half a second for others
        ("HH:mm:ss.S", "00:00:00.5"),
        ("yyyy-MM-dd", ""),
    ],
)
def test_what_does_not_exist_is_no_time(java: str, text: str) -> None:
    assert read(java, text) == [None]
    assert read(java, text, None) == [None, None]


def test_two_digits_are_a_year_around_now() -> None:
    now = datetime.now(UTC).year
    years = [moment.year for moment in read("yy", *(f"{n:02d}" for n in range(100)))]
    assert sorted(years) == list(range(now - 79, now + 21))


@pytest.mark.parametrize(
    ("java", "message"),
    [
        ("yyyy-MM-dd HH:mm:ss.SSSSSS", "'SSSSSS', which cannot be read .*milliseconds.*write SSS"),
        ("YYYY-MM-dd", "'YYYY'.*year of a week"),
        ("yyyy-MM-DD", "'DD'.*day of the year"),
        ("yyyyy", "'yyyyy'.*four digits"),
        ("kk:mm", "'kk'.*write HH"),
        ("KK:mm", "'KK'.*write hh"),
        ("yyyy-MM-dd'T'HH:mm:ssXXX", "'XXX'.*no zone"),
        ("HH:mm z", "'z'.*no zone"),
        ("HH:mm Z", "'Z'.*no zone"),
        ("G yyyy", "'G'.*not read"),
        ("u", "'u'.*not read"),
        ("yyyyMd", "where a number ends"),
        ("dHH", "where a number ends"),
        ("yyyy-MM-dd yy", "twice"),
        ("'noon'", "names no part"),
        ("yyyy-MM-dd'T", 'has "\'T"'),
        ("yyyy-MM-ddTHH", "'T', which cannot be read"),
    ],
)
def test_a_pattern_is_refused_by_its_letter(java: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        strptime_pattern(java)


@pytest.mark.parametrize(
    ("column", "pattern", "text"),
    [
        (pa.array([date(2024, 1, 2)]), "%Y/%-m/%-d %H", "2024/1/2 00"),
        (pa.array([time(1, 2, 3, 4999)]), "%-H:%M:%S.%L", "1:02:03.004"),
        (pa.array([-1], pa.timestamp("us", "Asia/Tokyo")), "%d %H:%M:%S.%L", "01 08:59:59.999"),
        (pa.array([-1], pa.timestamp("ns")), "%d %H:%M:%S", "31 23:59:59"),
    ],
)
def test_days_and_times_are_shown(column: pa.Array, pattern: str, text: str) -> None:
    assert formatted(column, pattern).to_pylist() == [text]
    assert formatted(pa.nulls(1, column.type), pattern).to_pylist() == [None]


MOMENTS = [
    EPOCH,
    datetime(2024, 2, 29, 12, 0, 0, 7000),
    datetime(1999, 12, 31, 23, 59, 59, 999000),
    datetime(2030, 5, 3, 1, 5, 9, 120000),
    datetime(1960, 9, 10, 11, 10, 10, 10000),
]
PATTERNS = [
    "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyy-MM-dd HH:mm:ss",
    "yyyyMMddHHmmssSSS",
    "yyy-MM-dd",
    "y-M-d H:m:s.S",
    "yy/MM/dd hh:mm:ss a",
    "d MMM yyyy h:mm a",
    "EEEE, dd MMMM yyyy",
    "E LLL dd HH:mm:ss yyyy",
    "yyyy'T'MM''dd%",
    "yyyy年M月d日",
    "HH:mm:ss",
]


@pytest.mark.spark
@pytest.mark.newest  # the formatter is Java's
@pytest.mark.parametrize("java", PATTERNS)
def test_javas_own_formatter_agrees(spark: SparkSession, java: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    judge = jvm.java.text.SimpleDateFormat(java, jvm.java.util.Locale.ENGLISH)
    judge.setTimeZone(jvm.java.util.TimeZone.getTimeZone("UTC"))
    judge.setLenient(False)
    pattern = strptime_pattern(java)
    millis = [(moment - EPOCH) // timedelta(milliseconds=1) for moment in MOMENTS]
    shown = [judge.format(jvm.java.util.Date(each)) for each in millis]
    assert formatted(pa.array(MOMENTS, pa.timestamp("us")), pattern).to_pylist() == shown
    for text, found in zip(shown, read(java, *shown), strict=True):
        if ".S" in java and not java.endswith("SS") and len(text.rpartition(".")[2]) < 3:
            assert found is None or text.endswith(".0")
        else:
            assert (found - EPOCH) // timedelta(milliseconds=1) == judge.parse(text).getTime()
