"""Values that the report shows, though Python has no object for them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_channel
from tests.cli.typed import typed

LATE_DAYS = (3_000_000, 4_000_000)
LATE_MICROS = (2**60, 2**60 + 1)


def differing(path: Path, one: pa.Array, other: pa.Array, place: str) -> list[str]:
    """Two files whose last rows differ in the key or in another value, as the options of the command line."""
    for name, values in (("source", one), ("target", other)):
        columns = [pa.array([1, 2]), values] if place == "n" else [values, pa.array([1, 2])]
        pq.write_table(pa.table(columns, names=["id", "n"]), path / f"{name}.parquet")
    return [f"--{name}={path / name}.parquet" for name in ("source", "target")]


@pytest.mark.parametrize("place", ["id", "n"])
@pytest.mark.parametrize(
    ("kind", "last", "shown"),
    [
        (pa.date32(), LATE_DAYS, ("10183-09-21", "12921-08-18")),
        (pa.timestamp("us", "UTC"), LATE_MICROS, None),
        (pa.timestamp("us"), (2**62, -(2**62)), None),
        (pa.time64("ns"), (1, 2), ("00:00:00.000000001", "00:00:00.000000002")),
        (pa.timestamp("ns"), (1, 2), ("1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000000002")),
        (pa.duration("ns"), (1, 2), ("1 ns", "2 ns")),
    ],
)  # fmt: skip
def test_a_value_without_an_object_of_python_is_a_text(
    tmp_path: Path,
    kind: pa.DataType,
    last: tuple[int, int],
    shown: tuple[str, str] | None,
    place: str,
) -> None:
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    one, other = (pa.array([0, each], whole).cast(kind) for each in last)
    sides = differing(tmp_path, one, other, place)
    done = typed("verify", *sides, "--key", "id", "--confirm", "0", "--output", "json")
    assert done.exit_code == 3, done.exception
    rows = json.loads(done.stdout)["differences"]
    assert len(rows) == (1 if place == "n" else 2)
    found = (rows[0]["source"][place], rows[-1]["target"][place])
    assert found[0] != found[1]
    assert shown is None or found == shown


def test_a_nested_value_without_an_object_of_python_is_named(tmp_path: Path) -> None:
    for name, day in zip(("a", "b"), LATE_DAYS, strict=True):
        days = pa.ListArray.from_arrays([0, 1], pa.array([day], pa.int32()).cast(pa.date32()))
        pq.write_table(pa.table({"id": [1], "days": days}), tmp_path / f"{name}.parquet")
    sides = [{"path": str(tmp_path / f"{name}.parquet")} for name in "ab"]
    report = spark_channel.verify(None, *sides, key=["id"], confirm=0)
    assert report.columns == {"days": 1}
    (row,) = report.differences
    assert row.source is not None
    assert "that Python cannot hold" in row.source["days"]


def test_the_text_of_a_report_shows_the_whole_of_an_instant(tmp_path: Path) -> None:
    one, other = (pa.array([0, each], pa.timestamp("us", "UTC")) for each in (1, 2))
    done = typed("verify", *differing(tmp_path, one, other, "n"), "--key", "id", "--confirm", "0")
    assert done.exit_code == 3
    changed = "1970-01-01 00:00:00.000001+00:00 -> 1970-01-01 00:00:00.000002+00:00"
    assert f"different id=2  n: {changed}" in done.stdout


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        (("a" * 90 + "b", "a" * 90 + "c"), f"...{'a' * 20}b' -> ...{'a' * 20}c'"),
        (("a" * 90, "a" * 90 + "c"), f"...{'a' * 20}' -> ...{'a' * 20}c'"),
        (
            ("b" + "a" * 90, "c" + "a" * 90),
            f"'b{'a' * 35}...{'a' * 19}' -> 'c{'a' * 35}...{'a' * 19}'",
        ),
    ],
    ids=["at the end", "longer", "at the beginning"],
)
def test_the_text_of_a_report_shows_where_long_values_differ(
    tmp_path: Path, values: tuple[str, str], changed: str
) -> None:
    one, other = (pa.array(["", value]) for value in values)
    done = typed("verify", *differing(tmp_path, one, other, "n"), "--key", "id", "--confirm", "0")
    assert done.exit_code == 3
    assert f"different id=2  n: {changed}\n" in done.stdout
