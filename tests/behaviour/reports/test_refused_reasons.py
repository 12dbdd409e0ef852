"""Rows that a real database refuses for one cause have one reason, whatever their values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.local import LocalEngine
from tests.behaviour.exactly_once.test_own_source import copy, end
from tests.connectors.sql.places import Place, open_place

_REASONS = {
    "sqlite": {
        "UNIQUE constraint failed: t.code": 8,
        "CHECK constraint failed: line1 > 0": 2,
        "CHECK constraint failed: line2 > 10": 1,
    },
    "postgresql": {
        'duplicate key value violates unique constraint "t_pkey"': 8,
        'new row for relation "t" violates check constraint "t_line1_check"': 2,
        'new row for relation "t" violates check constraint "t_line2_check"': 1,
    },
    "mysql": {
        "Duplicate entry 'it's' for key 'PRIMARY'": 8,
        "CONSTRAINT `t.line1` failed for db.`t`": 2,
        "CONSTRAINT `t.line2` failed for db.`t`": 1,
    },
}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("place", _REASONS, indirect=True)
def test_rows_that_are_refused_for_one_cause_have_one_reason(place: Place) -> None:
    twins = ["it's", "he says: x", 'a "b"', "k-5", "-7", "'", "", "5e3"]
    rows = [(code, 1, 11) for code in [*twins, *twins]]
    rows += [("neg", -5, 11), ("neg2", -60, 11), ("low", 1, 3)]
    place.create("src", {"code": "text", "line1": "int", "line2": "int"}, rows)
    place.run(
        "CREATE TABLE t (code varchar(20) PRIMARY KEY, line1 bigint CHECK (line1 > 0), "
        "line2 bigint CHECK (line2 > 10))"
    )
    with LocalEngine() as engine:
        report = copy(engine, end(place, "src"), end(place, "t", maxDirtyRows="20"))
    database = str(place.options.get("url", "/")).rpartition("/")[2]
    found = {text.replace(f"`{database}`", "db"): n for text, n in report.dirty_reasons.items()}
    assert found == _REASONS[place.kind]
    assert list(found) == list(_REASONS[place.kind]), "the most frequent first"
