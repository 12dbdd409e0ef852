"""Servers that pose as Elasticsearch: answers are bounded, understood or refused, and get no secret."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.elasticsearch import client as elastic_http
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError
from tests.servers.rogue import rogue, self_signed
from tests.service.fuzz import resident_mib

SECRET = "s3cret/of?ann"
SAID: list[bytes] = []


def heard(client: socket.socket) -> bytes:
    """One request with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65_536) or exit_()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += client.recv(65_536) or exit_()
    return head


def exit_() -> bytes:
    raise ConnectionResetError


def says(status: str, body: bytes, **headers: str) -> Any:
    def speak(client: socket.socket) -> None:
        while True:
            head = heard(client)
            SAID.append(head)
            login = next(
                (line for line in head.split(b"\r\n") if line.startswith(b"Authorization")), b""
            )
            answer = body.replace(b"<login>", login)
            more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            client.sendall(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n{more}\r\n".encode()
                + answer
            )

    return speak


def reader(port: int, **options: str) -> Any:
    given = {"url": f"http://127.0.0.1:{port}", "index": "t", "retryTimeout": "0.01", **options}
    return load_reader({"reader": "elasticsearch", **given})[0]


def writer(port: int, **options: str) -> Any:
    given = {"url": f"http://127.0.0.1:{port}", "index": "t", "retryTimeout": "0.01", **options}
    return load_writer({"writer": "elasticsearch", **given})[0]


@pytest.fixture
def endless() -> Iterator[int]:
    def speak(client: socket.socket) -> None:
        heard(client)
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        part = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        while True:
            client.sendall(part)

    with rogue(speak) as port:
        yield port


def test_an_answer_without_end_is_not_held_in_memory(
    endless: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_http, "MOST_BYTES", 8 << 20)
    before = resident_mib()
    with pytest.raises(SourceError, match=r"more than 8 MiB.*'sampleRows'"):
        reader(endless).schema()
    assert resident_mib() - before < 64


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>"])
def test_a_gateway_that_sends_callers_on_is_not_taken_for_success(body: bytes) -> None:
    """With an empty body it was taken for `{}`: an index that exists, and rows that were written."""
    place = "https://ann:pw@login.example/sso"
    with rogue(says("302 Found", body, Location=place)) as port:
        with pytest.raises(
            TargetError, match=r"sends callers on to https://login\.example/sso"
        ) as met:
            writer(port, user="ann", password=SECRET).exists()
        with pytest.raises(SourceError, match="sends callers on"):
            reader(port).split(2)
    assert "pw@" not in str(met.value)


@pytest.mark.parametrize("status", ["500 Fault", "503 Busy", "200 OK", "403 No"])
@pytest.mark.parametrize(
    "login", [{"user": "ann", "password": SECRET}, {"apiKey": "c2VjcmV0OmtleQ=="}]
)
def test_a_server_that_repeats_the_login_does_not_have_it_shown(
    status: str, login: dict[str, str]
) -> None:
    """As pages of proxies for those who look for a fault do."""
    with (
        rogue(says(status, b"you sent <login> " + SECRET.encode())) as port,
        pytest.raises(SourceError) as met,
    ):
        reader(port, **login).schema()
    chain = ""
    error: BaseException | None = met.value
    while error is not None:
        chain, error = chain + str(error), error.__cause__ or error.__context__
    secret = login.get("apiKey", base64.b64encode(f"ann:{SECRET}".encode()).decode())
    assert secret not in chain
    assert SECRET not in chain or "apiKey" in login


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        "[]",
        "3",
        "null",
        '"text"',
        '{"hits": null}',
        '{"hits": {"hits": [1, [2]]}}',
        '{"hits": {"hits": 7}}',
        '{"count": "many"}',
        '{"count": 1e999}',
        '{"_shards": 3}',
        '{"items": [{}]}',
        '{"items": [{"index": 1}]}',
        '{"hits": {"hits": [{"_id": "a", "_source": "text"}]}}',
        "[" * 200_000,
        '{"a":' * 200_000,
    ],
    ids=lambda text: text[:20],
)
def test_answers_of_another_form_are_refused_in_our_words(answer: str) -> None:
    rows = pa.record_batch({"n": [1]})
    with rogue(says("200 OK", answer.encode())) as port:
        for ask in (
            lambda: reader(port).schema(),
            lambda: reader(port).split(3) and None,
            lambda: list(reader(port, schema="n BIGINT").read(_split())),
            lambda: _write(writer(port), rows),
        ):
            with pytest.raises(ChannelError) as met:
                ask()
            assert "AssertionError" not in str(met.value)
            if "count" not in answer and "items" not in answer:
                assert "the answer" in str(met.value) or "no documents" in str(met.value)


def _split() -> Any:
    from spark_channel.planning import Split

    return Split({"slice": 0, "of": 1, "portion": 100})


def _write(out: Any, rows: pa.RecordBatch) -> None:
    plan = out.prepare(WriteContext("job"), rows.schema)
    task = out.open(plan, 0, 0)
    try:
        task.write(rows)
        task.close()
    except BaseException:
        task.rollback()
        raise


def test_a_certificate_that_nobody_signed_gets_no_login(tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)
    got = []

    def speak(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as secure:
            got.append(heard(secure))
            secure.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"count":0}')

    with rogue(speak) as port:
        login = {
            "url": f"https://127.0.0.1:{port}",
            "user": "ann",
            "password": SECRET,
            "retryTimeout": "60",
        }
        with pytest.raises(SourceError, match=r"certificate is not trusted.*'sslrootcert'"):
            reader(port, **login).split(1)
        assert got == []
        assert reader(port, sslrootcert=str(certificate), **login).split(1) == []
        with pytest.raises(OptionError, match="'sslrootcert' got '/no/file'"):
            reader(port, sslrootcert="/no/file", **login).split(1)
    with pytest.raises(
        OptionError, match="'sslrootcert' is for TLS, and 'url' asks for none: use https://"
    ):
        reader(port, sslrootcert=str(certificate))


@pytest.mark.parametrize(
    "given",
    [
        {"url": f"https://ann:{SECRET}@h:9200"},
        {"url": "https://ann:s3cret@x/y@h:9200"},
        {"url": "https://ann:s3cret#1@h:9200"},
        {"apiKey": "s3cret\nX: y"},
        {"apiKey": "s3cret\u20ac"},
    ],
)
def test_a_login_that_is_malformed_is_not_shown(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as met:
        reader(1, **given).split(1)
    assert "s3cret" not in str(met.value)


def test_a_key_is_taken_with_the_line_end_of_its_file() -> None:
    SAID.clear()
    with rogue(says("200 OK", json.dumps({"count": 0}).encode())) as port:
        assert reader(port, apiKey="c2VjcmV0\n").split(1) == []
    assert b"Authorization: ApiKey c2VjcmV0\r\n" in SAID[0] + b"\r\n"


@pytest.mark.parametrize("index", ["*", "logs-*", "a,b", ".", ".."])
def test_a_write_takes_one_index(index: str) -> None:
    """An overwrite of `*` removed the documents of every index."""
    with pytest.raises(OptionError, match="option 'index'"):
        writer(1, index=index)
