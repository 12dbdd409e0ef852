"""Rows of web services, against servers of the tests' own (see tests/servers/web.py)."""

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.base.registry import describe
from spark_channel.connectors.http.client import _retry_after
from spark_channel.datax import load_job
from spark_channel.errors import JobFileError, OptionError, SourceError
from spark_channel.testing import reader_conformance
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.datax.small_jobs import make_job
from tests.servers.rogue import rogue, self_signed
from tests.servers.web import Answer, Asked, WebServer, as_json, web_server

PAGED = {"resultKey": "data.items", "pageParam": "page", "pageSizeParam": "size", "pageSize": "4"}


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[WebServer, WebServer]]:
    with web_server() as one, web_server() as other:
        yield one, other


@pytest.fixture
def server(two: tuple[WebServer, WebServer]) -> WebServer:
    for each in two:
        each.clear()
    return two[0]


@pytest.fixture
def other(two: tuple[WebServer, WebServer]) -> WebServer:
    return two[1]


def reader(server: WebServer, **options: Any) -> Reader:
    return load_reader({"reader": "http", "url": server.url, "retryTimeout": "5", **options})[0]


def read(found: Reader) -> pa.Table:
    schema = found.schema()
    return pa.Table.from_batches(
        [batch for split in found.split(4) for batch in found.read(split)], schema
    )


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"row {n}"} for n in range(count)]


def test_the_reader_keeps_its_promises(server: WebServer) -> None:
    server.has_pages(rows(30))
    wanted = pa.table({"id": range(30), "name": [f"row {n}" for n in range(30)]})
    reader_conformance(lambda: reader(server, **PAGED), expected=wanted, advice=2)


def test_no_value_is_changed(server: WebServer) -> None:
    """Python's own parser makes 1.1 of 1.10, and rounds what a double does not hold."""
    numbers = '"n": 9007199254740993, "price": 1.10, "long": 0.12345678901234567890'
    others = '"flag": true, "text": "007", "nothing": null, "in": {"a": 1.10, "b": [1E3, "ä"]}, "mixed": 1'
    huge = "123456789012345678901234567890123456789012"
    server.answer = lambda _: as_json(
        f'[{{{numbers}, "huge": {huge}, {others}}}, {{"n": 1, "mixed": "a"}}]'
    )
    found = read(reader(server))
    assert found.schema.field("n").type == pa.int64()
    assert found.schema.field("price").type == pa.float64()
    assert found.slice(0, 1).to_pylist() == [
        {
            "n": 9007199254740993,
            "price": 1.1,
            "long": Decimal("0.12345678901234567890"),
            "huge": huge,
            "flag": True,
            "text": "007",
            "nothing": None,
            "in": '{"a":1.10,"b":[1E3,"ä"]}',
            "mixed": "1",
        }
    ]
    texts = read(reader(server, inferSchema="false"))
    assert {str(field.type) for field in texts.schema} == {"string"}
    assert texts["price"].to_pylist() == ["1.10", None]
    declared = "price DECIMAL(5, 2), long DOUBLE, `in.a` DOUBLE, `in.b[1]` STRING, mixed STRING, missing INT"
    assert read(reader(server, schema=declared)).to_pylist()[0] == {
        "price": Decimal("1.10"),
        "long": 0.12345678901234568,
        "in.a": 1.1,
        "in.b[1]": "ä",
        "mixed": "1",
        "missing": None,
    }
    assert read(reader(server, columns="mixed,n")).column_names == ["mixed", "n"]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (
            '{"n": 0.12345678901234567890}',
            r"\(page 2\): column 'n': .*a number that a DOUBLE holds exactly",
        ),
        (
            '{"n": 9007199254740993}',
            r"\(page 2\): column 'n': .*a number that a DOUBLE holds exactly",
        ),
        (
            '{"n": 1.5, "x": 1}',
            r"\(page 2\): a row has 'x', which no row of the sample had.*'sampleRows'",
        ),
    ],
)
def test_rows_behind_the_sample_lose_nothing(server: WebServer, later: str, message: str) -> None:
    pages = ['[{"n": 1.5}]', f"[{later}]", "[]"]
    server.answer = lambda asked: as_json(pages[int(asked.query["page"]) - 1])
    found = reader(server, pageParam="page", sampleRows="1")
    with pytest.raises(SourceError, match=message):
        read(found)


