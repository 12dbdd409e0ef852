"""What servers say of their health, and how a job's speed follows it: on real servers, a replica among them."""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Self

import pytest

import spark_channel
from spark_channel.channel import Limiter
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import Health, find_connector
from spark_channel.connectors.base.health import StatementLatency, WakeLatency
from spark_channel.connectors.postgresql.health import Lag, PerMinute
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.limits import HealthSample, LimitStatus, StatusRequest
from spark_channel.options import CommonOptions
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import Probe, ServiceClient, ServiceServer, signal_value
from tests.servers.mariadb import DATABASE, MariadbServer
from tests.servers.postgres import PostgresServer
from tests.service.helpers import wait_for

LIMIT = 20_000


@pytest.fixture(scope="module")
def replicated() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    primary = PostgresServer.create()
    try:
        standby = primary.standby()
        try:
            streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn IS NOT NULL"
            wait_for(lambda: primary.psql(streams) == "1", "the standby to stream", 30.0)
            yield primary, standby
        finally:
            standby.close()
    finally:
        primary.close()


def _health(login: dict[str, str], role: str = "reader") -> Health:
    connector = find_connector({"url": login["url"]}, role)
    made = connector.reader_with if role == "reader" else connector.writer_with
    found = made({**login, "dbtable": "t"})[0].health()
    assert found is not None
    return found


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_postgresql_says_how_it_is(
    replicated: tuple[PostgresServer, PostgresServer], role: str
) -> None:
    primary, standby = replicated
    with _health(primary.login, role) as health:
        sample = health.sample()
    assert {"replication_lag", "forced_checkpoints", "active_sessions", "waiting_sessions"} <= set(
        sample.values
    )
    assert sample.values["replication_lag"][0] < 1
    assert not sample.missing
    assert len(sample.delays["wakeup"]) == 20
    assert all(0 <= each < 1 for each in sample.delays["wakeup"])
    assert sample.delays["own_sessions"] == [0.0] * 5
    assert all(0 < each < 1 for each in sample.delays["latency"])
    with _health(standby.login, role) as health:
        sample = health.sample()
    assert "replication_lag" in sample.values
    assert "forced_checkpoints" not in sample.values


