"""Behaviour bands as data: each file in tests/scenarios is a cluster, what happens to it, what must hold."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_channel.limits import Pause, Resume, SetRates
from spark_channel.limits.grants import HORIZON
from tests.limits.world import LIMIT, World

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
Band = dict[str, Any]


class Scenario:
    """One file, run."""

    def __init__(self, path: Path) -> None:
        self.spec: dict[str, Any] = yaml.safe_load(path.read_text())
        self.rate = float(self.spec["rows_per_second"])
        self.world = World(self.rate, seed=1)
        for group in self.spec["tasks"]:
            kind = {
                key: value for key, value in group.items() if key not in ("count", "every", "start")
            }
            for index in range(group["count"]):
                start = group.get("start", 0.0) + index * group.get("every", 0.0)
                self.world.worker(start=start, **kind)
        for event in self.spec.get("events", ()):
            self.world.at(event["at"], partial(self.happen, event))
        self.world.run(self.spec["seconds"])

    def happen(self, event: Band) -> None:
        world = self.world
        match event["do"]:
            case "crash":
                for worker in world.workers[:: event["every"]]:
                    worker.crash()
            case "set":
                world.coordinator.handle(SetRates(LIMIT, event["rows_per_second"]))
            case "pause":
                world.coordinator.handle(Pause(LIMIT))
            case "resume":
                world.coordinator.handle(Resume(LIMIT))
            case "kill" | "cut":
                world.up = False
            case "start":
                world.restart(HORIZON)
                world.up = True
            case "mend":
                world.up = True
            case other:
                raise ValueError(other)

    # --- measures, each against its band

    def utilisation(self, band: Band) -> float:
        return self.world.utilisation(band["from"], band["until"])

    def utilisation_until_done(self, band: Band) -> float:
        ends = [worker.done_at for worker in self.world.workers]
        assert all(ends), "some tasks were not done"
        return self.world.utilisation(0, max(end for end in ends if end))

    def worst_1s(self, band: Band) -> float:
        return self.world.worst(1) / self.rate

    def worst_10s(self, band: Band) -> float:
        return self.world.worst(10) / (10 * self.rate)

    def fairness(self, band: Band) -> float:
        rows = [
            self.world.rows(band["from"], band["until"], [worker]) for worker in self.world.workers
        ]
        return min(rows) / (sum(rows) / len(rows))

    def job_share(self, band: Band) -> float:
        mine = [worker for worker in self.world.workers if worker.limiter._job == band["job"]]
        possible: float = self.rate * (band["until"] - band["from"])
        return self.world.rows(band["from"], band["until"], mine) / possible

    def messages_per_second(self, band: Band) -> float:
        return self.world.messages / float(self.spec["seconds"])

    def back_to(self, band: Band) -> float:
        """Seconds until a tenth of a second carries that share of the limit."""
        return self._first(band["after"], lambda rows: rows >= band["share"] * self.rate * 0.1)

    def down_to(self, band: Band) -> float:
        """Seconds until no tenth of a second carries more than that rate, and a row per task."""
        most = band["rows_per_second"] * 0.1 * 1.1 + (
            len(self.world.workers) if band["rows_per_second"] else 0
        )
        last = max(
            (step for step in range(50) if self._tenth(band["after"] + step * 0.1) > most),
            default=-1,
        )
        return (last + 1) * 0.1

    def _first(self, after: float, good: Callable[[float], bool]) -> float:
        return next(
            (step + 1) * 0.1 for step in range(100) if good(self._tenth(after + step * 0.1))
        )

    def _tenth(self, begin: float) -> float:
        return self.world.rows(begin, begin + 0.1)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_stays_inside_its_bands(path: Path) -> None:
    scenario = Scenario(path)
    for name, band in scenario.spec["expect"].items():
        value = getattr(scenario, name)(band)
        print(f"{path.stem} {name} {value:.4g}")
        low = band.get("min", float("-inf"))
        high = band.get("max", band.get("within", float("inf")))
        assert low <= value <= high, f"{name} is {value:.4g}, not within {low} to {high}"


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 13
