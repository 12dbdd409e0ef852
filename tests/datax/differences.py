"""Where rows differ from DataX's, and why: `python -m tests.datax.differences` makes the table of docs/migrate.md,
without the reasons.

What DataX wrote comes from runs of it (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai), see `tests.datax.matrix`.
"""

from pathlib import Path

__all__ = ["PAGE", "WHY", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrate.md"
BEGIN, END = "<!-- differences: begin -->", "<!-- differences: end -->"

WHY = {
    "day": (
        "a day or time that does not exist, such as `2024-02-31`, `2024-13-01`, `24:00:00`",
        "a later day: `2024-03-02`, `2025-01-01`, `1970-01-01`",
        "a dirty row; `1582-10-10` is that day",
        "the text has a fault",
    ),
    "behind": (
        "a time that continues behind the pattern, such as `2024-01-31 10:00`, `2024-01-31T10:00:05`",
        "the day, without the time",
        "the time; a dirty row where the column has a `format`",
        "the time would be lost",
    ),
    "pattern": (
        "a text of another pattern than the column's `format`, such as `2024-01-31` for `yyyyMMdd`",
        "another day: `2023-12-01`",
        "a dirty row",
        "the day is wrong",
    ),
    "cut": (
        "a `long` with a fraction, such as `1.9`",
        "`1`",
        "a dirty row; `12.0` is 12 in both",
        "the fraction would be lost",
    ),
    "fails": (
        "types of PostgreSQL such as `money`, `uuid`, `json`, `inet`, arrays; `bytes` of text files",
        "an error, or a dirty row",
        "copied",
        "the value is there",
    ),
    "null": (
        "NULL of boolean, bit and year columns of databases",
        "`false` or 0",
        "NULL",
        "NULL is not false",
    ),
    "bits": (
        "bit strings: MySQL's `bit(8)`, PostgreSQL's `bit(1)` into texts",
        "`true` or `false`",
        "their number, their digits",
        "the bits would be lost",
    ),
    "instant": (
        "`timestamptz` of PostgreSQL into TIMESTAMP of MySQL",
        "the machine's time in the session's zone: another instant where the zones differ",
        "the same instant",
        "the time would be hours off",
    ),
    "zone": (
        "`timetz` of PostgreSQL into databases (into files it is the machine's time in both)",
        "the machine's time",
        "its text with the zone; a dirty row for `time`",
        "a time of day of another zone needs a day",
    ),
    "fraction": (
        "fractions of seconds, from texts and databases into times of databases",
        "cut to milliseconds, or to seconds for texts",
        "kept to the microsecond that the target holds",
        "nothing is lost",
    ),
    "bytes": (
        "bytes that are not of the file's `encoding`, and bytes of databases that are not UTF-8, into texts",
        "U+FFFD in their place",
        "a dirty row",
        "the text would be lost",
    ),
    "mark": (
        "a byte order mark at the beginning of a file",
        "a part of the first value",
        "dropped",
        "it is not text",
    ),
    "packed": (
        "a packed file (`.gz`) without `compress`; a gzip file of several members",
        "its packed bytes as text; the first member",
        "unpacked; all members",
        "the bytes are no rows, and rows would be lost",
    ),
    "ragged": (
        "rows with different numbers of values, with `column` `*`",
        "rows of different lengths",
        "rows of another length than the first one's are dirty",
        "a table has one number of columns",
    ),
    "quotes": (
        'text behind a closing quote, `"a"b`; a quote that is never closed',
        "`a`; ends at the end of the file",
        "`ab`; the job fails",
        "text would be lost, and rows swallowed",
    ),
    "escapes": (
        "`\\n` and `\\t` in quotes, with `escapeMode` 2",
        "a line end and a tab",
        'as they are written; `\\"` is a quote in both',
        "one file is read by two rules otherwise",
    ),
    "refused": (
        "`recordDelimiter`; `SSSSSS`; a `header` with too few names; `column` `*` without names; a wrong `dx_filter`",
        "as written; microseconds count as milliseconds; every row is dirty in the last case",
        "refused before a row moves, with the reason",
        "rows would go into wrong columns, or none; times would be minutes off",
    ),
    "words": (
        "names of months and AM or PM in a `dateFormat`",
        "in the language of the machine: `\u4e00\u6708`",
        "in English",
        "the same on every machine",
    ),
    "letters": (
        "a letter that the `encoding` of a text file lacks; the byte order of UTF-16",
        "`?`; big endian",
        "the job fails; little endian with its mark",
        "the text would be lost",
    ),
    "double": (
        "a `double` of texts through rdbmswriter",
        "rounded to the digits of a 64-bit float",
        "all digits, as through every other writer",
        "digits would be lost",
    ),
    "times": (
        "elasticsearchwriter: texts for a `date` with a `format`",
        "as times of this machine's zone",
        "as they are, in UTC: the type `date` in the reader keeps the zone",
        "the index reads them in UTC",
    ),
    "trims": (
        "`csvReaderConfig` of ftpreader",
        "has no effect",
        "as in txtfilereader",
        "the page of DataX says so",
    ),
    "hive": (
        "hdfswriter: `timestamp`, and in ORC `date` and `decimal`; hdfsreader: times of Parquet",
        "8 hours earlier in Shanghai; an empty struct, an error; a wrong year or milliseconds",
        "the time, the day, the number",
        "the values would be lost",
    ),
    "nested": (
        "mongodbreader: a name with dots, and a nested document",
        "NULL unless its type is `document`; `Document{{k=v}}`",
        "the nested value; JSON",
        "NULL would lose it, and no program reads Java's text",
    ),
    "fields": (
        "mongodbwriter: a value of another type than the column's",
        "the document without that field, or with the text",
        "converted, or the row is dirty",
        "half a document is neither written nor refused",
    ),
    "upsert": (
        "`upsertInfo` of mongodbwriter",
        "has no effect",
        "replaces by the key, as `writeMode` does in both",
        "the page of DataX names it",
    ),
    "folder": (
        "osswriter: `object`, and what `truncate` and `nonConflict` look at",
        "the beginning of the names of objects",
        "a folder of that name",
        "objects of others are neither removed nor in the way",
    ),
    "names": (
        "a `.` in a pattern of paths; a folder `_temporary`",
        "any character; read",
        "a dot; passed over",
        "files that nobody named, and those of a job that has not ended",
    ),
    "kept": (
        "a run that fails, with `errorLimit.record` 0",
        "leaves the rows that were written",
        "leaves none, so it can be repeated",
        "a rerun would add them again",
    ),
}
"""The reasons that jobs of jobs.json and matrix.json give where they differ; each is a row of the table."""

OTHERS = (
    (
        "`\\N` in text files of hdfsreader, without `nullFormat`",
        "a text",
        "NULL",
        "Hive writes NULL so, and DataX's page says so",
    ),
    (
        "the number of text files, and of their headers",
        "one for each task of the reader",
        "one or more for each channel, each with the header",
        "tasks here are smaller",
    ),
)
"""Rows of the table that other tests hold."""


def page() -> str:
    """docs/migrate.md with the table."""
    head = "| what | DataX | here |\n|---|---|---|\n"
    table = head + "".join(f"| {' | '.join(row[:3])} |\n" for row in (*WHY.values(), *OTHERS))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
