"""`spark-channel limits`: serve a shared limit; look at all limits of this host and change them."""

import os
import queue
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from spark_channel.cli.arguments import Output
from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.errors import OptionError
from spark_channel.limits import LimitStatus, UnreachablePolicy
from spark_channel.options import CommonOptions, parse_amount
from spark_channel.progress.report import many, short
from spark_channel.service import (
    LimitControl,
    Probe,
    SharedLimit,
    TlsFiles,
    signal_value,
    sql_value,
)
from spark_channel.service.shared_limit import MOST_JOBS
from spark_channel.service.windows import Applied, Speeds, WindowKeeper, parse_windows, speeds_of
from spark_channel.signals import woken_by_signals

__all__ = ["limits"]

limits = typer.Typer(
    help="Serve a shared limit; list, show, change, pause and resume those of this host."
)

_Windows = Annotated[
    list[str] | None,
    typer.Option(
        metavar='"DAYS TIMES LIMIT"',
        help="Limit at certain times: 'Mon-Fri 08:00-18:00 5k', '22:00-06:00 64MB', 'Sat-Sun unlimited', "
        "'12:00-13:00 pause'; may be given several times, and the first that holds counts.",
    ),
]
_Timezone = Annotated[str, typer.Option(help="Time zone of --window, such as Europe/Berlin.")]
_Name = Annotated[
    str | None,
    typer.Argument(
        help="Name of a shared limit or id of a job, or how it begins; default: the only limit that runs."
    ),
]
_Rows = Annotated[str | None, typer.Option(help="Rows per second, such as 50k.")]
_Bytes = Annotated[str | None, typer.Option(help="Arrow bytes per second, such as 64MB.")]
_NewRows = Annotated[str | None, typer.Option(help="Rows per second, such as 50k, or `unlimited`.")]
_NewBytes = Annotated[
    str | None, typer.Option(help="Arrow bytes per second, such as 64MB, or `unlimited`.")
]
_UNLIMITED = "unlimited"
_REFERENCE = re.compile(r"\$\{(?:env|file):[^}]+\}")
_PASSWORD = re.compile(r"//[^/@\s:]*:([^/@\s]+)@|[?&;]password=([^&;\s]+)", re.IGNORECASE)


@limits.command()
def serve(
    name: Annotated[str, typer.Argument(help="The name that jobs give in option sharedLimit.")],
    rows_per_second: _Rows = None,
    bytes_per_second: _Bytes = None,
    host: Annotated[
        str, typer.Option(help="The address to bind; executors must reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The TCP port; 0: any free port.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File for the token of other hosts, mode 0600; default: not written."),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(help="A PEM certificate with its chain, for TLS; default: no TLS."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key of the certificate.")
    ] = None,
    max_jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of jobs that share the limit at the same time; more are refused.",
        ),
    ] = MOST_JOBS,
    probe_url: Annotated[
        str | None,
        typer.Option(
            help="A database to watch, such as postgresql://db1/orders. A password in it must be a reference such as "
            "${env:PW}, because `ps` shows it."
        ),
    ] = None,
    probe_user: Annotated[
        str | None, typer.Option(help="Login name of the watched database; default: from the url.")
    ] = None,
    probe_password: Annotated[
        str | None,
        typer.Option(
            help="Its password, as `${env:NAME}` or `${file:PATH}`; default: from the url."
        ),
    ] = None,
    probe_query: Annotated[
        str | None, typer.Option(help="A query that returns one number.")
    ] = None,
    pressure: Annotated[
        str | None,
        typer.Option(
            help="A signal of the database and its threshold, such as 'replication_lag<10s', instead of a query."
        ),
    ] = None,
    probe_threshold: Annotated[
        float, typer.Option(help="The limit is lowered while the number is above this value.")
    ] = 0.0,
    probe_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two queries.")
    ] = 5.0,
    probe_policy: Annotated[
        UnreachablePolicy,
        typer.Option(
            help="What happens while the database does not answer: the limit stays, is lowered, or is 0."
        ),
    ] = UnreachablePolicy.HOLD,
    window: _Windows = None,
    timezone: _Timezone = "UTC",
) -> None:
    """Serve a limit until interrupted."""
    if rows_per_second is None and bytes_per_second is None and not window:
        raise typer.BadParameter("give --rows-per-second, --bytes-per-second, or --window")
    probe = None
    windows, zone = parse_windows(window or (), timezone, "--window")
    if any(
        setting is not None
        for setting in (probe_url, probe_query, probe_user, probe_password, pressure)
    ):
        if probe_url is None or (probe_query is None) == (pressure is None):
            raise typer.BadParameter("--probe-url goes with one of --probe-query and --pressure")
        _refuse_plain_password(probe_url, probe_password)
        options = {
            "url": probe_url,
            "query": probe_query,
            "user": probe_user,
            "password": probe_password,
        }
        probe_options = {name: value for name, value in options.items() if value is not None}
        if pressure is None:
            probe = Probe(
                sql_value(probe_options),
                probe_threshold,
                seconds=probe_seconds,
                what="query",
                policy=probe_policy,
            )
        else:
            name_, most = _signal(pressure)
            probe = Probe(
                signal_value(probe_options, name_),
                most,
                seconds=probe_seconds,
                what=name_,
                policy=probe_policy,
            )
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together: give both")
    tls = TlsFiles(str(tls_certificate), str(tls_key)) if tls_certificate and tls_key else None
    with (
        _until_ended() as ended,
        SharedLimit(
            name,
            rows_per_second if rows_per_second or bytes_per_second or not windows else "1",
            bytes_per_second,
            host=host,
            port=port,
            tls=tls,
            probe=probe,
            max_jobs=max_jobs,
        ) as served,
    ):
        say(
            f"limit {name} at {served.address}: on this host jobs take it as option sharedLimit={name}"
        )
        if token_file is not None:
            _write_private(token_file, served.token)
            say(
                f"elsewhere as sharedLimit={served.address}, sharedLimitToken=${{file:{token_file}}}; on the command "
                f"line as --shared-limit {served.address}, with SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE={token_file}"
            )
        speeds = speeds_of(rows_per_second, bytes_per_second)
        with WindowKeeper(windows, speeds, zone, Applied(served)) if windows else nullcontext():
            ended.get()
    say(f"limit {name} is served no more")


