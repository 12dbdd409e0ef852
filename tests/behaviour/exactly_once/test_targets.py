"""The same orders of two drivers' steps on each real target, compared with the model step by step."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.options import CommitMode
from spark_channel.processes import describe_owner
from tests.behaviour.exactly_once.model import Model, ModelWriter
from tests.behaviour.exactly_once.schedules import Schedule, all_schedules, play
from tests.behaviour.exactly_once.targets import KINDS, LAKES, Target, open_target

CASES = [
    pytest.param(
        (kind, mode),
        id=f"{kind}-{mode}",
        # As PostgreSQL's: the orders are those of one protocol.
        marks=pytest.mark.soak if (kind, mode) in (("adbc", "task"), ("firebird", "task")) else [],
    )
    for kind, mode in itertools.product([*KINDS, *LAKES], ("job", "task"))
    if mode == "job" or kind not in ("duckdb", *LAKES)
]
CLAIMED_LATE = ("sqlite", "duckdb", *LAKES)
"""What is not there keeps no claim: the first driver that makes it publishes, and the others find that out."""
SOME = 4
"""Of 3 570: every one of them on each target is `make soak`."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Target, CommitMode]]:
    kind, mode = request.param
    for target in open_target(kind, request, tmp_path):
        yield target, mode


def _compare(target: Target, mode: CommitMode, schedule: Schedule, *, there: bool) -> None:
    target.reset(there)
    model = Model()
    expected = play(lambda: ModelWriter(model), lambda: model.rows, schedule, mode)
    found = play(target.writer, target.seen, schedule, mode)
    if there or target.kind not in CLAIMED_LATE:
        assert found == expected, f"{schedule}: {found}, and the model has {expected}"
    if not there and target.kind in CLAIMED_LATE:
        _kill(target)
    assert target.staged() == [], f"{schedule}: staging is left"


def _kill(target: Target) -> None:
    """Drivers that ended here are in a live process, so only their claims show that they ended. Another job starts."""
    for path in map(Path, target.staged()):
        if path.name == "owner":
            path.write_text(json.dumps({**describe_owner(), "started": "1"}), encoding="utf-8")
    writer = target.writer()
    plan = writer.prepare(WriteContext("another", commit="job"), pa.schema([("id", pa.int64())]))
    writer.abort(plan, None)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_orders_of_two_drivers_end_as_on_the_model(
    case: tuple[Target, CommitMode], there: bool
) -> None:
    target, mode = case
    schedules = list(all_schedules())
    step = len(schedules) // SOME
    for schedule in schedules[1 if there else step // 2 :: step]:
        _compare(target, mode, schedule, there=there)


@pytest.mark.soak
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_every_order_of_two_drivers(case: tuple[Target, CommitMode], there: bool) -> None:
    target, mode = case
    for schedule in all_schedules():
        _compare(target, mode, schedule, there=there)
