"""The parts of a server's url: percent-decoded once, and encoded where a url is made again. Pure."""

import re
from urllib.parse import quote, unquote

from spark_channel.errors import OptionError

__all__ = ["check_no_fragment", "decoded", "encoded"]

_RESERVED = r"[%/?#@:&\[\]\x00-\x20\x7f]"


def decoded(text: str, what: str) -> str:
    """
    Raises:
        OptionError: it decodes to bytes that are not UTF-8, or to a zero byte; shows no part of it.
    """
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        found = "\0"
    if "\0" in found:
        raise OptionError(
            f"option 'url' has a {what} whose percent-encoding is not text in UTF-8; write its bytes in UTF-8 as %XX",
            option="url",
        )
    return found


def encoded(text: str, keep: str = "") -> str:
    """The text for a part of a url; `keep`: reserved characters that have no meaning in this part."""
    return re.sub(
        _RESERVED, lambda found: found[0] if found[0] in keep else quote(found[0], safe=""), text
    )


def check_no_fragment(place: str) -> None:
    """Hold the part before `?` to have no `#`, which other readers of urls take for the end of it.

    Raises:
        OptionError: it has one.
    """
    if "#" in place:
        raise OptionError(
            "option 'url' holds '#', which would end it; in the name of a database or in a login, write %23",
            option="url",
        )