@limits.command("list")
def list_(output: Output = "text") -> None:
    """List the shared limits and the limits of running jobs on this host."""
    entries = LimitControl().all()
    if output == "json":
        typer.echo(json_line([_plain(entry.status) for entry in entries]))
        return
    if not entries:
        say("no limit is served on this host by this user, and no job with a limit runs")
        return
    table = Table("limit", "state", "rows/s", "bytes/s", "used", "jobs", "clients", "waiting")
    for entry in entries:
        status = entry.status
        table.add_row(
            cell(entry.name),
            _state(status),
            _speed(status.rows_per_second),
            _speed(status.bytes_per_second),
            _speed(status.granted_rows_per_second),
            str(status.jobs),
            str(status.client_count),
            str(status.waiting_count),
        )
    print_table(table)


@limits.command()
def show(name: _Name = None, output: Output = "text") -> None:
    """Show one limit: its speed, its clients, and what each waits for."""
    status = LimitControl().find(name).status
    if output == "json":
        typer.echo(json_line(_plain(status)))
    else:
        _print(status)


@limits.command("set")
def set_(
    name: _Name = None,
    rows_per_second: _NewRows = None,
    bytes_per_second: _NewBytes = None,
    window: _Windows = None,
    timezone: _Timezone = "UTC",
) -> None:
    """Change a limit within a second. A value that is not given does not change.

    With --window the command runs on, and changes the limit by the time, until it is interrupted or the limit ends.
    Then the limit has the speed that holds outside of the windows.
    """
    if rows_per_second is None and bytes_per_second is None and not window:
        raise typer.BadParameter("give --rows-per-second, --bytes-per-second, or --window")
    windows, zone = parse_windows(window or (), timezone, "--window")
    control = LimitControl()
    before = control.find(name).status
    rows = _new_speed(rows_per_second, before.rows_per_second, bytes_=False)
    nbytes = _new_speed(bytes_per_second, before.bytes_per_second, bytes_=True)
    if not windows:
        _print(control.set(before.limit, rows, nbytes))
        return
    with _until_ended() as ended:
        served = _Served(control, before.limit, ended)
        # The speed of a pause is that of the limit all the same.
        with WindowKeeper(windows, Speeds(rows, nbytes), zone, Applied(served)):
            _print(control.show(before.limit))
            ended.get()
        served.give_back(Speeds(rows, nbytes))


