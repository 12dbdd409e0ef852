"""Masks: what they make of values, and that no value leaves the process open."""

import hashlib
import hmac
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_channel
from spark_channel.errors import OptionError, SchemaError
from spark_channel.replication.masks import MaskColumns, mask_of, state_of_masks

KEY = "0123456789abcdef-one"
SECRET = "planted-secret-7391"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PII_KEY", KEY)


def masked(values: pa.Array, mask: str) -> list[Any]:
    step = MaskColumns.for_stream("s.t", {"c": mask})
    batch = pa.record_batch([values], names=["c"])
    made = step.apply(batch).batch
    assert made.schema == step.output_schema(batch.schema)
    found: list[Any] = made.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "a", None, "ü"]),
        pa.array([b"a", None, b"\xff"]),
        pa.array([b"ab", None], pa.binary(2)),
        pa.array([1, None, -5]),
        pa.array([Decimal("1.50"), None]),
        pa.array([date(2026, 1, 2), None]),
        pa.array([True, None]),
        pa.array([], pa.large_string()),
    ],
)
def test_a_digest_is_that_of_the_value_as_text(values: pa.Array) -> None:
    def raw(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()

    plain = values.to_pylist()
    assert masked(values, "sha256") == [
        None if each is None else hashlib.sha256(raw(each)).hexdigest() for each in plain
    ]
    assert masked(values, "hmac(${env:PII_KEY})") == [
        None if each is None else hmac.new(KEY.encode(), raw(each), "sha256").hexdigest()
        for each in plain
    ]


@given(st.lists(st.text() | st.none()), st.integers(0, 6))
def test_partial_shows_the_last_characters_alone(texts: list[str | None], shown: int) -> None:
    for text, made in zip(
        texts, masked(pa.array(texts, pa.string()), f"partial({shown})"), strict=True
    ):
        if text is None:
            assert made is None
        else:
            hidden = len(text) - shown
            assert made == ("*" * len(text) if hidden <= 0 else "*" * hidden + text[hidden:])


def test_null_keeps_the_type_and_drop_leaves_the_column_out() -> None:
    assert masked(pa.array([1, 2]), "null") == [None, None]
    step = MaskColumns.for_stream("s.t", {"a": "drop"})
    assert step.output_schema(pa.schema({"a": pa.int8(), "b": pa.int8()})).names == ["b"]
    with pytest.raises(SchemaError, match="every column is dropped"):
        step.output_schema(pa.schema({"a": pa.int8()}))


@pytest.mark.parametrize(
    ("masks", "column", "found"),
    [
        ({"*.email": "sha256"}, "email", "sha256"),
        ({"*.email": "sha256"}, "EMail", "sha256"),
        ({"*.email": "sha256", "email": "keep"}, "email", "keep"),
        ({"email": "keep", "*.email": "sha256"}, "email", "keep"),
        ({"*mail*": "sha256", "*.e*": "null"}, "email", "null"),
        ({"other.*.email": "sha256"}, "email", None),
        ({"shop.users.email": "drop", "*.email": "sha256"}, "email", "drop"),
        ({"email": "drop"}, "emails", None),
    ],
)
def test_which_mask_a_column_has(masks: Mapping[str, str], column: str, found: str | None) -> None:
    mask = mask_of(masks, "shop.users", column)
    assert (None if mask is None else str(mask)) == found


def test_a_mask_of_a_column_that_is_not_there_is_refused() -> None:
    step = MaskColumns.for_stream("s.t", {"emial": "sha256", "*.phone": "drop", "x": "keep"})
    with pytest.raises(SchemaError, match="names 'emial', and the table has no such column"):
        step.output_schema(pa.schema({"email": pa.string()}))
    with pytest.raises(SchemaError, match="which sha256 cannot mask; it takes null or drop"):
        MaskColumns.for_stream("s.t", {"c": "sha256"}).output_schema(
            pa.schema({"c": pa.list_(pa.int8())})
        )


def test_another_key_has_another_state_and_no_text_has_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = {"*.email": "hmac(${env:PII_KEY})"}
    step, first = MaskColumns.for_stream("s.t", masks), state_of_masks(masks)
    assert KEY not in repr(step) + first
    monkeypatch.setenv("PII_KEY", KEY.replace("one", "two"))
    assert state_of_masks(masks) != first
    monkeypatch.setenv("PII_KEY", "short")
    with pytest.raises(OptionError, match="too short") as raised:
        MaskColumns.for_stream("s.t", masks)
    assert "short " not in str(raised.value).replace("too short", "")
    monkeypatch.delenv("PII_KEY")
    with pytest.raises(OptionError, match="PII_KEY is not set"):
        MaskColumns.for_stream("s.t", masks)


@pytest.mark.parametrize("writer", ["sqlite", "parquet", "delta"])
def test_no_byte_that_leaves_has_a_masked_value(
    tmp_path: Path,
    writer: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The secret is a key, a value that its type cannot hold, and in rows that the target refuses."""
    source, out = tmp_path / "in" / "shop.db", tmp_path / "out"
    source.parent.mkdir()
    out.mkdir()
    with closing(sqlite3.connect(source)) as connection:
        connection.executescript(
            f"""
            CREATE TABLE users (email TEXT PRIMARY KEY, phone TEXT, age INTEGER, name TEXT);
            INSERT INTO users VALUES ('{SECRET}-1', '{SECRET}', 1, 'a'), ('{SECRET}-2', '{SECRET}', 2, 'b');
            CREATE TABLE bad (id INTEGER PRIMARY KEY, email INTEGER);
            INSERT INTO bad VALUES (1, '{SECRET}');
            CREATE TABLE drift (id INTEGER PRIMARY KEY, name TEXT);
            INSERT INTO drift VALUES (1, 'x');
            """
        )
    target = (
        {"url": f"sqlite:{out}/dw.db"}
        if writer == "sqlite"
        else {"path": str(out), "writer": writer}
    )
    file = {
        "source": {"url": f"sqlite:{source}"},
        "target": target,
        "defaults": {"columns": {"*.email": "hmac(${env:PII_KEY})", "*.phone": "null"}},
        "streams": {
            "*": {},
            "users": {"mode": "incremental", "update_key": "age", "columns": {"name": "keep"}},
        },
    }
    caplog.set_level(logging.DEBUG)
    texts = []
    for _ in range(2):
        report = spark_channel.replicate(None, file)
        states = {each.stream: each.state for each in report.tables}
        assert states["bad"] == "parked"
        texts += [report.to_json(), repr(report), str(report)]
        if len(texts) == 3:
            with closing(sqlite3.connect(source)) as connection:
                connection.executescript(
                    f"ALTER TABLE drift ADD COLUMN email TEXT; UPDATE drift SET email = '{SECRET}'"
                )
    assert states["drift"] == "done", report.to_json()
    captured = capfd.readouterr()
    texts += [captured.out, captured.err, caplog.text]
    for text in texts:
        assert SECRET not in text
    secret = SECRET.encode()
    files = [each for each in out.rglob("*") if each.is_file()]
    assert files
    for each in files:
        assert secret not in each.read_bytes(), each
    digest = hmac.new(KEY.encode(), f"{SECRET}-1".encode(), "sha256").hexdigest().encode()
    if writer == "sqlite":
        assert any(digest in each.read_bytes() for each in files)


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_what_duckdb_says_of_a_value_is_hidden(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    import duckdb

    with closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
        connection.execute(
            f"CREATE TABLE users AS SELECT 1 AS id, '{SECRET}' AS email, '{SECRET}' AS name"
        )
    caplog.set_level(logging.DEBUG)
    report = spark_channel.replicate(
        None,
        {
            "source": {"url": f"duckdb:{tmp_path}/shop.duckdb"},
            "target": {"url": f"sqlite:{tmp_path}/dw.db"},
            "defaults": {"mode": mode, "update_key": "id", "columns": {"*.email": "sha256"}},
            "streams": {"main.users": {"where": "CAST(email AS INTEGER) > 1"}},
        },
    )
    assert "Conversion Error" in report.parked[0].why
    assert "hidden" in report.parked[0].why
    assert SECRET not in report.to_json() + caplog.text
