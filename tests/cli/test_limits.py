"""`spark-channel limits` on a limit that is there: looked at, changed, paused; and what `serve` refuses."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from spark_channel.cli.limits import limits
from spark_channel.errors import OptionError
from spark_channel.limits import Join, UnreachablePolicy
from spark_channel.service import LimitControl, SharedLimit
from tests.behaviour.commands.test_as_typed import ROOT, run
from tests.servers.postgres import PostgresServer
from tests.service.helpers import serve_limit, wait_for


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def served() -> Iterator[list[subprocess.Popen[str]]]:
    """What `serve_limit` starts; killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def orders() -> Iterator[SharedLimit]:
    """A limit with one client of one job."""
    with SharedLimit("orders-db", rows_per_second="50k") as limit:
        limit._serving().limits.handle(Join("orders-db", "nightly", "task 0"))
        yield limit


def command(*arguments: str) -> str:
    """stdout of `spark-channel limits ARGUMENTS`, which ends with 0; in this process."""
    done = CliRunner().invoke(limits, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_limit_is_listed_and_shown_with_who_uses_it(orders: SharedLimit) -> None:
    with SharedLimit("files", bytes_per_second="64MB"):
        listed = [
            line for line in command("list").splitlines() if "files" in line or "orders-db" in line
        ]
    columns = [cell.strip() for cell in listed[0].split("│")[1:5]]
    assert columns == ["files", "open", "unlimited", "64M"]
    name, state, rows, nbytes, granted, *rest = (
        cell.strip() for cell in listed[1].split("│")[1:-1]
    )
    assert (name, state, rows) == ("orders-db", "open", "50k")
    assert (nbytes, rest) == ("unlimited", ["1", "1", "0"])
    assert granted in ("50k", "0"), "its grant, or that it ran out meanwhile"
    shown = command("show", "orders-db")
    assert (
        "limit orders-db: 50k rows/s, unlimited bytes/s, open; 1 job, 1 client, 0 waiting" in shown
    )
    (client,) = [line for line in shown.splitlines() if "task 0" in line]
    name, job, rows, nbytes, waits = (cell.strip() for cell in client.split("│")[1:-1])
    assert (name, job, nbytes, waits) == ("task 0", "nightly", "unlimited", "-")
    assert rows in ("50k", "0"), "its grant, or that it ran out meanwhile"


def test_a_limit_is_set_and_what_is_left_out_stays(orders: SharedLimit) -> None:
    assert "10k rows/s, unlimited bytes/s" in command(
        "set", "orders-db", "--rows-per-second", "10k"
    )
    assert "10k rows/s, 64M bytes/s" in command("set", "orders-db", "--bytes-per-second", "64MB")
    assert "20k rows/s, 32M bytes/s" in command(
        "set", "orders-db", "--rows-per-second", "20k", "--bytes-per-second", "32MB"
    )
    status = orders.status()
    assert (status.rows_per_second, status.bytes_per_second) == (20_000, 32_000_000)


def test_a_limit_is_named_by_its_beginning_or_by_being_the_only_one(orders: SharedLimit) -> None:
    assert "limit orders-db: 7k rows/s" in command("set", "--rows-per-second", "7k")
    assert "limit orders-db: 8k rows/s" in command("set", "ord", "--rows-per-second", "8k")
    assert "paused" in command("pause", "o")
    assert "open" in command("resume")
    with SharedLimit("orders", bytes_per_second="64MB"):
        for given, said in (
            (["ord"], "several limits begin with 'ord': orders, orders-db"),
            ([], "2 limits run on this host, so name one: orders, orders-db"),
            (["x"], "no limit 'x' runs on this host; running are: orders, orders-db"),
        ):
            done = CliRunner().invoke(limits, ["pause", *given])
            assert said in str(done.exception)
        assert "limit orders: unlimited rows/s, 64M" in command("show", "orders"), "its whole name"


@pytest.mark.parametrize("arguments", [("set", "", "--rows-per-second", "1k"), ("pause", "")])
def test_an_empty_name_is_not_the_only_limit(
    orders: SharedLimit, arguments: tuple[str, ...]
) -> None:
    """As of a shell's variable that is not set."""
    with pytest.raises(OptionError, match=r"name of the limit is empty: .*\(orders-db\)"):
        command(*arguments)
    assert "50k rows/s, unlimited bytes/s, open" in command("show")


def test_a_limit_is_lifted(orders: SharedLimit) -> None:
    lifted = command("set", "orders-db", "--rows-per-second", "unlimited")
    assert "unlimited rows/s, unlimited bytes/s" in lifted
    assert orders.status().rows_per_second is None


def test_names_are_whole_in_eighty_columns_and_in_json(orders: SharedLimit) -> None:
    name = "the-database-of-orders-at-the-second-site-of-the-company-in-the-north"
    with SharedLimit(name, rows_per_second="5k"):
        done = CliRunner().invoke(limits, ["list"], env={"COLUMNS": "80"})
        assert name in done.output.splitlines()
        assert max(map(len, done.output.splitlines())) <= 80
        listed = json.loads(run("limits", "list", "--output", "json"))
        shown = json.loads(run("limits", "show", name, "--output", "json"))
    assert [limit["limit"] for limit in listed] == ["orders-db", name]
    assert listed[0]["clients"][0]["client"] == "task 0"
    assert (shown["rows_per_second"], shown["bytes_per_second"]) == (5_000, None)


def test_windows_change_a_limit_until_the_command_is_interrupted(orders: SharedLimit) -> None:
    command = [sys.executable, "-m", "spark_channel.cli", "limits", "set", "orders-db"]
    command += ["--window", "7k", "--rows-per-second", "9k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert "7k rows/s" in process.stdout.readline()
            assert orders.status().rows_per_second == 7_000
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "9k rows/s" in out
    assert orders.status().rows_per_second == 9_000


def test_a_limit_of_rows_gets_one_of_bytes_and_an_unknown_zone_is_refused(
    orders: SharedLimit,
) -> None:
    said = run("limits", "set", "orders-db", "--bytes-per-second", "64MB")
    assert "50k rows/s, 64M bytes/s" in said
    given = ("--window", "08:00-18:00 7k", "--timezone", "Europe/Nowhere")
    assert "Europe/Nowhere" in run("limits", "set", "orders-db", *given, code=2)
    assert orders.status().rows_per_second == 50_000


def test_windows_of_a_limit_that_is_served_no_more_end_the_command(
    orders: SharedLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OptionError("no limit 'orders-db' runs on this host")

    monkeypatch.setattr(LimitControl, "set", gone)
    assert "no limit 'orders-db' runs" in command("set", "orders-db", "--window", "7k")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --rows-per-second"),
        (["--rows-per-second", "64MB"], "'64MB'"),
        (["--bytes-per-second", "0"], "'0'"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    orders: SharedLimit, arguments: list[str], said: str
) -> None:
    done = CliRunner().invoke(limits, ["set", "orders-db", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.output
    assert orders.status().rows_per_second == 50_000


def test_a_limit_is_paused_and_resumed(orders: SharedLimit) -> None:
    assert "50k rows/s, unlimited bytes/s, paused" in command("pause", "orders-db")
    assert orders.status().paused
    assert "paused" in command("list")
    assert "50k rows/s, unlimited bytes/s, open" in command("resume", "orders-db")
    assert not orders.status().paused


SERVE = ("serve", "orders-db", "--rows-per-second", "5", "--probe-query", "SELECT 1")


def refused(*arguments: str) -> str:
    """What `serve` with these arguments says before it ends; in this process."""
    done = CliRunner().invoke(limits, [*SERVE, *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2 or isinstance(done.exception, OptionError), done.output
    return f"{done.output}{done.exception}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--probe-url", "postgresql://watch:secret-0123@db1/orders"),
        ("--probe-url", "jdbc:mysql://db1/orders?user=watch&password=secret-0123"),
        ("--probe-url", "postgresql://db1/orders", "--probe-password", "secret-0123"),
    ],
)
def test_a_password_in_the_command_is_refused_and_not_repeated(arguments: tuple[str, ...]) -> None:
    out = refused(*arguments)
    assert "${env:NAME}" in out
    assert "secret-0123" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--probe-url", "postgresql://watch:${env:NO_SUCH_PW}@db1/orders"),
            "NO_SUCH_PW is not set",
        ),
        (
            (
                "--probe-url",
                "mysql://db1/orders",
                "--probe-user",
                "watch",
                "--probe-password",
                "${file:/no/pw}",
            ),
            "/no/pw: No such file",
        ),
        (("--probe-url", "gopher://db1/orders"), "scheme 'gopher'"),
        (
            ("--probe-password", "${env:PW}"),
            "--probe-url goes with one of --probe-query and --pressure",
        ),
        (("--probe-policy", "fly"), "'hold', 'lower', 'pause'"),
    ],
)
def test_a_probe_that_cannot_be_is_refused_before_it_serves(
    arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(*arguments)


def test_what_is_refused_is_told_in_a_line_and_ends_with_2() -> None:
    out = run(
        "limits", *SERVE, "--probe-url", "postgresql://watch:${env:NO_SUCH_PW}@db1/orders", code=2
    )
    assert out.startswith("spark-channel: ")
    assert "NO_SUCH_PW is not set" in out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_served_limit_ends_at_once_when_it_is_asked_to(sent: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "spark_channel.cli",
        "limits",
        "serve",
        "orders-db",
        "--rows-per-second",
        "5k",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert "limit orders-db at" in process.stdout.readline()
            process.send_signal(sent)
            began = time.monotonic()
            out, _ = process.communicate(timeout=30)
            took = time.monotonic() - began
        finally:
            process.kill()
    assert process.returncode == 0
    assert "limit orders-db is served no more" in out
    assert took < 5, f"{took:.1f} s"


def around_now(zone: str) -> str:
    """A window of 10k rows/s that holds now in `zone`, and not in UTC."""
    now = datetime.now(ZoneInfo(zone))
    first, last = (now + timedelta(hours=shift) for shift in (-2, 2))
    return f"{first:%H:%M}-{last:%H:%M} 10k"


def test_windows_are_of_the_zone_that_is_named(orders: SharedLimit) -> None:
    zone = ("--timezone", "Asia/Kolkata")
    window = ("--window", around_now("Asia/Kolkata"))
    typed = [sys.executable, "-m", "spark_channel.cli", "limits", "set", "orders-db"]
    with subprocess.Popen(
        [*typed, *window, *zone], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert "10k rows/s" in process.stdout.readline()
        finally:
            process.kill()


def test_a_served_limit_has_the_windows_of_its_zone(served: list[subprocess.Popen[str]]) -> None:
    """As `limits serve` says: limits serve NAME --window ... --timezone ..."""
    window = ("--window", around_now("Asia/Kolkata"), "--timezone", "Asia/Kolkata")
    serve_limit(served, "--rows-per-second", "5k", "--bytes-per-second", "64MB", *window)
    wait_for(lambda: LimitControl().show("orders-db").rows_per_second == 10_000, "the window")
    assert LimitControl().show("orders-db").bytes_per_second is None, "the window names rows alone"


def test_a_served_limit_of_bytes_watches_a_database_by_its_login(
    served: list[subprocess.Popen[str]],
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The options of limits serve that name a database, its login, what is measured, and how often."""
    monkeypatch.setenv("WATCH_PASSWORD", postgres_server.password)
    database = ("--probe-url", f"postgresql://127.0.0.1:{postgres_server.port}/postgres")
    login = ("--probe-user", postgres_server.user, "--probe-password", "${env:WATCH_PASSWORD}")
    asked = ("--probe-query", "SELECT 7", "--probe-threshold", "5", "--probe-seconds", "0.1")
    serve_limit(served, "--bytes-per-second", "64MB", *database, *login, *asked)
    assert LimitControl().show("orders-db").bytes_per_second == 64_000_000
    said = "pressed: probe's query 7, at most 5"
    wait_for(lambda: said in LimitControl().show("orders-db").pressure, said, 30)


def test_a_served_limit_watches_a_signal_of_a_database(
    served: list[subprocess.Popen[str]],
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal with its bound in the place of a query, as limits serve takes it."""
    monkeypatch.setenv("WATCH_PASSWORD", postgres_server.password)
    login = f"{postgres_server.user}:${{env:WATCH_PASSWORD}}"
    database = f"postgresql://{login}@127.0.0.1:{postgres_server.port}/postgres"
    asked = ("--pressure", "latency<0.000001", "--probe-seconds", "0.1")
    serve_limit(served, "--rows-per-second", "50k", "--probe-url", database, *asked)
    said = "pressed: probe's latency"
    wait_for(lambda: said in LimitControl().show("orders-db").pressure, said, 30)


@pytest.mark.parametrize("policy", list(UnreachablePolicy))
def test_what_a_served_limit_does_while_its_database_is_silent(
    served: list[subprocess.Popen[str]], tmp_path: Path, policy: UnreachablePolicy
) -> None:
    """The policies of limits serve: the speed stays, is a part of it, or is 0."""
    database = ("--probe-url", f"sqlite:{tmp_path}/no.db", "--probe-query", "SELECT 1")
    asked = (*database, "--probe-seconds", "0.1", "--probe-policy", policy)
    serve_limit(served, "--rows-per-second", "1000", *asked)
    left = {UnreachablePolicy.HOLD: 1_000, UnreachablePolicy.LOWER: 50, UnreachablePolicy.PAUSE: 0}

    def is_told() -> bool:
        status = LimitControl().show("orders-db")
        is_silent = status.pressure.startswith("unreachable: probe")
        return is_silent and status.effective_rows_per_second == left[policy]

    wait_for(is_told, f"{left[policy]} rows/s", 30)
