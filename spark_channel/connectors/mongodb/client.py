"""A client of MongoDB, and its errors as ours."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bson.errors import BSONError
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    CursorNotFound,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from spark_channel.connectors.mongodb.options import MongoAddress
from spark_channel.connectors.stored import Stored
from spark_channel.errors import ChannelError, OptionError

__all__ = ["Documents", "connected", "explained", "is_passing", "stored_at"]

Documents = Collection[dict[str, Any]]
_DENIED = {13: "its role lacks a right", 18: "the login is refused", 8000: "the login is refused"}


@contextmanager
def connected(options: MongoAddress, failure: type[ChannelError]) -> Iterator[Documents]:
    """The collection, and its client closed at the end; errors of the driver become `failure`."""
    client = _client(options)
    try:
        with explained(options, failure):
            yield client[options.database_name][options.collection]
    finally:
        client.close()


def _client(options: MongoAddress) -> MongoClient[dict[str, Any]]:
    login: dict[str, Any] = {}
    if options.user is not None:
        login["username"] = options.user
    if options.password is not None:
        login["password"] = options.password.get_secret_value()
    if options.auth_source is not None:
        login["authSource"] = options.auth_source
    wait = round(options.connect_timeout * 1000)
    try:
        return MongoClient(
            options.url,
            tz_aware=True,
            datetime_conversion="DATETIME_AUTO",
            appname="spark-channel",
            connectTimeoutMS=wait,
            serverSelectionTimeoutMS=wait,
            socketTimeoutMS=round(options.socket_timeout * 1000),
            **login,
        )
    except (PyMongoError, ValueError) as error:
        raise OptionError(
            f"option 'url' ({options.address}): {options.hide(str(error))}",
            option="url",
            takes="MongoDB's connection string",
        ) from None


def stored_at(options: MongoAddress, failure: type[ChannelError]) -> Stored:
    """The collection, by what its server says of itself; a view is not looked into."""
    names, is_view = {f"at {options.hosts}"}, True
    with (
        suppress(ChannelError),
        connected(options, failure) as documents,
    ):  # the role may lack the right to list
        told = documents.database.command("hello")
        if told.get("setName"):
            names.add(f"set {told['setName']} of {sorted(map(str, told.get('hosts', ())))}")
        elif told.get("topologyVersion"):
            names.add(f"process {told['topologyVersion'].get('processId')}")
        there = documents.database.list_collections(filter={"name": documents.name})
        is_view = any(each.get("type") == "view" for each in there)
    parts = frozenset({(options.database_name, options.collection)})
    return Stored("mongodb", frozenset(names), parts, complete=not is_view)


@contextmanager
def explained(options: MongoAddress, failure: type[ChannelError]) -> Iterator[None]:
    try:
        yield
    except OperationFailure as error:
        why = _DENIED.get(error.code or 0)
        hint = f"; {why}: check 'user', 'password' and 'authSource'" if why else ""
        raise failure(
            f"{options.address}: {options.hide(str(error.details or error))[:500]}{hint}"
        ) from options.hidden(error)
    except ServerSelectionTimeoutError as error:
        raise failure(
            f"{options.address}: no server answers within {options.connect_timeout:g} s ('connectTimeout'): "
            f"{options.hide(str(error))[:300]}"
        ) from options.hidden(error)
    except ConfigurationError as error:
        raise OptionError(
            f"option 'url' ({options.address}): {options.hide(str(error))}", option="url"
        ) from options.hidden(error)
    except (BSONError, RecursionError) as error:
        raise failure(
            f"{options.address}: a document cannot be decoded, since it is damaged, not Unicode or nested too deep: "
            f"{str(error)[:200]}"
        ) from options.hidden(error)
    except PyMongoError as error:
        raise failure(f"{options.address}: {options.hide(str(error))[:500]}") from options.hidden(error)


def is_passing(error: Exception) -> bool:
    """Whether a read can continue after it: the connection is lost, or the server forgot the cursor."""
    return isinstance(error, (AutoReconnect, CursorNotFound))
