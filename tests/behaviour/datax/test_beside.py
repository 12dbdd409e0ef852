"""The rows that DataX itself wrote, job for job.

The values come from runs of DataX (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai) with the same jobs and files.
"""

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.datax.differences import PAGE, page
from tests.datax.ran import ran

READER: dict[str, Any] = {"column": ["*"], "fieldDelimiter": ","}
WRITER: dict[str, Any] = {"fileName": "o", "writeMode": "truncate", "fieldDelimiter": "|"}
TYPED = [{"index": 0, "type": "long"}, {"index": 1, "type": "string"}]


def moved(
    folder: Path,
    files: dict[str, bytes],
    reads: dict[str, Any],
    writes: dict[str, Any],
    steps: Any = (),
) -> tuple[list[bytes], int]:
    """The lines of the target, and how many rows were refused, of txtfilereader to txtfilewriter."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    reader = {**READER, **reads, "path": [str(folder / reads.get("path", "in.csv"))]}
    writer = {**WRITER, **writes, "path": str(folder / "out")}
    return _run(folder, {"name": "txtfilereader", "parameter": reader}, writer, steps)


def _run(
    folder: Path, reader: dict[str, Any], writer: dict[str, Any], steps: Any = ()
) -> tuple[list[bytes], int]:
    (folder / "out").mkdir()
    end = {"name": "txtfilewriter", "parameter": writer}
    content = {"reader": reader, "writer": end, "transformer": list(steps)}
    report = ran(folder, {"job": {"setting": {"speed": {"channel": 1}}, "content": [content]}})
    written = sorted((folder / "out").glob("o__*"))
    lines = [line for path in written for line in path.read_bytes().split(b"\n") if line]
    return sorted(lines), int(report["rows_refused"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b'1,"  in q "\n2, out \n', [b"1|  in q ", b"2|out"], id="inside of quotes"),
        pytest.param(
            b'1, "a,b" ,c\n2, x ,d\n', [b"1|a,b|c", b"2|x|d"], id="before and after a quote"
        ),
        pytest.param(b'1,\t"a"\t,\t b\n', [b"1|a|b"], id="tabs"),
        pytest.param("1,\u3000a\u3000\n".encode(), ["1|\u3000a\u3000".encode()], id="other space"),
    ],
)
def test_blanks_are_trimmed_outside_of_quotes_alone(
    tmp_path: Path, data: bytes, expected: list[bytes]
) -> None:
    assert moved(tmp_path, {"in.csv": data}, {}, {}) == (expected, 0)


def test_a_quote_behind_a_backslash(tmp_path: Path) -> None:
    reads = {"csvReaderConfig": {"escapeMode": 2}}
    data = b'1,"a\\"b",c\n2,d,e\n'
    assert moved(tmp_path, {"in.csv": data}, reads, {}) == ([b'1|a"b|c', b"2|d|e"], 0)


@pytest.mark.parametrize("column", [TYPED, ["*"]], ids=["types", "every column"])
@pytest.mark.parametrize("skip", [False, True], ids=["", "skipHeader"])
def test_a_file_without_a_row_is_no_rows(tmp_path: Path, column: Any, *, skip: bool) -> None:
    files = {"in.csv": b"id,name\n" if skip else b""}
    reads = {"column": column, "skipHeader": skip}
    assert moved(tmp_path, files, reads, {}) == ([], 0)


def test_files_with_hidden_names_are_read(tmp_path: Path) -> None:
    files = {"in/x.csv": b"1,a\n", "in/_y.csv": b"2,b\n", "in/.z.csv": b"3,c\n"}
    expected = [b"1|a", b"2|b", b"3|c"]
    assert moved(tmp_path, files, {"path": "in/", "column": TYPED}, {}) == (expected, 0)


def test_hidden_files_match_a_pattern(tmp_path: Path) -> None:
    files = {"in/_y.csv": b"2,b\n", "in/.z.csv": b"3,c\n"}
    found = moved(tmp_path, files, {"path": "in/*.csv", "column": TYPED}, {})
    assert found == ([b"2|b", b"3|c"], 0)


def test_a_skipped_line_is_not_compared(tmp_path: Path) -> None:
    files = {"a.csv": b"id,name\n1,a\n", "b.csv": b"ID,Name x\n2,b\n", "c.csv": b"# export\n3,c\n"}
    reads = {"path": "*.csv", "column": TYPED, "skipHeader": True}
    assert moved(tmp_path, files, reads, {}) == ([b"1|a", b"2|b", b"3|c"], 0)


def streamed(folder: Path, values: list[str], **writes: Any) -> list[bytes]:
    column = [{"type": "string", "value": value} for value in values]
    reader = {"name": "streamreader", "parameter": {"column": column, "sliceRecordCount": 1}}
    return _run(folder, reader, {**WRITER, **writes, "path": str(folder / "out")})[0]


def test_names_of_a_csv_header_are_quoted(tmp_path: Path) -> None:
    lines = streamed(tmp_path, ["x", "y"], header=["a|b", 'c"q'], fileFormat="csv")
    assert lines == [b'"a|b"|"c""q"', b"x|y"]


def test_a_delimiter_of_two_characters(tmp_path: Path) -> None:
    assert streamed(tmp_path, ["x", "y"], fieldDelimiter="||") == [b"x||y"]


def test_another_encoding(tmp_path: Path) -> None:
    assert streamed(tmp_path, ["\u4e2d", "a"], encoding="GBK") == [b"\xd6\xd0|a"]


def typed(kind: str, **more: Any) -> dict[str, Any]:
    return {"column": [{"index": 0, "type": "long"}, {"index": 1, "type": kind, **more}]}


def lines_of(values: list[str]) -> dict[str, bytes]:
    return {"in.csv": "".join(f"{n},{text}\n" for n, text in enumerate(values, 1)).encode()}


def kept_of(found: tuple[list[bytes], int]) -> tuple[list[str], int]:
    """The second column in the order of the first, and how many rows were refused."""
    pairs = sorted((int(line.split(b"|")[0]), line.split(b"|")[1].decode()) for line in found[0])
    return [text for _, text in pairs], found[1]


def test_a_double_is_the_text_that_was_read(tmp_path: Path) -> None:
    same = [
        "1.50",
        "12",
        ".5",
        "1E400",
        "-0",
        "+5",
        "NaN",
        "Infinity",
        "infinity",
        "1e5",
        "5.",
        "007",
        "12345678901234567.89",
    ]
    same += ["12345678901234567.89", "9007199254740993", "-infinity", "1E-400"]
    files = lines_of([*same, "0x1F", "", "1d"])
    assert kept_of(moved(tmp_path, files, typed("double"), {})) == (same, 3)


def test_a_long_has_any_size(tmp_path: Path) -> None:
    given = [
        "5",
        "18446744073709551615",
        "1e3",
        "12.0",
        "-0",
        "+7",
        "007",
        "123456789012345678901234567890",
    ]
    files = lines_of([*given, "-9223372036854775809", "0x1F", "", "abc"])
    expected = [
        "5",
        "18446744073709551615",
        "1000",
        "12",
        "0",
        "7",
        "7",
        "123456789012345678901234567890",
    ]
    expected.append("-9223372036854775809")
    assert kept_of(moved(tmp_path, files, typed("long"), {})) == (expected, 3)


def test_only_words_are_booleans(tmp_path: Path) -> None:
    files = lines_of(["true", "TRUE", "1", "0", "False", "yes", ""])
    assert kept_of(moved(tmp_path, files, typed("boolean"), {})) == (["true", "true", "false"], 4)


def test_dates_are_read_by_the_patterns_that_datax_is_shipped_with(tmp_path: Path) -> None:
    given = ["2024-01-31 10:00:05", "2024-01-31", "10:00:05", "20240131", "2024-1-3"]
    given += ["2024-01-31 10:00:05.123456789", "2024-1-3 1:2:3", "1940-06-03 00:30:00", "99", ""]
    expected = ["2024-01-31 10:00:05", "2024-01-31 00:00:00", "1970-01-01 10:00:05"]
    expected += ["2024-01-31 00:00:00", "2024-01-03 00:00:00", "2024-01-31 10:00:05"]
    expected += ["2024-01-03 01:02:03", "1940-06-03 00:30:00"]
    assert kept_of(moved(tmp_path, lines_of(given), typed("date"), {})) == (expected, 2)


def test_a_fraction_may_follow_the_seconds_of_a_format(tmp_path: Path) -> None:
    given = ["2024-01-31 10:00:05.123", "2024-1-3 1:2:3", "2024-01-31", "10:00:05"]
    found = moved(tmp_path, lines_of(given), typed("date", format="yyyy-MM-dd HH:mm:ss"), {})
    assert kept_of(found) == (["2024-01-31 10:00:05", "2024-01-03 01:02:03"], 2)


def test_the_page_has_the_table_of_differences() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.datax.differences"


def test_a_mark_of_the_byte_order_is_dropped(tmp_path: Path) -> None:
    assert moved(tmp_path, {"in.csv": b"\xef\xbb\xbf1,a\n"}, {}, {}) == ([b"1|a"], 0)


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    files = {"in.csv.gz": gzip.compress(b"1,a\n")}
    assert moved(tmp_path, files, {"path": "in.csv.gz"}, {}) == ([b"1|a"], 0)


def test_nothing_is_null_without_null_format(tmp_path: Path) -> None:
    found = moved(tmp_path, lines_of(["\\N", "null", "x"]), {}, {"nullFormat": "-"})
    assert kept_of(found) == (["\\N", "null", "x"], 0)


def test_constants_keep_their_digits(tmp_path: Path) -> None:
    constants = {"1.50": "double", "007": "long", "20240131": "date", "true": "boolean"}
    column = [{"index": 0, "type": "long"}]
    column += [{"value": value, "type": kind} for value, kind in constants.items()]
    expected = ([b"1|1.50|7|2024-01-31 00:00:00|true"], 0)
    assert moved(tmp_path, {"in.csv": b"1,a\n"}, {"column": column}, {}) == expected


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (">", "1706666400000", ["2024-01-31 03:00:00"]),
        ("=", "1706666405000", ["2024-01-31 03:00:00", "2024-02-01 00:00:00"]),
    ],
)
def test_a_filter_on_dates_counts_in_the_zone_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, value: str, expected: list[str]
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    step = {"name": "dx_filter", "parameter": {"columnIndex": 1, "paras": [operator, value]}}
    given = ["2024-01-31 10:00:05", "2024-01-31 03:00:00", "2024-02-01"]
    assert kept_of(moved(tmp_path, lines_of(given), typed("date"), {}, [step])) == (expected, 0)