def test_after_a_failover_a_standby_reports_nothing_of_the_primary_before_it(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, standby = replicated
    with _health(primary.login) as health, _health(standby.login) as other:
        assert "forced_checkpoints" in health.sample().values
        health.close()
        setattr(health, "_options", vars(other)["_options"])  # noqa: B010 - the address leads elsewhere now
        sample = health.sample()
    assert not {"forced_checkpoints", "slot_wal"} & set(sample.values)
    assert "replication_lag" in sample.values


def test_sessions_of_jobs_are_seen_at_work_and_not_while_they_wait(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    """One reads, one sleeps; the one that writes does not count as work of a read, but as the other side's."""
    primary, standby = replicated
    assert _health(primary.login).server != _health(standby.login).server
    sessions = [
        ("spark-channel read", "SELECT count(*) FROM generate_series(1, 4000000)"),
        ("spark-channel read", "SELECT pg_sleep(2)"),
        ("spark-channel write 1", "SELECT count(*) FROM generate_series(1, 4000000)"),
    ]
    named = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE 'spark-channel %'"
    with ThreadPoolExecutor() as pool, _health(primary.login) as health:
        health.sample()
        for name, sql in sessions:
            pool.submit(primary.psql, f"SET application_name = '{name}'; {sql}")
        wait_for(lambda: primary.psql(named) == "3", "three sessions", 10.0)
        seen = health.sample()
        with _health(primary.login, "writer") as writing:
            assert writing.server == health.server
            of_target = health.sample_for(writing, seen)
    assert len(seen.delays["own_sessions"]) == len(of_target.delays["own_sessions"]) == 5
    assert max(seen.delays["own_sessions"]) == 1.0
    assert max(of_target.delays["own_sessions"]) == 1.0
    assert of_target.delays["wakeup"] == seen.delays["wakeup"]


def test_sessions_slots_and_checkpoints_are_counted(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, _ = replicated
    primary.psql("CREATE TABLE busy (id int PRIMARY KEY); INSERT INTO busy VALUES (1)")
    primary.psql("SELECT pg_create_physical_replication_slot('left_alone', true)")
    held = threading.Thread(
        target=primary.psql, args=("BEGIN; UPDATE busy SET id = 1; SELECT pg_sleep(4); COMMIT",)
    )
    waits = threading.Thread(target=primary.psql, args=("UPDATE busy SET id = 1",))
    try:
        with _health(primary.login) as health:
            before = health.sample().values["forced_checkpoints"][0]
            primary.psql(
                "CHECKPOINT; CREATE TABLE wal AS SELECT lpad('', 1000, 'x') FROM generate_series(1, 5000)"
            )
            held.start()
            time.sleep(0.5)
            waits.start()
            time.sleep(1.5)
            values = health.sample().values
        assert values["active_sessions"][0] == 2
        assert values["waiting_sessions"][0] == 1
        assert values["slot_wal"][0] > 4_000_000
        assert values["forced_checkpoints"][0] == before + 1
        assert values["xmin_age"][0] >= 0
    finally:
        held.join()
        waits.join()
        primary.psql("SELECT pg_drop_replication_slot('left_alone'); DROP TABLE busy, wal")


def test_a_role_that_may_see_little_is_told_of(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, _ = replicated
    primary.psql("CREATE ROLE plain LOGIN PASSWORD 'x'")
    other = threading.Thread(target=primary.psql, args=("SELECT pg_sleep(2)",))
    other.start()
    time.sleep(0.3)
    try:
        with _health({**primary.login, "user": "plain", "password": "x"}) as health:
            sample = health.sample()
    finally:
        other.join()
        primary.psql("DROP ROLE plain")
    assert "replication_lag" not in sample.values
    assert sample.missing == (
        "replication_lag (needs pg_monitor)",
        "active_sessions, waiting_sessions (needs pg_monitor)",
    )
    assert sample.delays["wakeup"]


def test_a_nap_is_late_by_what_is_beyond_the_shortest_ones() -> None:
    """PostgreSQL rounds 1 ms up to 2 ms: a wait of 0.3 ms would be a sixth more, and is four times the usual."""
    naps = WakeLatency(0.001)
    assert naps.late([0.0021, 0.0021, 0.0022, 0.0024]) == pytest.approx([0.0, 0.0, 0.0001, 0.0003])
    assert naps.late([0.0020, 0.0020, 0.0024]) == pytest.approx([0.0, 0.0, 0.0004])
    assert naps.late([]) == []


def test_one_nap_that_ends_early_makes_no_later_nap_late() -> None:
    naps = WakeLatency(0.001)
    usual = [0.0021, 0.0022] * 5
    naps.late(usual)
    naps.late([0.0018, *usual])
    assert max(naps.late(usual)) < 0.0002


def test_a_clock_that_is_set_back_makes_no_later_nap_late() -> None:
    naps = WakeLatency(0.001)
    naps.late([0.0021])
    assert naps.late([-3600.0, 0.0021]) == pytest.approx([0.0, 0.0])
    assert max(naps.late([0.0021])) < 0.002


def _sums(*latencies: float) -> tuple[float, float]:
    return len(latencies), sum(latencies)


def test_the_latency_of_an_application_does_not_depend_on_its_mixture() -> None:
    quick, slow = [0.001] * 100, [0.1] * 100

    def mean(more_quick: list[float], more_slow: list[float]) -> float | None:
        statements = StatementLatency()
        before = [("quick", *_sums(*quick)), ("slow", *_sums(*slow))]
        assert statements.mean(before) is None
        return statements.mean(
            [("quick", *_sums(*quick, *more_quick)), ("slow", *_sums(*slow, *more_slow))]
        )

    assert mean(quick, slow) == pytest.approx(1.0)
    assert mean(quick, slow * 5) == pytest.approx(1.0)
    assert mean(quick, []) == pytest.approx(1.0)
    assert mean([2 * each for each in quick], [2 * each for each in slow]) == pytest.approx(2.0)
    assert mean(quick, [60.0]) == pytest.approx(1.0, abs=0.1)  # one report of a minute


def test_few_statements_say_nothing_of_the_application() -> None:
    statements = StatementLatency()
    assert statements.mean([("a", *_sums(*[0.5] * 50))]) is None
    assert statements.mean([("a", *_sums(*[0.5] * 60))]) is None
    assert statements.mean([("a", *_sums(*[0.5] * 75))]) == pytest.approx(1.0)
    assert statements.mean([]) is None


@pytest.mark.parametrize("calls", [50, 120], ids=["fewer than before", "more than before"])
def test_counters_that_begin_anew_are_held_against_what_was_usual_before(calls: int) -> None:
    """A reset while the job runs: statements counted after it are slow because of the job."""
    statements = StatementLatency()
    assert statements.mean([("a", *_sums(*[0.010] * 100))]) is None
    reset = statements.mean([("a", *_sums(*[0.002] * calls))])
    assert reset == pytest.approx(0.2)
    slow = statements.mean([("a", *_sums(*[0.002] * calls, *[0.020] * 40))])
    assert slow == pytest.approx(2.0)


def test_a_kind_that_the_server_dropped_keeps_its_usual_latency() -> None:
    statements = StatementLatency()
    statements.mean([("a", *_sums(*[0.010] * 100)), ("b", *_sums(*[0.010] * 100))])
    statements.mean([("b", *_sums(*[0.010] * 100))])
    statements.mean([("a", *_sums(*[0.020] * 10)), ("b", *_sums(*[0.010] * 100))])
    again = [("a", *_sums(*[0.020] * 40)), ("b", *_sums(*[0.010] * 100))]
    assert statements.mean(again) == pytest.approx(2.0)


def test_kinds_without_end_do_not_fill_the_memory() -> None:
    statements = StatementLatency()
    for number in range(5_000):
        statements.mean([(number, 1.0, 0.001)])
    assert len(statements._means) <= 2_001


def _hold_to_hear_statements(login: dict[str, str], long_ago: dict[str, object]) -> None:
    """User `app` runs statements beside the job, and `plain` may not see them. `long_ago`: attributes of a health that
    say when they were last read.
    """
    with (
        _health({**login, "user": "app", "password": "x"}) as statements,
        _health(login) as health,
    ):
        samples = []
        for _ in range(3):
            vars(health).update(copy.deepcopy(long_ago))  # or it looks once a second
            samples.append(health.sample())
            for _ in range(10):
                statements.sample()
    assert "application" not in samples[0].delays
    (mean,) = samples[2].delays["application"]
    assert 0.1 < mean < 10
    with _health({**login, "user": "plain", "password": "x"}) as health:
        assert any(each.startswith("application (needs") for each in health.sample().missing)


def test_postgresql_says_how_slow_the_statements_of_other_roles_are() -> None:
    server = PostgresServer.create(shared_preload_libraries="pg_stat_statements")
    try:
        server.psql(
            "CREATE EXTENSION pg_stat_statements; CREATE ROLE app LOGIN SUPERUSER PASSWORD 'x'; "
            "CREATE ROLE plain LOGIN PASSWORD 'x'"
        )
        _hold_to_hear_statements(server.login, {"_turns": {}, "_rests_until": 0.0})
        _hold_to_few_kinds_of_statements(server)
    finally:
        server.close()


def _hold_to_few_kinds_of_statements(server: PostgresServer) -> None:
    """The extension keeps 5 000 kinds: those of a job must not take the place of the application's."""
    server.psql(
        "CREATE TABLE t AS SELECT n AS id, 'of ' || n AS v FROM generate_series(1, 30000) AS n; "
        "ALTER TABLE t ADD PRIMARY KEY (id); SELECT pg_stat_statements_reset()"
    )
    kinds = "SELECT replace(query, E'\\n', ' ') FROM pg_stat_statements"
    seen = []
    for rows in (29_000, 30_000):
        read = {**server.login, "name": "postgresql", "dbtable": "t", "where": f"id <= {rows}"}
        report = spark_channel.transfer(None, read, {"name": "discard"}, rows_per_second=15_000)
        assert report.rows == rows
        seen.append(set(server.psql(kinds).splitlines()))
    assert not [each for each in seen[1] if "DECLARE channel_rows" in each]
    assert [each for each in seen[1] if each.startswith("FETCH")]
    new = [each.split()[0] for each in seen[1] - seen[0]]
    assert new.count("FETCH") < 60
    assert len(new) - new.count("FETCH") < 20
    # A role that may not use PL/pgSQL reads the same rows.
    server.psql("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC; GRANT SELECT ON t TO plain")
    read |= {"user": "plain", "password": "x"}
    report = spark_channel.transfer(None, read, {"name": "discard"}, rows_per_second=15_000)
    assert report.rows == 30_000
    assert "DECLARE channel_rows" in server.psql(kinds)


def test_statements_are_looked_at_less_often_where_a_server_keeps_thousands_of_them() -> None:
    class Session:
        def rows(self, sql: str) -> list[tuple[Any, ...]]:
            if sql == "statements":
                looks.append(clock[0])
                clock[0] += took[(len(looks) - 1) % len(took)]
                return []
            return [(None, None, None, None)]

        def value(self, sql: str) -> float:
            return 0.0

    def looks_in_a_minute(*seconds: float) -> int:
        took[:] = seconds
        found._rests_until = 0.0
        found._took.clear()
        looks.clear()
        until = clock[0] + 60.0
        while clock[0] < until:
            found._look(Session())
            clock[0] += 0.29
        return len(looks)

    looks: list[float] = []
    clock, took = [1_000_000.0], [0.0]
    found: Any = _health({"url": "postgresql://127.0.0.1:1/none", "user": "u", "password": "p"})
    found._statements_sql = "statements"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_channel.connectors.postgresql.health.time.monotonic", lambda: clock[0])
        assert 58 <= looks_in_a_minute(0.0005) <= 61
        assert 58 <= looks_in_a_minute(0.0005, 0.020) <= 61  # each second one waited for a core
        assert 15 <= looks_in_a_minute(0.0030, 0.0031, 0.0034) <= 21
        assert 9 <= looks_in_a_minute(0.050) <= 13


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_mariadb_says_how_it_is(mariadb_server: MariadbServer, role: str) -> None:
    with _health(mariadb_server.login, role) as health:
        sample = health.sample()
        again = health.sample()
    assert {"threads_running", "history_length"} <= set(sample.values) == set(again.values)
    assert not sample.missing
    assert len(sample.delays["wakeup"]) == 10
    assert all(0 <= each < 1 for each in sample.delays["wakeup"])


def test_mariadb_says_how_slow_the_statements_of_other_users_are() -> None:
    server = MariadbServer.create(performance_schema="ON")
    try:
        server.sql(
            "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x'; CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'x'; "
            "GRANT PROCESS, REPLICATION CLIENT, REPLICATION SLAVE, REPLICA MONITOR ON *.* TO plain@'127.0.0.1'; "
            f"GRANT SELECT ON {DATABASE}.* TO plain@'127.0.0.1'; "
            f"GRANT ALL ON {DATABASE}.* TO app@'127.0.0.1'"
        )
        _hold_to_hear_statements(server.login, {"_statements_at": -1e9})
    finally:
        server.close()


def test_a_server_that_is_not_there_is_an_error_and_asked_again(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    health = _health({**replicated[0].login, "url": "postgresql://127.0.0.1:1/postgres"})
    for _ in range(2):
        with pytest.raises(ChannelError):
            health.sample()
    health.close()


def test_a_probe_takes_a_signal_by_its_name(
    replicated: tuple[PostgresServer, PostgresServer],
) -> None:
    """No query is needed; a name that is none says which there are."""
    login = replicated[0].login
    for name in ("replication_lag", "wakeup"):
        with closing(signal_value(login, name)) as measure:
            assert 0 <= measure() < 1
    with (
        pytest.raises(
            SourceError, match=r"does not report signal 'replica_lag'; it reports .*replication_lag"
        ),
        closing(signal_value(login, "replica_lag")) as measure,
    ):
        measure()
    with pytest.raises(OptionError, match="reports no health signals"):
        signal_value({"url": "sqlite:/tmp/none.db"}, "replication_lag")
    with pytest.raises(OptionError, match="not available to a probe"):
        signal_value(login, "work")
    samples: list[HealthSample] = []
    probe = Probe(signal_value(login, "wakeup"), -1.0, seconds=0.1, what="wakeup")
    probe.start(samples.append)
    _until(lambda: len(samples) > 1, 10)
    probe.stop()
    value, bound = samples[0].values["wakeup"]
    assert value > bound == -1.0
    assert replicated[0].connections() == 0


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("replication_lag<10s", {"replication_lag": 10.0}),
        (
            " replication_lag < 1.5min , slot_wal<2GiB",
            {"replication_lag": 90.0, "slot_wal": float(2 << 30)},
        ),
        ("wakeup<2ms,active_sessions<40", {"wakeup": 0.002, "active_sessions": 40.0}),
    ],
)
def test_bounds_are_read_as_people_write_them(text: str, bounds: dict[str, float]) -> None:
    options, _ = CommonOptions.parse({"pressure": text})
    assert options.pressure == pytest.approx(bounds)


@pytest.mark.parametrize(
    "text", ["", "replication_lag", "replication_lag>3s", "a<1s,a<2s", "a<1parsec", "a<1.2.3s"]
)
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="replication_lag<10s") as refused:
        CommonOptions.parse({"pressure": text})
    assert refused.value.option == "pressure"


def test_lag_is_counted_in_time_from_positions() -> None:
    lag = Lag()
    assert lag.seconds(0.0, 100, 100) == 0
    assert lag.seconds(1.0, 200, 100) == 0  # it was written in this very second
    assert lag.seconds(2.0, 300, 100) == 1
    assert lag.seconds(3.0, 300, 200) == 1
    assert lag.seconds(9.0, 300, 200) == 7
    assert lag.seconds(9.5, 300, 300) == 0
    assert lag.seconds(20.0, 300, 300) == 0


def test_a_counter_is_counted_for_a_minute_and_survives_a_restart() -> None:
    counted = PerMinute()
    assert [counted.count(at, value) for at, value in ((0, 7), (10, 9), (65, 10), (75, 10))] == [
        0,
        2,
        1,
        0,
    ]
    assert counted.count(80, 1) == 0


class Job:
    """A job that spends all that its limit allows, as fast as it may."""

    def __init__(
        self, server: ServiceServer, healths: dict[str, Callable[[], Health | None]], **spec: Any
    ) -> None:
        self.server = server
        self.name = server.jobs.open(JobSpec("transfer", protect=True, tasks=1, **spec))
        self.client = ServiceClient(
            server.address, self.name, JobSpec("transfer", protect=True, tasks=1, **spec)
        )
        self.client.watch_health(healths)
        self.client.counters(0, 0)
        limiter = self.client.limiter("task 0")
        assert limiter is not None
        self._limiter = limiter
        self._ended = threading.Event()
        self.passed: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._spend, args=(limiter,))
        self._thread.start()

    def _spend(self, limiter: Limiter) -> None:
        woken = threading.Condition()

        def wake() -> None:
            with woken:
                woken.notify_all()

        while not self._ended.is_set():
            payment = limiter.pay(rows=20, nbytes=0, wake=wake)
            while (wait := payment.remaining()).seconds and not self._ended.is_set():
                with woken:
                    woken.wait(min(wait.seconds, 0.1))
            self.passed.append((SYSTEM_CLOCK.now(), 20))

    def speed(self, seconds: float = 0.5) -> float:
        since = SYSTEM_CLOCK.now() - seconds
        return sum(rows for at, rows in self.passed[-100_000:] if at >= since) / seconds

    def status(self) -> LimitStatus:
        found = self.server.limits.handle(StatusRequest(f"job:{self.name}"))
        assert isinstance(found, LimitStatus)
        return found

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.client.close()
        self.server.jobs.enter(self.name, Phase.DONE)


class _OddHealth(Health):
    """Its first answer cannot be read."""

    def __init__(self) -> None:
        self.asked = 0

    def sample(self) -> HealthSample:
        self.asked += 1
        if self.asked == 1:
            raise ValueError("month must be in 1..12")
        return HealthSample({"replication_lag": (0.0, 1.0)})

    def close(self) -> None:
        pass


def test_an_answer_that_cannot_be_read_is_shown_and_asked_for_again() -> None:
    """A side that fell silent held the speed until the job ended, and nothing said so."""
    health = _OddHealth()
    with ServiceServer() as server:
        job = Job(server, {"source": lambda: health})
        try:
            unreachable = "unreachable: source: ValueError: month must be in 1..12"
            _until(lambda: job.status().pressure.startswith(unreachable), 10)
            _until(lambda: health.asked > 2 and not job.status().pressure, 10)
        finally:
            job.end()


class _OneOfTwo(Health):
    """A side of a job whose source and target are one server."""

    server = "the only one"

    def __init__(self, row_seconds: float, asked: list[float]) -> None:
        self.row_seconds, self._asked = row_seconds, asked

    def sample(self) -> HealthSample:
        self._asked.append(self.row_seconds)
        return HealthSample(row_seconds=self.row_seconds)

    def sample_for(self, other: Self, sample: HealthSample) -> HealthSample:
        return HealthSample(row_seconds=other.row_seconds)

    def close(self) -> None:
        pass


def test_one_connection_is_enough_for_two_sides_that_are_one_server() -> None:
    asked: list[float] = []
    with ServiceServer() as server:
        job = Job(
            server,
            {"source": lambda: _OneOfTwo(1e-3, asked), "target": lambda: _OneOfTwo(2e-3, asked)},
        )
        try:
            _until(lambda: len(asked) > 12, 20)
        finally:
            job.end()
        aim = server.jobs.find(job.name).report().aim
    assert set(asked) == {1e-3}
    assert "source's work" in aim
    assert "target's work" in aim


def _until(true: Callable[[], bool], seconds: float) -> float:
    """How long it took until `true`, at most `seconds`."""
    begun = SYSTEM_CLOCK.now()
    while not true():
        assert SYSTEM_CLOCK.now() - begun < seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return SYSTEM_CLOCK.now() - begun


@pytest.mark.parametrize("watched", ["the primary as target", "the replica as source"])
def test_a_replica_that_falls_behind_slows_the_job_and_gives_its_speed_back(
    replicated: tuple[PostgresServer, PostgresServer], watched: str
) -> None:
    """Replay is paused for 20 s: the speed is down within 2 s, and at 95 % within 5 s of recovery."""
    primary, standby = replicated
    source = watched == "the replica as source"
    side, login = ("source", standby.login) if source else ("target", primary.login)
    primary.psql("CREATE TABLE IF NOT EXISTS written (n int)")
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.1):
            primary.psql("INSERT INTO written VALUES (1)")

    writing = threading.Thread(target=write)
    writing.start()
    # A busy machine of tests delays everything: here the lag alone is watched, on it is what protect=auto does at 1 s.
    healths: dict[str, Callable[[], Health | None]] = {side: lambda: _Values(_health(login))}
    with ServiceServer() as server:
        job = Job(server, healths, rows_per_second=LIMIT)
        try:
            _until(lambda: job.speed() >= 0.95 * LIMIT, 20)
            standby.psql("SELECT pg_wal_replay_pause()")
            down = _until(lambda: (job.status().effective_rows_per_second or 0) <= LIMIT / 2, 10)
            assert down <= 2.0
            time.sleep(20 - down)
            assert job.speed(2.0) <= 0.1 * LIMIT
            assert job.status().pressure.startswith(f"pressed: {side}'s replication_lag")
            standby.psql("SELECT pg_wal_replay_resume()")
            # Half a second to measure it.
            assert _until(lambda: job.speed() >= 0.95 * LIMIT, 15) <= 5.5
        finally:
            standby.psql("SELECT pg_wal_replay_resume()")
            ended.set()
            writing.join()
            job.end()
        report = server.jobs.find(job.name).report()
    assert 17 <= report.held[f"{side}'s replication_lag"] <= 22
    assert any(f"{side}'s replication_lag" in each.note for each in report.changes)
    assert primary.connections() == standby.connections() == 0
    assert not [
        each for each in threading.enumerate() if each.name.startswith("spark-channel-health")
    ]


