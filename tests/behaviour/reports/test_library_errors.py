"""Every exception of every library ends in a message of spark-channel: the calls, and what each lets through."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from spark_channel.errors import ChannelError, SourceError

Guard = Callable[[], AbstractContextManager[Any]]


def redis() -> AbstractContextManager[Any]:
    from spark_channel.connectors.redis.client import explained
    from spark_channel.connectors.redis.options import RedisReadOptions

    return explained(RedisReadOptions.parse({"url": "redis://h/0"})[0], SourceError)


def mongodb() -> AbstractContextManager[Any]:
    from spark_channel.connectors.mongodb.client import explained
    from spark_channel.connectors.mongodb.options import MongoReadOptions

    given = {"url": "mongodb://h/d", "collection": "c"}
    return explained(MongoReadOptions.parse(given)[0], SourceError)


def delta() -> AbstractContextManager[Any]:
    from spark_channel.connectors.delta.table import explained

    return explained("t", SourceError)


def iceberg() -> AbstractContextManager[Any]:
    from spark_channel.connectors.iceberg.catalog import explained

    return explained("t", SourceError)


NEVER = {"ChildDeadlockedError", "IncorrectPolicyType", "Warning"}
"""Of forks, of a table inside of redis itself, and what PEP 249 never raises."""
GUARDS: list[tuple[str, Guard]] = [
    ("redis.exceptions", redis),
    ("pymongo.errors", mongodb),
    ("bson.errors", mongodb),
    ("deltalake.exceptions", delta),
    ("pyiceberg.exceptions", iceberg),
]
_AT = "spark_channel.connectors."
SESSIONS = [
    (f"{_AT}sqlite.session:SqliteSession", "sqlite3"),
    (f"{_AT}adbc.session:AdbcSession", "adbc_driver_manager"),
    (f"{_AT}postgresql.session:PgPlanSession", "psycopg.errors"),
    (f"{_AT}postgresql.session:PgWriteSession", "psycopg.errors"),
    (f"{_AT}postgresql.session:PgReadSession", "adbc_driver_manager"),
    (f"{_AT}postgresql.read.copy_session:PgCopySession", "asyncpg.exceptions"),
]


def errors_of(module: str) -> list[type[Exception]]:
    pytest.importorskip(module.partition(".")[0])
    found = vars(importlib.import_module(module)).values()
    return [
        each
        for each in found
        if isinstance(each, type)
        and issubclass(each, Exception)
        and not issubclass(each, Warning)
        and each.__module__ not in ("builtins", "ssl")
        and each.__name__ not in NEVER
    ]


def made(kind: Callable[..., Exception]) -> Exception:
    choices: tuple[tuple[Any, ...], ...] = (("x",), ({},), ({}, True), ("1 host:1",))
    for arguments in choices:
        with suppress(TypeError, ValueError, AttributeError):
            return kind(*arguments)
    raise AssertionError(kind)


@pytest.mark.parametrize(("module", "guard"), GUARDS, ids=[each[0] for each in GUARDS])
def test_no_exception_of_a_library_passes(module: str, guard: Guard) -> None:
    kinds = errors_of(module)
    assert kinds
    for kind in kinds:
        with pytest.raises(ChannelError), guard():
            raise made(kind)


@pytest.mark.parametrize(("session", "module"), SESSIONS, ids=[each[0] for each in SESSIONS])
def test_a_session_names_all_of_its_drivers_exceptions(session: str, module: str) -> None:
    kinds = errors_of(module)
    place, _, name = session.partition(":")
    failures = getattr(importlib.import_module(place), name).failures
    assert kinds
    assert [kind for kind in kinds if not issubclass(kind, failures)] == []
