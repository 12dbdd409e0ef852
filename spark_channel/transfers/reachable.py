"""Of several addresses of one server, the first that answers."""

import re
import socket
from collections.abc import Sequence

from spark_channel.connectors.registry import all_connectors
from spark_channel.errors import SourceError
from spark_channel.jobs.plugins.databases import jdbc_port
from spark_channel.masking import MASK, mask_url, without_login

__all__ = ["first_reachable", "server_of"]

_SERVER = re.compile(r"(?:jdbc:)?([A-Za-z0-9+]+):(?:thin:)?@?(?://)?(\[[^\]]+\]|[^:/;?,\s]+)(?::(\d+))?")
_TIMEOUT = 3.0


def server_of(url: str) -> tuple[str, int] | None:
    """Host and port that `url` names; None when it names no server."""
    match = _SERVER.match(without_login(url))
    if match is None or MASK in match.group(2):  # where a login ends is not clear
        return None
    scheme, host, port = match.groups()
    number = int(port) if port else _default_port(scheme.lower())
    return None if number is None else (host.strip("[]"), number)


def _default_port(scheme: str) -> int | None:
    for connector in all_connectors():
        if scheme in connector.schemes:
            return connector.port
    return jdbc_port(scheme)


def first_reachable(urls: Sequence[str]) -> str:
    """The first url whose server takes a connection within 3 s; one that names no server counts as there.

    Raises:
        SourceError: none does; names each with its reason.
    """
    reasons = []
    for url in urls:
        server = server_of(url)
        if server is None:
            return url
        try:
            socket.create_connection(server, timeout=_TIMEOUT).close()
        except OSError as error:
            reasons.append(f"{mask_url(url)}: {error.strerror or error}")
        else:
            return url
    raise SourceError("no server answers: " + "; ".join(reasons))