class _Served:
    """A limit of another process; `ended` gets a message when its service ends."""

    def __init__(self, control: LimitControl, name: str, ended: queue.SimpleQueue[int]) -> None:
        self._control, self._name, self._ended = control, name, ended
        self._is_paused = False

    def set(self, rows_per_second: int | None, bytes_per_second: int | None) -> None:
        self._change(lambda: self._control.set(self._name, rows_per_second, bytes_per_second))

    def pause(self) -> None:
        self._change(lambda: self._control.pause(self._name))
        self._is_paused = True

    def resume(self) -> None:
        self._change(lambda: self._control.resume(self._name))
        self._is_paused = False

    def give_back(self, speeds: Speeds) -> None:
        """Set `speeds`, and end a pause of a window, if the limit is still there."""
        try:
            if self._is_paused:
                self._control.resume(self._name)
            _print(self._control.set(self._name, speeds.rows, speeds.nbytes))
        except OptionError as error:
            say(str(error))

    def _change(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OptionError:
            self._ended.put(0)


@contextmanager
def _until_ended() -> Iterator[queue.SimpleQueue[int]]:
    """A queue that gets the number of SIGINT or SIGTERM.

    A signal's handler may take no lock that this thread may hold, as an event's; a queue's `put` is safe there.
    """
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = {
        number: signal.signal(number, lambda number, _frame: ended.put(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with woken_by_signals():
            yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@limits.command()
def pause(name: _Name = None) -> None:
    """Pause a limit until `resume`."""
    control = LimitControl()
    _print(control.pause(control.find(name).name))


@limits.command()
def resume(name: _Name = None) -> None:
    """End a pause."""
    control = LimitControl()
    _print(control.resume(control.find(name).name))


def _print(status: LimitStatus) -> None:
    say(
        f"limit {status.limit}: {_speed(status.rows_per_second)} rows/s{_now(status)}, "
        f"{_speed(status.bytes_per_second)} bytes/s, {_state(status)}; "
        f"{many(status.jobs, 'job')}, {many(status.client_count, 'client')}, {status.waiting_count} waiting"
    )
    if status.clients:
        table = Table("client", "job", "rows/s", "bytes/s", "waits for")
        for client in status.clients:
            table.add_row(
                cell(client.name),
                cell(client.job),
                _speed(None if status.rows_per_second is None else client.rows_per_second),
                _speed(None if status.bytes_per_second is None else client.bytes_per_second),
                cell(client.waiting or "-"),
            )
        print_table(table)


def _plain(status: LimitStatus) -> dict[str, object]:
    """The same as a JSON object; null for a speed that is not limited."""
    return {
        "limit": status.limit,
        "rows_per_second": status.rows_per_second,
        "bytes_per_second": status.bytes_per_second,
        "effective_rows_per_second": status.effective_rows_per_second,
        "granted_rows_per_second": status.granted_rows_per_second,
        "state": _state(status),
        "jobs": status.jobs,
        "clients": [
            {
                "client": client.name,
                "job": client.job,
                "rows_per_second": client.rows_per_second,
                "bytes_per_second": client.bytes_per_second,
                "waits_for": client.waiting,
            }
            for client in status.clients
        ],
        "client_count": status.client_count,
        "waiting_count": status.waiting_count,
    }


def _signal(text: str) -> tuple[str, float]:
    """Parse a value of `--pressure`."""
    options, _ = CommonOptions.parse({"pressure": text})
    bounds = options.pressure or {}
    if len(bounds) != 1:
        raise typer.BadParameter("--pressure takes one signal, such as 'replication_lag<10s'")
    return next(iter(bounds.items()))


def _state(status: LimitStatus) -> str:
    return "paused" if status.paused else status.pressure or "open"


def _now(status: LimitStatus) -> str:
    """Return the present limit as text, where it is lower than the limit that was set."""
    effective = status.effective_rows_per_second
    return (
        ""
        if status.paused or effective in (None, status.rows_per_second)
        else f" (now {_speed(effective)})"
    )


def _speed(rate: float | None) -> str:
    return "unlimited" if rate is None else short(rate)


def _new_speed(text: str | None, before: float | None, *, bytes_: bool) -> int | None:
    """The speed that an option asks for; without one, the speed before. None = unlimited."""
    if text is None:
        return None if before is None else round(before)
    if text.strip().lower() == _UNLIMITED:
        return None
    try:
        return parse_amount(text, bytes_=bytes_)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: it takes {error}, or {_UNLIMITED}") from None


def _refuse_plain_password(url: str, password: str | None) -> None:
    secrets = [] if password is None else [("--probe-password", password)]
    secrets += [("--probe-url", one or other) for one, other in _PASSWORD.findall(url)]
    for option, text in secrets:
        if not _REFERENCE.fullmatch(text):
            raise typer.BadParameter(
                f"{option} holds a password, which `ps` shows to all users of this host: "
                "write ${env:NAME} or, as --probe-password, ${file:PATH}"
            )


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
