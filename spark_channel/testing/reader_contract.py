"""Holds a `Reader` to its contract: call `reader_conformance` in a pytest test of your connector."""

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Generator
from typing import cast

import pyarrow as pa

from spark_channel.connectors import FetchSize, Reader
from spark_channel.planning import Split
from spark_channel.testing.comparison import expect, held_resources, rows_of, same_rows

__all__ = ["reader_conformance"]


_READER_WAIT_SECONDS = 120.0


def reader_conformance(
    make_reader: Callable[[], Reader], *, expected: pa.Table | None = None, advice: int = 4
) -> None:
    """Test the reader that `make_reader` returns against the contract of `Reader`.

    `make_reader` returns a new, picklable reader of the same, unchanging source each time. `expected` are the
    source's rows in any order; without it, the rows of a single split are expected.

    Raises:
        AssertionError: says what the contract requires, and what the reader did.
    """
    schema = _schema(make_reader)
    expected_rows = (
        rows_of(expected) if expected is not None else _read_all(make_reader(), 1, schema)
    )
    if expected is not None:
        _same_schema(expected.schema, schema, "schema() differs from that of the expected rows")
    _splits_cover_once(make_reader, schema, expected_rows, advice)
    _retries_agree(make_reader, schema, advice)
    _survives_pickling(make_reader, schema, expected_rows, advice)
    _closes_early(make_reader, advice)
    _reads_side_by_side(make_reader, schema, expected_rows, advice)
    _reads_one_after_another(make_reader, schema, expected_rows, advice)
    _fetch_size_changes_nothing(make_reader, schema, expected_rows, advice)
    _joining_changes_nothing(make_reader, schema, expected_rows, advice)


def _schema(make_reader: Callable[[], Reader]) -> pa.Schema:
    reader = make_reader()
    schema = reader.schema()
    expect(
        isinstance(schema, pa.Schema),
        f"schema() returned {type(schema).__name__}, not a pyarrow.Schema",
    )
    _same_schema(reader.schema(), schema, "schema() called twice")
    _same_schema(make_reader().schema(), schema, "schema() of a second reader")
    return schema


def _same_schema(schema: pa.Schema, expected: pa.Schema, when: str) -> None:
    expect(
        schema.equals(expected),
        f"{when}: {schema.to_string()}\n  instead of\n{expected.to_string()}",
    )


def _ready(make_reader: Callable[[], Reader], advice: int) -> tuple[Reader, list[Split]]:
    reader = make_reader()
    reader.schema()
    splits = reader.split(advice)
    expect(isinstance(splits, list), f"split() returned {type(splits).__name__}, not a list")
    expect(
        all(isinstance(split, Split) for split in splits),
        "split() returned something that is not a Split",
    )
    return reader, splits


def _read(reader: Reader, split: Split, schema: pa.Schema) -> list[pa.RecordBatch]:
    batches = []
    for batch in reader.read(split):
        expect(
            isinstance(batch, pa.RecordBatch),
            f"read() gave a {type(batch).__name__}, not a RecordBatch",
        )
        _same_schema(batch.schema, schema, "a batch does not have schema()")
        batch.validate(full=True)
        batches.append(batch)
    return batches


def _read_all(reader: Reader, advice: int, schema: pa.Schema) -> Counter[str]:
    reader.schema()
    return rows_of(
        batch for split in reader.split(advice) for batch in _read(reader, split, schema)
    )


def _splits_cover_once(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    for splits_wanted in (1, advice, 3 * advice):
        reader, splits = _ready(make_reader, splits_wanted)
        if not expected:
            expect(not splits, f"an empty source has {len(splits)} splits; it should have none")
        rows = rows_of(batch for split in splits for batch in _read(reader, split, schema))
        same_rows(rows, expected, f"split({splits_wanted}), all {len(splits)} splits read")
        for split in splits:
            expect(split.rows is None or split.rows >= 0, f"a split estimates {split.rows} rows")
            expect(
                split.nbytes is None or split.nbytes >= 0, f"a split estimates {split.nbytes} bytes"
            )


def _retries_agree(make_reader: Callable[[], Reader], schema: pa.Schema, advice: int) -> None:
    reader, splits = _ready(make_reader, advice)
    for split in splits:
        first = rows_of(_read(reader, split, schema))
        same_rows(rows_of(_read(reader, split, schema)), first, "the same split, read again")


def _survives_pickling(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    reader, splits = _ready(make_reader, advice)
    unpickled = pickle.loads(pickle.dumps(reader))  # noqa: S301 - pickled on the line itself
    sent = pickle.loads(pickle.dumps(splits))  # noqa: S301 - bytes of this line
    expect(
        sent == splits,
        "splits are not equal to themselves after pickling; let params hold plain data",
    )
    rows = rows_of(batch for split in sent for batch in _read(unpickled, split, schema))
    same_rows(rows, expected, "pickled reader and splits, read in their new place")


def _closes_early(make_reader: Callable[[], Reader], advice: int) -> None:
    reader, splits = _ready(make_reader, advice)
    before = held_resources()
    for split in splits:
        batches = reader.read(split)
        expect(
            hasattr(batches, "close"),
            "read() is not a generator: what it opens cannot be released early",
        )
        generator = cast("Generator[pa.RecordBatch]", batches)
        next(generator, None)
        generator.close()
    before.expect_no_more("a read that was closed after its first batch")
    for split in splits:
        cast("Generator[pa.RecordBatch]", reader.read(split)).close()
    before.expect_no_more("a read that was closed before its first batch")
    for split in splits:
        for _ in reader.read(split):
            pass
    before.expect_no_more("a read that went to its end")


def _reads_side_by_side(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    reader, splits = _ready(make_reader, advice)
    batches: list[pa.RecordBatch] = []
    errors: list[BaseException] = []

    def work(split: Split) -> None:
        try:
            batches.extend(_read(reader, split, schema))
        except BaseException as error:  # whatever it is, the test must hear of it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(split,), daemon=True) for split in splits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_READER_WAIT_SECONDS)
        expect(
            not thread.is_alive(),
            f"reading side by side did not end within {_READER_WAIT_SECONDS:g} s",
        )
    if errors:
        raise AssertionError("reading splits in several threads at once failed") from errors[0]
    same_rows(rows_of(batches), expected, "all splits read at once, in a thread each")


def _reads_one_after_another(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    reader, splits = _ready(make_reader, advice)
    before = held_resources()
    with reader.reading() as read:
        for split in splits:
            batches = cast("Generator[pa.RecordBatch]", read(split))
            next(batches, None)
            batches.close()
        rows = rows_of(batch for split in splits for batch in read(split))
    same_rows(
        rows, expected, "all splits read by one reading(), each after a read that was closed early"
    )
    before.expect_no_more("a reading() that has ended")


def _fetch_size_changes_nothing(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    for size in (FetchSize(rows=3), FetchSize(nbytes=1)):
        reader, splits = _ready(make_reader, advice)
        reader.fetch_size = size
        rows = rows_of(batch for split in splits for batch in _read(reader, split, schema))
        same_rows(rows, expected, f"with {size}")


def _joining_changes_nothing(
    make_reader: Callable[[], Reader], schema: pa.Schema, expected: Counter[str], advice: int
) -> None:
    reader, splits = _ready(make_reader, advice)
    joined = reader.joined(splits)
    expect(len(joined) <= len(splits), f"joined() made {len(joined)} splits of {len(splits)}")
    rows = rows_of(batch for split in joined for batch in _read(reader, split, schema))
    same_rows(rows, expected, "the splits that joined() returned")
