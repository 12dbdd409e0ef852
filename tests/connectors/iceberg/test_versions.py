"""Published versions of one transaction id share properties of the table, and a rerun of each stays a no-op."""

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.iceberg import versions
from spark_channel.connectors.iceberg.claims import PREFIX, property_name, property_value
from spark_channel.errors import TargetError
from tests.connectors.iceberg.helpers import ids, numbers, stage, writer_of


def _claims(catalog: Catalog, kind: str) -> int:
    properties = catalog.load_table("shop.t").properties
    return sum(
        name.startswith(PREFIX) and f'"kind": "{kind}"' in text for name, text in properties.items()
    )


def _write(path: Path, version: int) -> bool:
    """One row as this version; whether it was new."""
    out, context = writer_of(path), WriteContext(f"job-{version}", txn=("nightly", version))
    plan = out.prepare(context, numbers().schema)
    if plan.published_at is not None:
        return False
    out.abort(plan, None)
    out.commit(*stage(out, [numbers(version)], context))
    return True


def test_old_versions_share_a_property(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_KEPT", 2)
    some = (1, 2, 3, 5, versions.PER_PROPERTY - 1, versions.PER_PROPERTY, -1, 202_611_291_015)
    assert all(_write(tmp_path, version) for version in some)
    assert _claims(catalog, "txn") <= 4
    assert _claims(catalog, "versions") <= 4
    assert not any(_write(tmp_path, version) for version in some)
    assert _write(tmp_path, 4)
    assert sorted(ids(catalog, "shop.t")) == sorted([*some, 4])


def test_a_run_that_is_late_publishes_nothing(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, 0)
    sleeper = writer_of(tmp_path)
    plan, receipts = stage(sleeper, [numbers(77)], WriteContext("late", txn=("nightly", 9)))
    assert _write(tmp_path, 9)
    monkeypatch.setattr(versions, "_KEPT", 0)
    _write(tmp_path, 10)
    assert _claims(catalog, "versions") == 1
    sleeper.commit(plan, receipts)
    assert sorted(ids(catalog, "shop.t")) == [0, 9, 10]


def test_versions_that_are_minutes_take_a_few_properties_and_are_found_each() -> None:
    properties: dict[str, str] = {}
    times = [20_261_100_0000 + day * 10_000 + minute for day in range(20) for minute in range(60)]
    for number in times:
        claim = Claim(
            Identity("t", "txn", "n", number), "", state="published", published_at=str(number)
        )
        properties[property_name(claim.identity)] = property_value(claim)
    while True:
        gone, made = versions.gathered(properties, "t", PREFIX, property_name)
        if not gone:
            break
        properties = {name: text for name, text in properties.items() if name not in gone} | made
    shared = [text for text in properties.values() if '"versions"' in text]
    assert len(shared) <= 12
    assert max(map(len, shared)) < 300
    for number in range(times[0] - 5, times[0] + 30):
        identity = Identity("t", "txn", "n", number)
        place = versions.shared(identity)
        assert place is not None
        text = properties.get(property_name(place))
        found = text is not None and versions.published_in(text, identity, "t") is not None
        assert found == (number in times)


@pytest.mark.parametrize("text", ["", "{}", '{"bits": "eJw=", "at": ""}', '{"bits": 1, "at": ""}'])
def test_a_damaged_property_is_told(text: str) -> None:
    with pytest.raises(TargetError, match="published versions that is damaged"):
        versions.published_in(text, Identity("t", "txn", "n", 1), "t")