class _Values(Health):
    """Without the delays, which other tests of this machine make long."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def sample(self) -> HealthSample:
        sample = self._health.sample()
        return HealthSample(sample.values, {}, sample.missing)

    def close(self) -> None:
        self._health.close()


class _Stuck(Health):
    """A system that does not answer."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def sample(self) -> HealthSample:
        self.released.wait(60)
        return HealthSample()

    def close(self) -> None:
        pass


def test_a_sampler_that_hangs_holds_nothing_up() -> None:
    stuck = _Stuck()
    with ServiceServer() as server:
        job = Job(server, {"source": lambda: stuck}, rows_per_second=LIMIT)
        _until(lambda: job.speed() > 0, 10)
        time.sleep(1.0)
        begun = SYSTEM_CLOCK.now()
        job.end()
        assert SYSTEM_CLOCK.now() - begun < 4
    stuck.released.set()
    _until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("spark-channel-health")],
        5,
    )


def test_a_system_that_cannot_be_asked_keeps_the_speed_as_it_is_and_is_told_of() -> None:
    gone = {"url": "postgresql://127.0.0.1:1/postgres", "user": "x", "password": "s3cret-of-x"}
    with ServiceServer() as server:
        job = Job(server, {"target": lambda: _health(gone)}, rows_per_second=LIMIT)
        try:
            _until(lambda: "unreachable: target" in job.status().pressure, 10)
            assert "s3cret" not in job.status().pressure
            assert (job.status().effective_rows_per_second or 0) <= LIMIT / 2
        finally:
            job.end()
