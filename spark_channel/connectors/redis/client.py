"""A client of Redis, and its errors as ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from spark_channel.connectors.redis.options import RedisAddress
from spark_channel.errors import ChannelError

__all__ = ["connected", "explained", "is_busy", "is_of_row", "is_passing"]


_DENIED = (redis.AuthenticationError, redis.exceptions.NoPermissionError)

_BUSY = re.compile(r"(^|: )BUSY \w+ is busy")
"""A script is running. The driver puts the command before it."""


@contextmanager
def connected(options: RedisAddress, failure: type[ChannelError]) -> Iterator[Any]:
    """A client, closed at the end; errors of the driver become `failure`."""
    client: Any = None
    try:
        with explained(options, failure):
            client = _client(options)
            if not options.cluster:
                _check_single(options, client, failure)
            yield client
    finally:
        if client is not None:
            client.close()


def _client(options: RedisAddress) -> Any:
    parts = urlsplit(options.url)
    user, password = options.login
    settings: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port or 6379,
        "username": user,
        "password": password,
        "socket_connect_timeout": options.connect_timeout,
        "socket_timeout": options.socket_timeout,
        "client_name": "spark-channel",
    }
    if options.is_secure:
        settings |= {
            "ssl": True,
            "ssl_ca_certs": options.sslrootcert,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,  # which older versions of the driver do not by themselves
        }
    if options.cluster:
        return redis.RedisCluster(**settings)
    # The driver would send a command again after an error, also one that is not repeatable:
    # findings/redis-py-sends-again.sh
    return redis.Redis(**settings, db=options.database, retry=NoRetry(NoBackoff(), 0))


def _check_single(options: RedisAddress, client: Any, failure: type[ChannelError]) -> None:
    """Check that the server has all keys: a member of a cluster shows its own as if these were all."""
    try:
        answer = client.execute_command("HELLO")  # which every user may ask
    except redis.ResponseError:
        return  # before Redis 6
    pairs = (
        answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    )
    about = {_word(name): _word(value) for name, value in pairs}
    if about.get("mode") == "cluster":
        raise failure(
            f"{options.address} is a member of a Redis Cluster, which has a part of the keys: set option 'cluster' to "
            "true, which reaches all members"
        )


def _word(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def explained(options: RedisAddress, failure: type[ChannelError]) -> Iterator[None]:
    try:
        yield
    except _DENIED as error:
        raise failure(
            f"{options.address}: {_text(options, error)}; check 'user', 'password' and the user's ACL"
        ) from options.hidden(error)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise failure(
            f"{options.address}: the server does not answer: {_text(options, error)}; "
            "check 'url', and 'socketTimeout' for a server that is busy"
        ) from options.hidden(error)
    except redis.exceptions.RedisClusterException as error:  # which is not a RedisError
        if denied := _denied(error):
            raise failure(
                f"{options.address}: {_text(options, denied)}; check 'user', 'password' and the user's ACL, which must "
                "allow CLUSTER SLOTS and COMMAND with 'cluster'"
            ) from options.hidden(error)
        raise failure(
            f"{options.address}: {_text(options, error)}; with 'cluster' the server must be a member of a cluster "
            "whose slots are all covered: omit it for a single server"
        ) from options.hidden(error)
    except redis.RedisError as error:
        raise failure(f"{options.address}: {_text(options, error)}") from options.hidden(error)


def _denied(error: BaseException | None) -> Exception | None:
    """The refusal of a login, or for want of a right, which the driver tells as that of a server without a cluster."""
    while error is not None and not isinstance(error, _DENIED):
        error = error.__cause__ or error.__context__
    return error


def is_passing(error: Exception) -> bool:
    """Whether the connection was lost, or the server is loading its data or running a script."""
    lost = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
    denied = isinstance(error, redis.AuthenticationError)
    return (isinstance(error, lost) and not denied) or is_busy(error)


def is_busy(error: Exception) -> bool:
    """Whether the server runs a script, and has done nothing: a transaction that met it is dropped whole."""
    return isinstance(error, redis.ResponseError) and _BUSY.search(str(error)) is not None


def is_of_row(error: Exception) -> bool:
    """Whether the answer is about one value. Others, of memory, rights or a replica, would meet every row.

    The driver leaves the code out where it is ERR, and makes a class of those that it knows.
    """
    code = str(error).partition(" ")[0]
    return type(error) is redis.ResponseError and (code == "WRONGTYPE" or not code.isupper())


def _text(options: RedisAddress, error: Exception) -> str:
    return options.hide(str(error))[:400]
