"""What answers in place of MongoDB, and what its documents may be: bounded, or refused in our words."""

import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.planning import Split

bson = pytest.importorskip("bson", reason="pymongo is not installed")

from bson.raw_bson import RawBSONDocument  # noqa: E402 - behind importorskip

from tests.servers.mongo import MongoServer, mongo_server  # noqa: E402 - behind importorskip
from tests.servers.rogue import rogue  # noqa: E402 - behind importorskip

WHOLE = Split({"ordered": False})


@pytest.fixture
def server() -> Iterator[MongoServer]:
    with mongo_server() as running:
        yield running


def reader(server: MongoServer, **options: Any) -> Any:
    return load_reader(
        {"url": server.url, "collection": "t", "schema": "_id BIGINT, text STRING", **options}
    )[0]


@pytest.mark.parametrize("password", ["s3cret/x", "s3cret?x", "s3cret#x", "s3/c@ret", "s3cret@x/y"])
@pytest.mark.parametrize("load", [load_reader, load_writer])
def test_a_password_that_is_not_escaped_is_not_taken_for_a_host(password: str, load: Any) -> None:
    """Its first half was shown in each message, as the host."""
    with pytest.raises(OptionError, match=r"%2F %3F") as met:
        load({"url": f"mongodb://ann:{password}@h:27017/d", "collection": "t"})
    assert "s3" not in str(met.value)
    assert "cret" not in str(met.value)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://ann:a%2Fb%40c@h1:1,h2:2/d?replicaSet=r",
        "mongodb://h/d",
        "mongodb://a:b@h/?appName=a%40b",
        "mongodb://h",
    ],
)
def test_addresses_are_taken(url: str) -> None:
    made: Any = load_reader({"url": url, "collection": "t", "database": "d"})[0]
    assert "ann" not in str(made.options.hosts)
    assert "b" not in str(made.options.hosts)


def test_a_batch_is_as_large_as_one_answer_of_the_server(server: MongoServer) -> None:
    """Without the right to ask for the size of documents, 10 000 of up to 16 MiB each were held."""
    server.most_bytes = 1 << 20
    server.put("t", [{"_id": n, "text": "x" * 300_000} for n in range(30)])
    for split in (WHOLE, Split({"ordered": True, "from": "", "to": ""})):
        tracemalloc.start()
        rows = [batch.num_rows for batch in reader(server).read(split)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (sum(rows), max(rows)) == (30, 3)
        assert peak < 40 << 20  # with the server of this process, and what it has yet to send


def nested(depth: int) -> bytes:
    data = b"\5\0\0\0\0"
    for _ in range(depth):
        size = len(data) + 8
        data = size.to_bytes(4, "little") + b"\3a\0" + data + b"\0"
    return data


NOT_UNICODE = b"\x11\0\0\0\x02text\0\2\0\0\0\xff\0\0"


@pytest.mark.parametrize("data", [NOT_UNICODE, nested(5_000)], ids=["not Unicode", "nested"])
def test_documents_that_cannot_be_decoded_are_refused_in_our_words(
    server: MongoServer, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    server.put("t", [{"_id": 1}])
    assert int.from_bytes(data[:4], "little") == len(data)
    found = {"cursor": {"id": bson.Int64(0), "ns": "shop.t", "firstBatch": [RawBSONDocument(data)]}}
    monkeypatch.setattr(server, "do_find", lambda command: found, raising=False)
    with pytest.raises(SourceError, match="cannot be decoded"):
        list(reader(server, schema="a STRING, text STRING").read(WHOLE))
    with pytest.raises(SourceError, match="cannot be decoded"):
        load_reader({"url": server.url, "collection": "t"})[0].schema()


@pytest.mark.parametrize("answer", [{}, {"cursor": {}}, {"cursor": 7}, {"cursor": {"id": 0}}])
def test_an_answer_of_another_form_is_refused_in_our_words(
    server: MongoServer, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    server.put("t", [{"_id": 1}])
    monkeypatch.setattr(server, "do_find", lambda command: answer, raising=False)
    with pytest.raises(SourceError, match="in a form that is not MongoDB's"):
        list(reader(server).read(WHOLE))


@pytest.mark.parametrize("size", ["large", -1, 0, float("nan"), float("inf"), None, {}])
def test_the_size_that_a_server_says_is_no_fault(
    server: MongoServer, monkeypatch: pytest.MonkeyPatch, size: Any
) -> None:
    server.put("t", [{"_id": n, "text": "x"} for n in range(10)])
    monkeypatch.setattr(server, "do_collstats", lambda command: {"avgObjSize": size}, raising=False)
    made = reader(server)
    assert sum(batch.num_rows for split in made.split(3) for batch in made.read(split)) == 10


def test_a_sample_without_end_is_cut(server: MongoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("t", [{"_id": n, "text": "x"} for n in range(100)])

    def endless(command: Any) -> Any:
        some = [{"_id": n} for n in range(100)]
        return {
            "cursor": {"id": bson.Int64(7), "ns": "shop.t", "firstBatch": some, "nextBatch": some}
        }

    monkeypatch.setattr(server, "do_aggregate", endless, raising=False)
    monkeypatch.setattr(server, "do_getmore", endless, raising=False)
    assert len(reader(server).split(4)) <= 4


def test_a_server_that_is_none_is_an_error_of_ours() -> None:
    for said in (b"HTTP/1.1 400 Bad\r\n\r\n", b"\xff" * 64, (1 << 30).to_bytes(4, "little") * 4):

        def speak(client: socket.socket, said: bytes = said) -> None:
            client.recv(1)
            client.sendall(said)

        with rogue(speak) as port:
            url = f"mongodb://ann:s3cret@127.0.0.1:{port}/d"
            with pytest.raises(ChannelError) as met:
                load_reader({"url": url, "collection": "t", "connectTimeout": "1"})[0].schema()
            assert "s3cret" not in str(met.value)
