"""No bytes from outside get further than `decode`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.service import ServiceAddress, protocol


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    try:
        data = protocol.decode(body)
    except protocol.RequestError:
        return
    assert isinstance(data, dict)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"\xff\xfe",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":9223372036854775808}',
        b'{"a":-9223372036854775809}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":1,"a":2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b" " * (protocol.LARGEST_BODY + 1),
    ],
)
def test_what_is_refused(body: bytes) -> None:
    with pytest.raises(protocol.RequestError):
        protocol.decode(body)


def test_the_largest_integer_passes() -> None:
    assert protocol.decode(b'{"a":9223372036854775807}') == {"a": 2**63 - 1}


def test_fields_are_known_and_there() -> None:
    protocol.fields({"a": 1}, required=("a",), optional=("b",))
    with pytest.raises(protocol.RequestError, match="'a' is missing"):
        protocol.fields({"b": 1}, required=("a",), optional=("b",))
    with pytest.raises(protocol.RequestError, match="unknown field 'c'"):
        protocol.fields({"a": 1, "c": 1}, required=("a",))


@pytest.mark.parametrize("value", [None, 1, "", "x" * 201, "a\n", "a\0"])
def test_what_is_no_identifier(value: Any) -> None:
    with pytest.raises(protocol.RequestError):
        protocol.identifier(value, "job")


def test_an_address_travels_and_hides_its_token() -> None:
    address = ServiceAddress("::1", 5, "geheim", "PEM")
    assert ServiceAddress.from_json(json.loads(json.dumps(address.to_json()))) == address
    assert address.location == "https://[::1]:5"
    assert ServiceAddress("h", 5, "t").location == "http://h:5"
    for text in (repr(address), str(address), f"{address}", f"{address!r}"):
        assert "geheim" not in text
        assert "PEM" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"port": 0},
        {"port": 65536},
        {"port": "1"},
        {"port": True},
        {"host": ""},
        {"token": None},
        {"tls_root": 1},
    ],
    ids=str,
)
def test_what_is_no_address(change: dict[str, Any]) -> None:
    good = ServiceAddress("h", 5, "t").to_json()
    with pytest.raises(ValueError):
        ServiceAddress.from_json({**good, **change})


def test_ids_of_jobs_are_all_different() -> None:
    ids = {protocol.new_job_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert {len(each) for each in ids} == {12}
