"""The rows that DataX itself wrote, job for job.

The values come from runs of DataX (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai) with the same jobs and files.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.datax.ran import ran

READER: dict[str, Any] = {"column": ["*"], "fieldDelimiter": ","}
WRITER: dict[str, Any] = {"fileName": "o", "writeMode": "truncate", "fieldDelimiter": "|"}
TYPED = [{"index": 0, "type": "long"}, {"index": 1, "type": "string"}]


def moved(
    folder: Path, files: dict[str, bytes], reads: dict[str, Any], writes: dict[str, Any]
) -> tuple[list[bytes], int]:
    """The lines of the target, and how many rows were refused, of txtfilereader to txtfilewriter."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    reader = {**READER, **reads, "path": [str(folder / reads.get("path", "in.csv"))]}
    writer = {**WRITER, **writes, "path": str(folder / "out")}
    return _run(folder, {"name": "txtfilereader", "parameter": reader}, writer)


def _run(folder: Path, reader: dict[str, Any], writer: dict[str, Any]) -> tuple[list[bytes], int]:
    (folder / "out").mkdir()
    content = {"reader": reader, "writer": {"name": "txtfilewriter", "parameter": writer}}
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