def test_columns_that_spark_returns_are_the_samples(server: WebServer) -> None:
    """Spark gives a reader the schema that it found, in another process."""
    pages = ['[{"n": 1.5}]', '[{"n": 0.12345678901234567890}]', "[]"]
    server.answer = lambda asked: as_json(pages[int(asked.query["page"]) - 1])
    found = reader(server, pageParam="page", sampleRows="1")
    users = found.with_schema(found.schema())
    assert read(users)["n"].to_pylist() == [1.5, 0.12345678901234568]
    found.schema_is_own = True
    with pytest.raises(SourceError, match="a DOUBLE holds exactly"):
        read(found.with_schema(found.schema()))


@pytest.mark.parametrize("count", [0, 3, 4, 9, 12])
@pytest.mark.parametrize("most", [1_000_000, 3])
def test_pages_end_with_an_empty_one(server: WebServer, count: int, most: int) -> None:
    """Also of a server that returns fewer rows in a page than it is asked for."""
    server.has_pages(rows(count), most=most)
    found = reader(server, **PAGED, schema="id BIGINT")
    assert read(found)["id"].to_pylist() == list(range(count))
    assert [asked.query["page"] for asked in server.seen] == [
        str(n + 1) for n in range(-(-count // min(4, most)) + 1)
    ]


@pytest.mark.parametrize(
    ("count", "end"),
    [(6, None), (8, "404"), (9, "404")],
    ids=["after a short page", "after a full one", "both"],
)
def test_a_page_that_is_not_there_is_the_end(
    server: WebServer, count: int, end: str | None
) -> None:
    server.has_pages(rows(count), beyond=as_json({"detail": "Invalid page."}, 404))
    more = {} if end is None else {"endStatus": end}
    assert read(reader(server, **PAGED, **more, schema="id BIGINT")).num_rows == count


def test_a_page_that_is_not_there_may_be_a_fault(server: WebServer) -> None:
    server.has_pages(rows(8), beyond=as_json({"detail": "gone"}, 404))
    with pytest.raises(SourceError, match=r"HTTP 404: .*gone.*set endStatus=404"):
        read(reader(server, **PAGED, schema="id BIGINT"))
    server.answer = lambda _: as_json({}, 404)
    with pytest.raises(SourceError, match=r"HTTP 404.*check 'url'"):
        read(reader(server, **PAGED, endStatus="404", schema="id BIGINT"))


def test_a_last_page_that_is_sent_again_is_the_end(server: WebServer) -> None:
    """As services do whose page numbers are corrected to the last one."""
    pages = [rows(4), rows(6)[4:]]
    server.answer = lambda asked: as_json(pages[min(2, int(asked.query["page"])) - 1])
    options = {**PAGED, "resultKey": "", "schema": "id BIGINT"}
    assert read(reader(server, **options))["id"].to_pylist() == list(range(6))
    pages[1] = rows(8)[4:]
    with pytest.raises(
        SourceError, match=r"page 3 has the same rows.*parameter 'page'.*check 'pageParam'"
    ):
        read(reader(server, **options))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_short_page_that_is_sent_again_is_the_end(server: WebServer, count: int) -> None:
    def answer(asked: Asked) -> Answer:
        size = int(asked.query["size"])
        start = min(int(asked.query["page"]) - 1, (count - 1) // size) * size
        return as_json(rows(count)[start : start + size])

    server.answer = answer
    options = {**PAGED, "resultKey": "", "schema": "id BIGINT", "pageSize": "10"}
    assert read(reader(server, **options)).num_rows == count


def test_a_server_that_ignores_pages_and_sends_few_rows_is_told(server: WebServer) -> None:
    """With a parameter that it does not know, and more rows than it sends at once."""
    for sent in (lambda _: 4, lambda asked: min(4, int(asked.query["size"]))):
        server.answer = lambda asked, sent=sent: as_json(rows(50)[: sent(asked)])  # type: ignore[misc] # mypy infers no lambda with a default
        with pytest.raises(SourceError, match=r"page 2 has the same rows.*check 'pageParam'"):
            read(reader(server, **{**PAGED, "pageSize": "10", "resultKey": ""}, schema="id BIGINT"))


def test_what_is_asked(server: WebServer) -> None:
    server.has_pages(rows(1))
    more = {"params": '{"day": "2024-01-31", "n": 1.10, "all": true, "none": null, "ä&": "x y"}'}
    read(
        reader(
            server,
            url=f"{server.url}?n=7&kept=a%26b",
            **PAGED,
            **more,
            firstPage="0",
            schema="id INT",
        )
    )
    asked = server.seen[0]
    assert asked.query == {
        "kept": "a&b",
        "day": "2024-01-31",
        "n": "1.10",
        "all": "true",
        "ä&": "x y",
        "page": "0",
        "size": "4",
    }
    assert (asked.headers["accept"], asked.headers["accept-encoding"]) == (
        "application/json",
        "identity",
    )
    server.seen.clear()
    read(
        reader(
            server,
            method="post",
            **PAGED,
            params='{"day": [1.10]}',
            headers='{"accept": "text/json"}',
            schema="id INT",
        )
    )
    asked = server.seen[0]
    assert (asked.method, asked.body) == ("POST", b'{"day": [1.10], "page": 1, "size": 4}')
    assert (asked.headers["content-type"], asked.headers["accept"]) == (
        "application/json",
        "text/json",
    )
    server.answer = lambda _: as_json(rows(1))
    read(reader(server, method="POST", body="[1]", schema="id INT"))
    assert server.seen[-1].body == b"[1]"


def test_a_service_that_is_busy_is_asked_again_when_it_says(server: WebServer) -> None:
    server.has_pages(rows(1))
    soon = format_datetime(datetime.now(UTC) - timedelta(seconds=5), usegmt=True)
    server.faults = [
        as_json({}, 429, Retry_After="1"),
        None,
        as_json({}, 503, Retry_After=soon),
        as_json({}, 502),
    ]
    begin = time.monotonic()
    assert read(reader(server, **PAGED, schema="id INT")).num_rows == 1
    assert time.monotonic() - begin >= 1.0
    assert len(server.seen) == 6
    server.faults = [as_json({"why": "quota"}, 429, Retry_After="3600")]
    begin = time.monotonic()
    with pytest.raises(
        SourceError, match=r"busy: HTTP 429 .*quota.*asks to wait 3600 s, and 'retryTimeout' is 5 s"
    ):
        read(reader(server, **PAGED, schema="id INT"))
    assert time.monotonic() - begin < 2.0


def test_a_wait_that_is_no_number_is_none() -> None:
    headers = HTTPMessage()
    headers["Retry-After"] = "\xb2"
    assert _retry_after(headers) is None


def test_a_post_is_not_repeated(server: WebServer) -> None:
    for fault in (None, as_json({}, 503)):
        server.seen.clear()
        server.faults = [fault]
        with pytest.raises(SourceError, match="a POST is not repeated"):
            read(reader(server, method="POST", schema="id INT"))
        assert len(server.seen) == 1


def test_a_redirect_takes_the_login_to_no_other_place(server: WebServer, other: WebServer) -> None:
    token = "s3cret-token"
    given = {"token": token, "headers": '{"X-Api-Key": "k3y-of-mine"}', "schema": "id INT"}

    def login(asked: Asked) -> tuple[str | None, str | None]:
        return asked.headers.get("authorization"), asked.headers.get("x-api-key")

    server.answer = lambda asked: (
        as_json({}, 302, Location="/new") if asked.path != "/new" else as_json(rows(1))
    )
    assert read(reader(server, **given)).num_rows == 1
    assert login(server.seen[-1]) == (f"Bearer {token}", "k3y-of-mine")
    # elsewhere, and back again
    server.answer = lambda asked: (
        as_json(rows(2)) if asked.path == "/back" else as_json({}, 307, Location=f"{other.url}?a=1")
    )
    other.answer = lambda _: as_json({}, 301, Location=f"http://127.0.0.1:{server.port}/back")
    assert read(reader(server, **given)).num_rows == 2
    assert login(other.seen[-1]) == login(server.seen[-1]) == (None, None)
    other.answer = lambda _: as_json({}, 401)
    with pytest.raises(SourceError, match="another address, which gets no login"):
        read(reader(server, **given))
    cases: tuple[tuple[dict[str, str], str], ...] = (
        ({"Location": "file:///etc/passwd"}, "not a url"),
        ({"Location": "http://h:99999999/"}, "not a url"),
        ({}, "after 4 other redirects"),
    )
    for headers, message in cases:
        server.answer = lambda _, headers=headers: as_json({}, 302, **headers)  # type: ignore[misc] # mypy infers no lambda with a default
        with pytest.raises(SourceError, match=message):
            read(reader(server, **given))
    server.answer = lambda _: as_json({}, 307, Location=other.url)
    with pytest.raises(SourceError, match="a POST is not sent on"):
        read(reader(server, **given, method="POST"))


def test_no_secret_is_shown(server: WebServer) -> None:
    """Services repeat what they were sent, in pages for those who look for a fault."""
    secrets = {"token-of-mine", "k3y-of-mine", "p4ram/of?mine", "url-of-mine"}
    given = {
        "url": f"{server.url}?api_key=url-of-mine&day=2024",
        "token": "token-of-mine",
        "headers": '{"X-Api-Key": "k3y-of-mine", "Accept": "text/json", "X-Short": "token"}',
        "params": '{"secret": "p4ram/of?mine"}',
    }

    def echoes(asked: Asked) -> str:
        return f"{asked.target} {asked.headers} {list(secrets)}"

    shown = []
    for answer in (
        lambda asked: as_json(echoes(asked), 500),
        lambda asked: as_json(echoes(asked), 503),
        lambda asked: as_json(echoes(asked)),
        lambda asked: as_json({"error": echoes(asked)}),
        lambda asked: as_json([echoes(asked)]),
        lambda asked: as_json("", 302, Location=f"ftp://h/{asked.headers['x-api-key']}"),
    ):
        server.answer = answer
        with pytest.raises(SourceError) as met:
            read(reader(server, **given, resultKey="", retryTimeout="0.01", schema="id INT"))
        error: BaseException | None = met.value
        while error is not None:
            shown.append(str(error))
            error = error.__cause__ or error.__context__
    options: Any = reader(server, **given).options
    text = " ".join([*shown, repr(options), describe(options), str(type(options).shown(given))])
    assert [each for each in secrets if each in text] == []
    assert "text/json" in text  # the rest is shown
    assert "-of-mine" not in text  # one secret is a part of another


def test_the_login(server: WebServer) -> None:
    basic = "Basic " + base64.b64encode(b"a@n:p/w").decode()
    wanted = {"authorization": basic}
    server.answer = lambda asked: (
        as_json(rows(1))
        if asked.headers.get("authorization") == wanted["authorization"]
        else as_json("no", 401)
    )
    assert read(reader(server, user="a@n", password="p/w")).num_rows == 1
    assert read(reader(server, url=server.url.replace("//", "//a%40n:p%2Fw@"))).num_rows == 1
    wanted["authorization"] = "Bearer abc"
    assert read(reader(server, token="abc\n")).num_rows == 1
    assert read(reader(server, headers='{"authorization": "Bearer abc"}')).num_rows == 1
    with pytest.raises(SourceError, match=r"HTTP 401: 'no'; check 'token'"):
        read(reader(server))


@pytest.mark.parametrize(
    ("answer", "options", "message"),
    [
        ("<html>", {}, "the answer is not JSON: '<html>'; check 'url'"),
        ("[" * 200_000, {}, "the answer is not JSON"),
        ('[{"a": 1E99999999999999999999}]', {}, "the answer is not JSON"),
        (
            '{"code": 500, "msg": "no"}',
            {"resultKey": "data"},
            "has nothing at 'data'.*it has 'code', 'msg'.*'expect'",
        ),
        ('{"data": null}', {"resultKey": "data"}, "is null at 'data'"),
        ('{"data": 3}', {"resultKey": "$.data"}, "is a single value at 'data'"),
        ('{"a": 1}', {"pageParam": "page"}, "one object as a whole.*'resultKey'"),
        ("[1]", {}, "row 0 of an answer is 1, which has no columns"),
        (
            '{"code": 500}',
            {"schema": "id INT"},
            "one object with none of the columns: it has 'code'.*'resultKey'",
        ),
        (
            '{"code": 401, "data": []}',
            {"resultKey": "data", "expect": '{"code": 0}'},
            "has 401 at 'code', where 'ex",
        ),
        ('{"data": []}', {"resultKey": "data", "expect": '{"code": 0}'}, "has nothing at 'code'"),
        ("[]", {}, "has no rows, so its columns are not known"),
        ('[{"a": "\xe4"}]', {"encoding": "ascii"}, "not ascii text.*option 'encoding'"),
        (
            '[{"a": 1}]',
            {"maxAnswerBytes": "4"},
            "an answer has more than 4 bytes.*'maxAnswerBytes'",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_answers_of_another_form_are_refused(
    server: WebServer, answer: str, options: dict[str, str], message: str
) -> None:
    server.answer = lambda _: as_json(answer)
    with pytest.raises(SourceError, match=message):
        read(reader(server, **options))


def test_answers_of_other_forms_are_read(server: WebServer) -> None:
    server.answer = lambda _: as_json('\ufeff{"code": 0, "data": {"id": 1}}')
    assert read(reader(server, resultKey="data")).to_pylist() == [{"id": 1}]
    nothing = {"resultKey": "data", "expect": '{"code": 0}', "schema": "id INT"}
    for answer in ('{"code": 0, "data": null}', '{"code": 0}', '{"code": 0.0, "data": []}'):
        server.answer = lambda _, answer=answer: as_json(answer)  # type: ignore[misc] # mypy infers no lambda with a default
        assert read(reader(server, **nothing)).num_rows == 0
    server.answer = lambda _: (204, {}, b"")
    assert read(reader(server, schema="id INT")).num_rows == 0
    server.answer = lambda _: (200, {}, '[{"name": "中"}]'.encode("gbk"))
    assert read(reader(server, encoding="GBK")).to_pylist() == [{"name": "中"}]
    server.answer = lambda _: as_json("[]", Content_Encoding="gzip")
    with pytest.raises(SourceError, match="compressed"):
        read(reader(server))


def test_a_fetch_is_bounded(server: WebServer) -> None:
    server.has_pages(rows(10))
    found = reader(server, **{**PAGED, "pageSize": "100"})
    found.fetch_size = FetchSize(rows=3)
    found.schema()
    assert [batch.num_rows for batch in found.read(found.split(1)[0])] == [3, 3, 3, 1]


def test_an_answer_without_end_is_not_held_in_memory() -> None:
    def speak(client: Any) -> None:
        client.recv(1 << 16)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            client.sendall(b" " * (1 << 16))

    with rogue(speak) as port:
        given = {"reader": "http", "url": f"http://127.0.0.1:{port}/", "maxAnswerBytes": "4MiB"}
        with pytest.raises(SourceError, match="more than 4 MiB"):
            load_reader(given)[0].schema()


def test_a_certificate_that_nobody_signed_gets_no_login(tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)
    got = []

    def speak(client: Any) -> None:
        with context.wrap_socket(client, server_side=True) as secure:
            got.append(secure.recv(1 << 16))
            secure.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n[{"id": 1}]')

    with rogue(speak) as port:
        given = {
            "reader": "http",
            "url": f"https://127.0.0.1:{port}/",
            "token": "s3cret",
            "schema": "id INT",
        }
        with pytest.raises(SourceError, match=r"certificate is not trusted.*'sslrootcert'"):
            read(load_reader(given)[0])
        assert got == []
        assert read(load_reader({**given, "sslrootcert": str(certificate)})[0]).num_rows == 1
        with pytest.raises(OptionError, match="'sslrootcert' got '/no/file'"):
            read(load_reader({**given, "sslrootcert": "/no/file"})[0])
    with pytest.raises(OptionError, match="'sslrootcert' is for TLS"):
        load_reader({**given, "url": "http://h/", "sslrootcert": str(certificate)})


def test_a_proxy_is_asked_for_the_service(server: WebServer, other: WebServer) -> None:
    """With `other` as the proxy, which has the service's rows."""
    other.has_pages(rows(2))
    proxy = f"http://ann:p%2Fw@127.0.0.1:{other.port}"
    assert (
        read(
            reader(server, url="http://service.example/x?a=1", proxy=proxy, resultKey="data.items")
        ).num_rows
        == 2
    )
    asked = other.seen[0]
    assert (asked.target, asked.headers["host"]) == (
        "http://service.example/x?a=1",
        "service.example",
    )
    assert asked.headers["proxy-authorization"] == "Basic " + base64.b64encode(b"ann:p/w").decode()
    heard = []

    def speak(client: Any) -> None:
        heard.append(client.recv(1 << 16))
        client.sendall(b"HTTP/1.1 407 no\r\nContent-Length: 0\r\n\r\n")

    with rogue(speak) as port:
        given = {
            "url": "https://service.example/x",
            "token": "s3cret",
            "proxy": f"http://ann:p@127.0.0.1:{port}",
        }
        with pytest.raises(SourceError, match=r"the proxy refuses: Tunnel .*407.*check 'proxy'"):
            read(reader(server, **given))
    assert heard[0].startswith(b"CONNECT service.example:443")
    assert b"s3cret" not in heard[0]
    assert b"Proxy-Authorization: Basic" in heard[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://h/x"}, "option 'url' .*http://host/path"),
        ({"url": "http://ann:s3cret@x/y@h/"}, "option 'url'"),
        ({"method": "PUT"}, "option 'method' got 'PUT'"),
        ({"params": "[1]"}, "option 'params' .*JSON object"),
        ({"params": '{"a": [1]}'}, "option 'params' holds an object or an array"),
        ({"body": "x"}, "option 'body' .*method=POST"),
        ({"headers": '{"Host": "x"}'}, "option 'headers' .*'Host'"),
        ({"headers": '{"X-Key": "s3cret\\nX: y"}'}, "option 'headers' .*'X-Key'"),
        ({"headers": '{"authorization": "s3cret"}', "token": "abc"}, "'headers' has Authorization"),
        ({"token": "s3cret x"}, "option 'token'"),
        ({"token": "s3cret", "user": "ann"}, "two logins"),
        ({"password": "s3cret"}, "option 'password' needs 'user'"),
        ({"resultKey": "a..b"}, "option 'resultKey' got 'a..b'"),
        ({"expect": "0"}, "option 'expect' got '0'"),
        ({"pageSizeParam": "n"}, "needs 'pageParam'"),
        ({"encoding": "klingon"}, "option 'encoding' got 'klingon'"),
        ({"proxy": "socks5://ann:s3cret@h:1"}, "option 'proxy' .*http://host:port"),
        ({"where": "a = 1"}, "option 'where' is not supported"),
    ],
)
def test_options_are_refused_by_name(
    server: WebServer, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as met:
        reader(server, **options)
    assert "s3cret" not in str(met.value)


def job(server: WebServer, writes: Any = None, **changed: Any) -> Any:
    reads = {
        "connection": [{"url": server.url}],
        "resultKey": "result",
        "reqParams": {"DEPT": 9700, "DAY": "2021-01-17"},
        "method": "GET",
        "column": ["CURR_DATE", "DEPT.ID", "KK[1].COL2", "TOTAL", "NONE"],
        "username": "u",
        "password": "p",
        "headers": {"X-Powered-by": "Addax"},
        **changed,
    }
    writer = "txtfilewriter" if writes else "streamwriter"
    return make_job(
        "httpreader",
        {name: value for name, value in reads.items() if value is not None},
        writer,
        writes or {},
    )


ROW = '{"CURR_DATE": "2019-12-09", "DEPT": {"ID": "9700"}, "KK": [{"COL1": 1}, {"COL2": 2}], "TOTAL": 1306.330}'


def test_a_datax_job_reads_rows(server: WebServer, tmp_path: Path) -> None:
    server.answer = lambda _: as_json(f'{{"result": [{ROW}]}}')
    loaded = load_job(
        job(
            server,
            {
                "path": str(tmp_path),
                "fileName": "t",
                "fieldDelimiter": "|",
                "writeMode": "truncate",
            },
        )
    )
    assert carry_out(loaded.spec) == []
    (file,) = tmp_path.glob("t__*")
    assert file.read_text() == "2019-12-09|9700|2|1306.330|null\n"
    asked = server.seen[-1]
    assert (asked.query, asked.headers["x-powered-by"]) == (
        {"DEPT": "9700", "DAY": "2021-01-17"},
        "Addax",
    )
    assert asked.headers["authorization"].startswith("Basic ")


def test_a_datax_job_reads_pages(server: WebServer) -> None:
    server.answer = lambda asked: as_json(
        {"result": rows(45)[(int(asked.query["no"]) - 1) * 20 : int(asked.query["no"]) * 20]}
    )
    paging = {"isPage": "true", "pageParams": {"pageIndex": {"key": "no"}}, "column": ["*"]}
    loaded = load_job(job(server, **paging))
    found, _ = load_reader({"reader": "http", **loaded.spec.reader.options})
    assert read(found).slice(44).to_pylist() == [{"id": "44", "name": "row 44"}]
    assert server.seen[-1].query["pageSize"] == "20"


def test_a_datax_job_posts(server: WebServer) -> None:
    server.answer = lambda _: as_json([{"a": 1}])
    for sent, body in (
        ({"DAY": 1}, b'{"DAY": 1}'),
        ({"": [123, 456]}, b"[123, 456]"),
        ({"": "123,456"}, b"123,456"),
    ):
        loaded = load_job(job(server, method="post", reqParams=sent, column=["a"], resultKey=None))
        assert carry_out(loaded.spec) == []
        assert server.seen[-1].body == body


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"connection": None}, "connection.url is missing"),
        ({"connection": [{"url": "http://a"}, {"url": "http://b"}]}, "connection got a list"),
        ({"column": []}, "column is missing"),
        ({"column": ["a[*].b"]}, r"column\[0\] got 'a\[\*\]\.b'"),
        ({"method": "put"}, "method got 'put'"),
        ({"reqParams": {"a": [1]}}, "reqParams.a got a list"),
        (
            {"method": "post", "isPage": True, "reqParams": {"": "x"}},
            "isPage: the page is one of them",
        ),
        ({"headers": '{"X-Api-Key": "s3cret"}'}, "headers got a text; it takes an object"),
        ({"maxPages": 3}, "maxPages is not supported"),
        ({"authConfig": {"url": "http://a"}}, "authConfig is not supported"),
        ({"connection": {"url": "http://a", "proxy": {"host": "socks://h:1"}}}, "SOCKS"),
        ({"password": None}, "both, or neither"),
    ],
)
def test_what_a_job_cannot_ask(server: WebServer, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message) as met:
        load_job(job(server, **changed))
    assert "s3cret" not in str(met.value)


def test_the_proxy_of_a_job(server: WebServer) -> None:
    connection = {"url": "https://h/x", "proxy": {"host": "10.0.0.1:3128", "auth": "ann:p:/w"}}
    options = load_job(job(server, connection=connection)).spec.reader.options
    assert options["proxy"] == "http://ann:p%3A%2Fw@10.0.0.1:3128"
    assert json.loads(options["params"]) == {"DEPT": 9700, "DAY": "2021-01-17"}
