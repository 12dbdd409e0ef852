"""The parts of a server's url, percent-decoded once, and encoded where a url is made again; and the TLS of a server."""

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from spark_channel.errors import OptionError

__all__ = [
    "check_no_fragment",
    "check_no_semicolon",
    "contradicted",
    "decoded",
    "encoded",
    "flag",
    "is_of_this_machine",
    "server_url",
    "tls_mode",
]


_SPACE = re.compile(r"[\x00-\x20\x7f]")
_SEVERAL = ("readpreferencetags",)
"""Parameters whose values are a list."""
_RESERVED = r"[%/?#@:&\[\]\x00-\x20\x7f]"


def server_url(
    text: str, schemes: Collection[str], takes: str, parameters: Collection[str] | None = ()
) -> SplitResult:
    """The parts of a server's url: its scheme says whether there is TLS, so that one that is not known is refused.

    `parameters`: the names that may follow `?`, in lower case; None = any, as where they are the server's.

    Raises:
        ValueError: another scheme or parameter, no host, or what ends a url elsewhere; shows no part of a login.
    """
    text = text.strip()
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # its text has the login
        raise ValueError(takes) from None
    if parts.scheme not in schemes and parts.scheme.isascii() and "://" in text:
        raise ValueError(f"{takes}; its scheme is {parts.scheme[:40]!r}")
    if (
        parts.scheme not in schemes
        or not named
        or parts.fragment
        or "@" in parts.path
        or _SPACE.search(text)
    ):
        raise ValueError(takes)
    if parameters is not None:
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        strange = next((name for name in names if name.lower() not in parameters), None)
        if strange is not None:
            raise ValueError(f"{takes}; parameter {strange[:40]!r} is not known")
        twice = contradicted(parts.query)
        if twice is not None:
            raise ValueError(f"{takes}; parameter {twice[:40]!r} is there twice, with two values")
    return parts


def contradicted(query: str) -> str | None:
    """The first name that has two values: drivers differ in which one holds, and one of them may ask for TLS."""
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if values.setdefault(name.lower(), value) != value and name.lower() not in _SEVERAL:
            return name
    return None


def flag(text: str, name: str) -> bool:
    """A parameter that is true or false.

    Raises:
        ValueError: it is something else, which might be meant as either.
    """
    value = text.strip().lower()
    if value not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(f"true or false for parameter {name!r}")
    return value in ("true", "1", "yes", "on")


def decoded(text: str, noun: str) -> str:
    """
    Raises:
        OptionError: it decodes to bytes that are not UTF-8, or to a zero byte; shows no part of it.
    """
    try:
        unquoted = unquote(text, errors="strict")
    except UnicodeDecodeError:
        unquoted = "\0"
    if "\0" in unquoted:
        raise OptionError(
            f"option 'url' has a {noun} whose percent-encoding is not text in UTF-8; write its bytes in UTF-8 as %XX",
            option="url",
        )
    return unquoted


def encoded(text: str, keep: str = "") -> str:
    """The text for a part of a url; `keep`: reserved characters that have no meaning in this part."""
    return re.sub(
        _RESERVED, lambda match: match[0] if match[0] in keep else quote(match[0], safe=""), text
    )


def check_no_semicolon(address: str) -> None:
    """Check that the part before `?` has no parameters as in urls of other databases: they would be part of a name.

    Raises:
        OptionError: it has some.
    """
    if match := re.search(r";\s*(\w+)\s*=", address):
        raise OptionError(
            f"option 'url' has ';{match[1]}=' before its parameters, which begin with '?'; in the name of a database "
            "write %3B",
            option="url",
        )


def check_no_fragment(address: str) -> None:
    """Check that the part before `?` has no `#`, which other readers of urls take for the end of it.

    Raises:
        OptionError: it has one.
    """
    if "#" in address:
        raise OptionError(
            "option 'url' holds '#', which would end it; in the name of a database or in a login, write %23",
            option="url",
        )


def is_of_this_machine(host: str) -> bool:
    """Whether `host` is a local socket, or a loopback address: no host of a network can answer in its place."""
    if not host or host.startswith(("/", "@")) or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def tls_mode(mode: str | None, proof: str | None) -> str | None:
    """The `sslmode` that holds, in libpq's words; None: that of the connector's default.

    `proof`: the option or parameter that names the certificates which verify the server; None = none does.

    Raises:
        OptionError: with this mode, a server that proves nothing would get the login.
    """
    if proof is None:
        return mode
    if mode in ("disable", "allow", "prefer"):
        raise OptionError(
            f"option 'sslmode' got {mode!r}, and {proof} names what verifies the server: with {mode}, a server without "
            f"TLS would get the login. Omit 'sslmode' (it is then verify-full), or omit {proof}",
            option="sslmode",
            got=mode,
            takes="verify-full, verify-ca",
        )
    return {None: "verify-full", "require": "verify-ca"}.get(mode, mode)
