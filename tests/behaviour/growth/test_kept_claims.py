"""`spark-channel claims`: a rerun of a version adds nothing until its claim is forgotten, on each kind of target."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, Writer, load_writer
from spark_channel.connectors.base.kept_claims import (
    bits_of,
    joined,
    overlap,
    ranges_of_bits,
    without,
)
from spark_channel.errors import OptionError, SupersededError, UnsupportedError
from tests.behaviour.exactly_once.targets import KINDS, LAKES, open_target
from tests.cli.typed import typed

_SCHEMA = pa.schema([("id", pa.int64())])
_KINDS = [
    "parquet",
    "sqlite",
    *(pytest.param(kind, marks=pytest.mark.full) for kind in [*KINDS[1:], *LAKES, "redis"]),
]


class Kept:
    """One target, its writes, and the command."""

    def __init__(self, options: dict[str, Any], rows: Any) -> None:
        self.options, self.rows = {key.lower(): value for key, value in options.items()}, rows
        self.count = 0

    def writer(self) -> Writer:
        return load_writer(self.options)[0]

    def plan(self, version: int | None, name: str = "nightly") -> Any:
        self.count += 1
        txn = None if version is None else (name, version)
        context = WriteContext(f"job-{self.count}", commit="job", txn=txn)
        writer = self.writer()
        return writer, writer.prepare(context, _SCHEMA)

    def write(self, version: int | None, name: str = "nightly") -> bool:
        """Whether it was new."""
        writer, plan = self.plan(version, name)
        if plan.published_at is not None:
            return False
        task = writer.open(plan, 0, 1)
        task.write(pa.record_batch([pa.array([self.count], pa.int64())], schema=_SCHEMA))
        writer.commit(plan, [task.close()])
        return True

    def command(self, words: str, *arguments: str) -> Any:
        options = dict(self.options)
        place = str(options.pop("url", "")).removeprefix("jdbc:")
        place = place or f"{options['writer']}:{options.pop('path', '')}"
        options.pop("writer", None)
        more = [part for name in options for part in ("-o", f"writer.{name}={options[name]}")]
        done = typed("claims", words, place, *arguments, *more)
        if isinstance(done.exception, Exception):
            raise done.exception
        return done

    def listed(self) -> dict[str, Any]:
        done = self.command("list", "--output", "json")
        return {each["claim"]: each for each in json.loads(done.stdout)}


@pytest.fixture(params=_KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if request.param == "redis":
        pytest.importorskip("redis")
        from tests.servers.redis import PASSWORD, PROGRAMS, redis_server

        with redis_server(next(iter(PROGRAMS))) as server:
            options = {
                "writer": "redis",
                "url": server.url,
                "password": PASSWORD,
                "keyColumns": "id",
                "valueColumns": "id",
                "keyPrefix": "row:",
                "commit": "job",
            }
            yield Kept(options, lambda: len(server.client.keys("row:*")))
        return
    (tmp_path / "shop").mkdir()
    for target in open_target(request.param, request, tmp_path / "shop"):
        target.reset(True)
        yield Kept(
            {"writer": request.param, **target.options}
            if request.param == "sqlite"
            else target.options,
            lambda: sum(target.seen().values()),  # noqa: B023 - one target
        )


def test_a_version_is_written_again_only_after_it_is_forgotten(kept: Kept) -> None:
    assert [kept.write(version) for version in (1, 2, 3, 7)] == [True] * 4
    assert kept.write(5, "other")
    assert kept.listed()["txn:nightly"]["versions"] == [[1, 3], [7, 7]]
    done = kept.command("forget", "txn:nightly:2")
    assert "forgot txn:nightly:2" in done.stdout
    assert "writes its rows again" in done.stdout
    assert kept.listed()["txn:nightly"]["versions"] == [[1, 1], [3, 3], [7, 7]]
    assert [kept.write(version) for version in (1, 2, 3, 7)] == [False, True, False, False]
    assert not kept.write(2)
    assert not kept.write(5, "other")
    assert kept.rows() == 6
    assert "txn:nightly:1..7" in kept.listed() or kept.listed()["txn:nightly"]["versions"] == [
        [1, 3],
        [7, 7],
    ]
    kept.command("forget", "txn:nightly:1..7")
    assert [kept.write(version) for version in (1, 2, 3, 7)] == [True] * 4
    assert kept.rows() == 10


def test_what_a_run_holds_is_refused_and_a_sleeper_of_a_forgotten_one_writes_nothing(
    kept: Kept,
) -> None:
    sleeper, plan = kept.plan(9)
    task = sleeper.open(plan, 0, 1)
    task.write(pa.record_batch([pa.array([77], pa.int64())], schema=_SCHEMA))
    receipt = task.close()
    # A lakehouse table gets the claim with the rows.
    refused = r"'txn:nightly:9' is held by run|'txn:nightly' is not kept"
    with pytest.raises(OptionError, match=refused):
        kept.command("forget", "txn:nightly:9")
    assert kept.write(9)
    kept.command("forget", "txn:nightly:9")
    with pytest.raises(SupersededError):
        sleeper.commit(plan, [receipt])
    assert kept.rows() == 1
    assert kept.write(9)
    assert kept.rows() == 2


def test_claims_leave_by_their_age(kept: Kept) -> None:
    kept.write(1)
    kept.write(None)
    assert "nothing: no claim is as old" in kept.command("forget", "--older-than", "1d").stdout
    assert not kept.write(1)
    assert "would forget" in kept.command("forget", "txn:nightly", "--dry-run").stdout
    assert not kept.write(1)
    with pytest.raises(OptionError, match="'txn:weekly' is not kept"):
        kept.command("forget", "txn:weekly")
    with pytest.raises(OptionError, match="a number of days or hours"):
        kept.command("forget", "--older-than", "soon")


def test_both_commands_print_json_and_take_options(tmp_path: Path) -> None:
    place, prefix = f"parquet:{tmp_path / 'out'}", ("-o", "writer.filePrefix=orders")
    folder = Kept(
        {"writer": "parquet", "path": f"{tmp_path / 'out'}", "filePrefix": "orders"}, None
    )
    assert all(folder.write(version) for version in (1, 3, 5))
    assert folder.write(None)
    asked = ("claims", "list", place, *prefix, "--limit", "1", "--output", "json")
    (newest,) = json.loads(typed(*asked).stdout)
    assert newest["kind"] in ("job", "txn")  # of one second
    again: tuple[str, ...] = ("claims", "forget", place, *prefix, "--older-than", "0h", "--dry-run")
    for sure in (again, again[:-1]):
        forgotten = json.loads(typed(*sure, "--output", "json").stdout)
        assert {each["kind"] for each in forgotten} <= {"job", "txn"}
    assert typed("claims", "forget", place).exit_code == 2


def test_a_folder_forgets_by_age_what_has_left_its_times(tmp_path: Path) -> None:
    from spark_channel.connectors.base.kept_claims import chosen
    from spark_channel.connectors.files.kept_claims import forgotten
    from spark_channel.connectors.files.kept_claims import kept as kept_in
    from spark_channel.connectors.files.manifest import Manifest
    from spark_channel.connectors.files.published_versions import PublishedVersions

    of = PublishedVersions()
    for version in range(1, 151):
        of = of.having(version, f"2026-01-01T00:{version // 60:02}:{version % 60:02}+00:00")
    manifest = Manifest("parquet", versions={"nightly": of})
    old = chosen(kept_in(manifest, ""), [], "2026-01-01T00:01:10+00:00")
    made, done = forgotten(manifest, 2, old, "")
    assert made is not None
    assert sum(each.count for each in done) == 69
    assert made.versions["nightly"].ranges == ((70, 150),)


def test_a_target_without_claims_says_so() -> None:
    options = {"writer": "clickhouse", "url": "http://127.0.0.1:1", "dbtable": "t"}
    writer = load_writer(options)[0]
    with pytest.raises(UnsupportedError, match="each run writes its rows again"):
        writer.kept_claims()
    with pytest.raises(UnsupportedError, match="nothing to list or forget"):
        writer.forget_claims([])


@pytest.mark.parametrize(
    "numbers", [set[int](), {0}, {1, 2, 3, 7, 61}, {*range(5, 40)}, {-3, -2, 0, 9}]
)
def test_ranges_are_bits(numbers: set[int]) -> None:
    ranges = joined((each, each) for each in numbers)
    bits = bits_of(ranges, -10, 100)
    assert bits == sum(1 << (each + 10) for each in numbers)
    assert ranges_of_bits(bits, -10) == ranges
    some = ((2, 8), (30, 35))
    kept = {each for each in numbers if not any(a <= each <= b for a, b in some)}
    assert without(ranges, some) == joined((each, each) for each in kept)
    assert overlap(ranges, some) == joined((each, each) for each in numbers - kept)
