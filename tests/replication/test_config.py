"""The file of a replication: what it may say, and what its errors name."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from spark_channel.errors import JobFileError
from spark_channel.replication.config import (
    Replication,
    StreamOptions,
    json_schema,
    load_replication,
    parse_replication,
)
from spark_channel.replication.faults import check_replication

SHOP = """
source: {url: postgresql://replica/shop, user: etl, password: "${env:PW}", protect: auto}
target: {url: postgresql://dw/marts}
defaults:
  mode: full
  object: "{schema}_{table}"
  contract: {tables: evolve, columns: evolve, data_type: freeze}
  columns: {"*.email": "hmac(${env:PII_KEY})"}
streams:
  shop.*:
  shop.audit_*: {disabled: true}
  shop.users: {primary_key: [id], columns: {phone: drop, fax: null}, where: "deleted_at IS NULL"}
limit: {rows_per_second: 50k, windows: ["Mon-Fri 08:00-18:00 5k", "Sat-Sun unlimited"], timezone: Europe/Berlin}
"""


def test_the_example_of_the_documentation() -> None:
    found = parse_replication(SHOP)
    assert found.source.options() == {
        "url": "postgresql://replica/shop",
        "user": "etl",
        "password": "${env:PW}",
        "protect": "auto",
    }
    assert found.limit.rows_per_second == 50_000
    users = found.options_for("shop", "users")
    assert users is not None
    assert users.primary_key == ("id",)
    assert users.columns == {"*.email": "hmac(${env:PII_KEY})", "phone": "drop", "fax": "null"}
    assert users.mode == "full"
    orders = found.options_for("shop", "orders")
    assert orders is not None
    assert orders.where is None
    assert found.options_for("shop", "audit_log") is None
    assert found.options_for("other", "users") is None
    assert found.named() == ["shop.users"]


def test_a_full_name_counts_most_and_a_later_pattern_more() -> None:
    found = load_replication(
        {
            "source": {"url": "sqlite:a.db"},
            "target": {"path": "out", "writer": "parquet"},
            "streams": {
                "Users": {"where": "1"},
                "*": {"where": "2", "object": "x_{table}"},
                "u*": {"where": "3"},
            },
        }
    )

    def where(table: str) -> str | None:
        options = found.options_for("", table)
        assert options is not None
        return options.where

    assert [where(each) for each in ("Users", "users", "uvw", "orders")] == ["1", "1", "3", "2"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "mode: full",
            "mode: ful",
            r"defaults.mode got 'ful'; it takes full, incremental or full_then",
        ),
        ("source:", "sorce:", r"sorce is not known; did you mean 'source'\?"),
        ("source:", "zzz:", r"zzz is not known\. It takes: source, "),
        (
            "primary_key:",
            "primaryKey:",
            r"streams.'shop.users'.primaryKey is not known; did you mean 'primary_key'",
        ),
        (
            "phone: drop",
            "phone: dorp",
            r"streams.'shop.users'.columns.phone got 'dorp'; it takes hmac\(.*partial\(N\)",
        ),
        (
            "rows_per_second: 50k",
            "rows_per_second: fast",
            r"limit.rows_per_second got 'fast'; it takes .*50k",
        ),
        ("08:00-18:00 5k", "08:00-25:00 5k", r"limit.windows\[0\] got .*25:00 is not a time"),
        (
            "Europe/Berlin",
            "Berlin",
            r"limit.timezone got 'Berlin'; it takes the name of a time zone",
        ),
        (
            "data_type: freeze",
            "data_type: frozen",
            r"defaults.contract.data_type got 'frozen'; it takes evolve, freeze",
        ),
        (
            '"{schema}_{table}"',
            '"{schema}_{tabel}"',
            r"defaults.object got .*; it takes a name, in which",
        ),
        (
            "  shop.*:\n",
            "  shop.*:\n  shop.*:\n",
            r"line \d+, column 3: key 'shop.\*' occurs twice",
        ),
        ("target: {url: postgresql://dw/marts}", "target: {}", r"target: either url or path"),
        ("dw/marts}", "dw/marts, dbtable: x}", r"target: no dbtable: streams name the tables"),
        ("dw/marts}", "dw/marts, DbTable: x}", r"target: no DbTable: streams name the tables"),
        ("protect: auto}", "where: a > 1}", r"source: no where: streams and defaults have one"),
        (
            "mode: full",
            "mode: full\n  source_options: {Where: a}",
            r"defaults.source_options takes further options, and not 'Where': the stream has",
        ),
        (
            "mode: full",
            "mode: full\n  target_options: {dbtable: a}",
            r"defaults.target_options takes further options, and not 'dbtable': .* 'object'",
        ),
        ("mode: full", "mode: full\n  late_seconds: inf", r"late_seconds got 'inf'; it takes"),
        ('"Sat-Sun unlimited"', "Sun 5k/s", r"limit.windows\[1\] got 'Sun 5k/s'; it takes days"),
        ("source:", "source: [", r"line \d+, column \d+: "),
        ("streams:", "stream:", r"stream is not known; did you mean 'streams'"),
        ("  shop.*:\n", "\tshop.*:\n", r"line \d+, column 1: .*indented by spaces, not by tabs"),
    ],
)
def test_an_error_names_the_path_and_what_it_takes(old: str, new: str, why: str) -> None:
    assert old in SHOP
    with pytest.raises(JobFileError) as raised:
        parse_replication(SHOP.replace(old, new, 1))
    said = "\n".join((str(raised.value), *raised.value.others))
    assert __import__("re").search(why, said), said


def test_all_faults_are_reported() -> None:
    text = SHOP.replace("mode: full", "mode: x").replace("timezone: Europe/Berlin", "timezone: y")
    with pytest.raises(JobFileError) as raised:
        parse_replication(text)
    assert len((str(raised.value), *raised.value.others)) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"hmac(${env:PII_KEY})"', '"hmac(hunter2hunter2hunter2)"'),
        ('"hmac(${env:PII_KEY})"', "HMAC(hunter2hunter2"),
        ("url: postgresql://replica/shop", "url: [hunter2hunter2]"),
        ("postgresql://dw/marts}", "postgresql://u:hunter2@dw/marts, path: hunter2}"),
    ],
)
def test_no_secret_is_shown(old: str, new: str) -> None:
    with pytest.raises(JobFileError) as raised:
        parse_replication(SHOP.replace(old, new, 1))
    assert "hunter2" not in "\n".join((str(raised.value), *raised.value.others))


@pytest.mark.parametrize("text", ["", "- a", "text", "\x00", "a: &x [*x]", "? {a: b}\n: c"])
def test_a_file_that_is_none(text: str) -> None:
    with pytest.raises(JobFileError):
        parse_replication(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        load_replication(tmp_path / "shop.yml")
    (tmp_path / "shop.yml").write_bytes(b"\xff")
    with pytest.raises(JobFileError, match="is not UTF-8 text"):
        load_replication(tmp_path / "shop.yml")


def test_the_schema_is_published_with_all_names() -> None:
    made: dict[str, Any] = json.loads(json_schema())
    assert set(made["properties"]) == set(Replication.model_fields)
    assert set(made["$defs"]["StreamOptions"]["properties"]) == {
        field.alias or name for name, field in StreamOptions.model_fields.items()
    }
    for each in made["$defs"]["StreamOptions"]["properties"].values():
        assert each["description"]
    assert TypeAdapter(dict[str, Any]).validate_python(made)


@pytest.mark.parametrize(
    ("source", "target", "stream", "said"),
    [
        (
            "postgresql://db/x",
            "path: lake, writer: parquet",
            "deletes: soft",
            "streams.'a.*'.mode: full_then_changes",
        ),
        (
            "postgresql://db/x",
            "path: lake, writer: delta",
            "deletes: soft",
            "streams.'a.*'.deletes: soft changes parts of rows, and delta replaces whole ones",
        ),
        (
            "postgresql://db/x",
            "url: 'sqlite:x.db'",
            "deletes: scd2, mode: full",
            "streams.'a.*'.deletes: scd2 needs",
        ),
        (
            "sqlite:s.db",
            "url: 'sqlite:x.db'",
            "",
            "defaults.mode: full_then_changes follows the source's log",
        ),
        ("mysql://db/x", "url: 'sqlite:x.db'", "deletes: scd2", ""),
        (
            "postgresql://db/x",
            "url: 'sqlite:x.db'",
            "",
            "source: full_then_changes needs publication",
        ),
    ],
)
def test_what_an_end_cannot_do_is_refused_with_its_place(
    tmp_path: Path, source: str, target: str, stream: str, said: str
) -> None:
    file = tmp_path / "shop.yml"
    mode = "mode: full_then_changes, " if said.startswith("streams.'a.*'.mode") else ""
    file.write_text(
        f"source: {{url: '{source}', user: u}}\ntarget: {{{target}}}\n"
        f"defaults: {{mode: full_then_changes}}\nstreams: {{'a.*': {{{mode}{stream}}}}}\n"
    )
    faults, _ = check_replication(file)
    if not said:
        assert faults == []
    else:
        assert len(faults) == 1
        assert said in faults[0]
