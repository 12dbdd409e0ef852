"""Random histories of five tables of PostgreSQL and MariaDB: the target, PostgreSQL, holds what the contract says."""

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.behaviour.faults.test_histories import CHANGE, NAMES, SELECTED, VALUE, Histories
from tests.replication.histories import Stream, World
from tests.replication.server_histories import MariadbSource, PostgresSource, ServerWorld
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

_TYPES = st.sampled_from(["INTEGER", "INT4", "TEXT", "REAL"])
_NEXT = {"INT4": "INTEGER", "INTEGER": "REAL", "REAL": "TEXT"}
_CHANGE = CHANGE | st.tuples(
    st.just("_change_columns"),
    st.sampled_from(["add", "drop", "rename", "widen", "widen"]),
    NAMES,
    NAMES,
    _TYPES,
    VALUE,
)


class ServerHistories(Histories):
    """Columns also change their types where they are."""

    system: ClassVar[str]
    postgres: ClassVar[PostgresServer]
    mariadb: ClassVar[MariadbServer]

    def _made(self, streams: dict[str, Stream]) -> World:
        source = (
            PostgresSource(self.postgres)
            if self.system == "postgresql"
            else MariadbSource(self.mariadb)
        )
        return ServerWorld(source, self.postgres, streams)

    def _change_columns(
        self, name: str, what: str, column: str, new: str, kind: str, value: int | None
    ) -> None:
        if what != "widen":
            super()._change_columns(name, what, column, new, kind, value)
            return
        found = self.world.snapshot(name)
        wider = None if found is None else _NEXT.get(found.columns.get(column, ""))
        if wider is not None:
            assert isinstance(self.world, ServerWorld)
            self.world.retype(name, column, wider)

    @rule(
        select=SELECTED,
        changes=st.lists(_CHANGE, min_size=1, max_size=4),
        how=st.sampled_from(
            ["whole", "whole", "whole", "refresh", "killed", "killed", "overtaken"]
        ),
        at=st.integers(1, 250),
        later=st.tuples(st.integers(0, 2), VALUE),
    )
    def changes_and_a_run(
        self,
        select: list[str],
        changes: list[tuple[Any, ...]],
        how: str,
        at: int,
        later: tuple[int, int | None],
    ) -> None:
        self._change_and_run(select, changes, how, at, later)


@pytest.mark.parametrize("system", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(3, id="quick"),
        pytest.param(200, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_the_target_holds_what_the_contract_says(
    postgres_server: PostgresServer, mariadb_server: MariadbServer, system: str, count: int
) -> None:
    made = {"system": system, "postgres": postgres_server, "mariadb": mariadb_server}
    kind = type("Run", (ServerHistories,), made)
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=count,
            stateful_step_count=6,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
