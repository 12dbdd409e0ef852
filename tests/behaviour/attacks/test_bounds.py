"""What costs memory or time without end elsewhere: job files, bodies that do not end, a folder that is in the way."""

import base64
import logging
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.sql.write import claim_tables
from spark_channel.datax import json_text, load_job, variables
from spark_channel.datax.json_text import parse_text
from spark_channel.errors import JobFileError, OptionError, ServiceUnavailableError, TargetError
from spark_channel.option_types import resolve_references, resolve_secret
from spark_channel.replication.config import load_replication, parse_replication
from spark_channel.service import discovery, http_server
from spark_channel.service.protocol import SERVICE_SCOPE, ServiceAddress, Tokens

MANY = 1_000_000
"""So many that work which grows by the square takes hours."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "{" + "," * MANY + "x",
        '{"a": "' + "x'" * MANY,
        "'\"" * MANY,
        "/*" * MANY,
        "a" * MANY,
        "{a" + " " * MANY + "b",
        '"' + "\\" * (MANY + 1),
        "[" * MANY,
    ],
    ids=["commas", "unclosed", "quotes", "comments", "word", "spaces", "escapes", "nested"],
)
def test_a_job_file_is_scanned_once(text: str) -> None:
    with pytest.raises(JobFileError, match="job: n"):
        parse_text(text, {}, "job")


def test_what_is_forgiven_is_read_as_before() -> None:
    text = """{ // a "comment'
        a: 'it\\'s "q" /* none */', /* y */ "b":[1,,2
        ,,],, 'c' : "x // none", $d-e:{},
    }"""
    found = {"a": 'it\'s "q" /* none */', "b": [1, 2], "c": "x // none", "$d-e": {}}
    assert parse_text(text, {}, "job") == found


def test_places_stay_where_they_were() -> None:
    with pytest.raises(JobFileError, match="line 3, column 8"):
        parse_text('{"a": 1, /* b\n*/ ,,\n  "c": x}', {}, "job")


@pytest.mark.parametrize("source", ["text", "data"])
def test_variables_expand_to_a_bounded_text(source: str) -> None:
    variables = {"x": "y" * MANY}
    value = "${x}" * 20_000
    given: Any = {"job": {"content": [value]}}
    if source == "text":
        given = '{"job": "' + value + '"}'
    place = "job: line 1, column" if source == "text" else r"job.content\[0\]: "
    with pytest.raises(JobFileError, match=f"{place}.*more than 16 MiB of text with its variables"):
        load_job(given, variables)


def test_a_long_value_is_refused_by_its_key() -> None:
    long = "x" * (60 << 20)
    given: Any = {"job": {"content": [{"reader": {"name": "csv", "parameter": {"path": long}}}]}}
    with pytest.raises(JobFileError) as refused:
        load_job(given)
    assert "job.content[0].reader.parameter.path: the job has more than 16 MiB" in str(
        refused.value
    )
    assert len(str(refused.value)) < 300


def test_a_long_job_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MOST_TEXT", 1_000)
    monkeypatch.setattr(variables, "MOST_TEXT", 1_000)
    with pytest.raises(JobFileError, match="more than 0 MiB of text"):
        load_job(Path("/dev/zero"))


def test_a_secret_of_a_file_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1 MiB; /dev/zero is longer"):
        resolve_secret("${file:/dev/zero}")


@pytest.mark.parametrize("form", ["{}", '{{"a": ["{}"]}}', "jdbc:x://${{file:/dev/zero}}/{}"])
def test_references_of_an_option_are_bounded_together(form: str, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_text("y" * MANY)
    value = form.format(f"${{file:{long}}}" * 20_000)
    with pytest.raises(OptionError, match=r"option 'url'.*more than (16|1) MiB"):
        resolve_references({"url": value})
    long.write_text("y")
    assert "y" * 20_000 in resolve_references({"url": f"${{file:{long}}}" * 20_000})["url"]


def test_a_file_of_tables_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="/dev/zero: the file has more than 1 MiB"):
        load_replication("/dev/zero")
    with pytest.raises(JobFileError, match="the file has more than 1 MiB"):
        parse_replication("a: [" + "a," * MANY)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "nine times"])
def test_aliases_of_yaml_repeat_a_bounded_number_of_values(text: str) -> None:
    if text == "nine times":
        letters = "abcdefghij"
        lines = [f"a: &a [{','.join('x' * 10)}]"]
        lines += [
            f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]"
            for before, name in pairwise(letters)
        ]
        text = "\n".join(lines)
    with pytest.raises(JobFileError, match="aliases repeat more than"):
        parse_replication(text)


@pytest.fixture
def service() -> Iterator[tuple[http_server.HttpServer, str, str]]:
    """A service, its own token, and that of a limit."""
    tokens = Tokens()
    own, limit = tokens.add(SERVICE_SCOPE), tokens.add("limit:one")
    made = http_server.HttpServer(
        ServiceAddress("127.0.0.1", 0, own),
        {"length": lambda body, caller: b"%d" % len(body)},
        tokens,
    )
    yield made, own, limit
    made.shutdown(5)


def send(port: int, token: str, length: int, body: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST /v1/length HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def status(client: socket.socket) -> int:
    return int(client.recv(4_096).split()[1])


def test_a_body_is_as_long_as_its_token_may_send(
    service: tuple[http_server.HttpServer, str, str],
) -> None:
    server, own, limit = service
    for token, length, expected in (
        (limit, 64 << 10, 200),
        (limit, (64 << 10) + 1, 413),
        (own, 4 << 20, 200),
        (own, (4 << 20) + 1, 413),
    ):
        body = b"x" * length if expected == 200 else b""
        with send(server.port, token, length, body) as client:
            assert status(client) == expected


def test_bodies_that_do_not_end_are_bounded_together(
    service: tuple[http_server.HttpServer, str, str],
) -> None:
    server, own, _ = service
    open_: list[socket.socket] = []
    try:
        open_ += [send(server.port, own, 4 << 20, b"") for _ in range(300)]
        refused = [client for client in open_[16:] if status(client) == 503]
        assert len(refused) == 284
        assert server.unfinished == 64 << 20
    finally:
        for client in open_:
            client.close()


def test_a_body_that_came_whole_is_not_counted_any_more(
    service: tuple[http_server.HttpServer, str, str],
) -> None:
    server, own, _ = service
    for _ in range(20):
        with send(server.port, own, 4 << 20, b"x" * (4 << 20)) as client:
            assert status(client) == 200
    assert server.unfinished == 0


def test_the_head_of_a_later_request_comes_in_time(
    service: tuple[http_server.HttpServer, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, own, _ = service
    with send(server.port, own, 1, b"x") as client:
        assert status(client) == 200
        monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.05)
        client.sendall(b"POST /v1/len")
        assert client.recv(10) == b""  # it is cut; else this would fail after 30 s


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of this user, made by another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    made = tmp_path / f"spark-channel-{os.geteuid()}"
    made.mkdir(mode=0o700)
    os.chown(made, 65_534, 65_534)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    return made


def test_a_runtime_directory_of_another_user_is_passed_by(
    foreign: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert discovery.private_directory().parent == foreign.parent / "home" / ".spark_channel"
    (record,) = caplog.records
    assert f"{foreign} belongs to another user" in record.getMessage()
    assert os.listdir(foreign) == []  # noqa: PTH208 - as its owner sees it


def test_limits_are_listed_beside_a_directory_of_another_user(foreign: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "spark_channel.cli", "limits", "list"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"{foreign} belongs to another user" in found.stderr


def test_a_foreign_directory_without_a_home_is_an_error_that_names_it(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    with pytest.raises(
        ServiceUnavailableError, match=f"{foreign} is not a directory of this user alone"
    ):
        discovery.private_directory()


@pytest.mark.parametrize(("text", "cut"), [(b"x" * 2_000, 0), (b"x" * 900, 1)])
def test_a_plan_that_another_program_stored_is_bounded(
    text: bytes, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_tables, "_MOST_PLAN", 1_000)
    packed = zlib.compress(text)
    kept = base64.b64encode(packed[: len(packed) - 5 * cut]).decode()
    plans = claim_tables.StoredPlans("t", lambda sql, values: [(kept,)], lambda: True)
    with pytest.raises(TargetError, match="cut off, or of more than 1000 bytes"):
        plans.find("claim")
    kept = base64.b64encode(zlib.compress(b"y" * 900)).decode()
    assert plans.find("claim") == "y" * 900
