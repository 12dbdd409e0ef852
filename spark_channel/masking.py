"""Values as text, without the logins that they may contain.

What is secret is known by an option's type (`Secret`, `Url` in `spark_channel.options`). Here is how a url is
shown, and what is shown of options whose types are not declared, such as those of a Spark format.
"""

import re
from collections.abc import Callable
from typing import Any

__all__ = [
    "MASK",
    "is_plain_parameter",
    "is_secret_name",
    "mask_text",
    "mask_untyped",
    "mask_url",
    "without_login",
]

MASK = "***"

_ORACLE = re.compile(r"(?i)(?:jdbc:)?oracle:[a-z0-9]+:")
_WITH_SLASHES = re.compile(r"(?i)(?:[a-z][a-z0-9+.\-]*:)+//")
_SCHEME = re.compile(r"(?i)(?:jdbc:)?[a-z][a-z0-9+.\-]*:")
_PARAMETERS = re.compile(r"[?;]|:(?=[A-Za-z_][\w.\-]*=)")
_SECRET_NAME = re.compile(
    r"(?i)pass(word|wd|phrase|code)?$|passw|pwd|token|secret|credential|signature|auth|"
    r"(access|account|api|private|shared|ssl)[._-]?key|^key$|keytab"
)
_NUMBER = re.compile(r"(?i)[0-9]{1,18}|true|false")
_PLAIN_PARAMETERS = frozenset({
    "applicationname", "application_name", "charset", "characterencoding", "currentschema", "database", "databasename",
    "encoding", "encrypt", "region", "schema", "search_path", "servertimezone", "ssl", "sslmode", "targetservertype",
    "timezone", "user", "username",
})  # fmt: skip
_PLAIN_OPTIONS = frozenset({
    "batchsize", "columns", "compression", "createtablecolumntypes", "createtableoptions", "customschema", "database",
    "dbtable", "driver", "encoding", "fetchsize", "format", "header", "isolationlevel", "lowerbound", "mode", "name",
    "numpartitions", "partitioncolumn", "query", "reader", "schema", "sep", "delimiter", "sessioninitstatement",
    "table", "upperbound", "user", "where", "writemode", "writer", "jobid", "commit",
    "txnappid", "txnversion", "keycolumns",
})  # fmt: skip
_PLACES = frozenset({"url", "uri", "path", "paths"})


def mask_url(url: str, is_plain: Callable[[str, str], bool] | None = None) -> str:
    """`url` with `***` for its password, and for each parameter that `is_plain(name, value)` refuses.

    `jdbc:oracle:thin:user/password@host` and `s3://KEY:SECRET@bucket` too. Where an `@` after the first `?` or
    `;` leaves open what is the password and what is not, as in `//user:pa?ss@host`, only the scheme is shown.
    """
    return _masked(str(url), is_plain or is_plain_parameter, keep_login=True)


def without_login(url: str) -> str:
    """The place that `url` names: without its login and its parameters; secrets in them are nowhere in it."""
    text = _masked(str(url), is_plain_parameter, keep_login=False)
    scheme = _scheme(text)
    return scheme + _split_parameters(text[len(scheme) :])[0]


def is_plain_parameter(name: str, value: str) -> bool:
    """Whether a url's parameter can be shown: a well-known one, or a number that is not secret by its name."""
    if name.lower() in _PLAIN_PARAMETERS:
        return True
    return not is_secret_name(name) and _NUMBER.fullmatch(value) is not None


def mask_text(text: str) -> str:
    """A text that may be a url, or anything else."""
    return (
        mask_url(text) if "://" in text or "@" in text or text.lstrip().lower().startswith("jdbc:") else text
    )


def is_secret_name(name: str) -> bool:
    """Whether the name of an option that is declared nowhere sounds like a secret's."""
    return _SECRET_NAME.search(name) is not None


def mask_untyped(name: str, value: Any) -> str:
    """An option whose type is not known here, as text: shown only where its name or its value says that it may be."""
    lowered, text = name.lower(), str(value)
    if lowered in _PLAIN_OPTIONS:
        return text
    if lowered in _PLACES:
        return mask_url(text)
    return text if is_plain_parameter(name, text) else MASK


def _scheme(text: str) -> str:
    for known in (_ORACLE, _WITH_SLASHES, _SCHEME):
        if (match := known.match(text)) is not None:
            return match.group(0)
    return ""


def _split_parameters(rest: str) -> tuple[str, str]:
    match = _PARAMETERS.search(rest)
    return (rest, "") if match is None else (rest[: match.start()], rest[match.start() :])


def _masked(text: str, is_plain: Callable[[str, str], bool], *, keep_login: bool) -> str:
    scheme = _scheme(text)
    place, parameters = _split_parameters(text[len(scheme) :])
    oracle = _ORACLE.fullmatch(scheme) is not None
    if "@" in parameters:
        # Either the password holds the `?`, or a parameter the `@`: what is safe in both is shown.
        is_place = "/" in place and ":" not in place and "@" not in place and not oracle
        return f"{scheme}{place}{parameters[0]}{MASK}" if is_place else f"{scheme}{MASK}"
    login, at, rest = place.rpartition("@")
    if at and ("/" not in login or ":" in login or oracle):
        separator = "/" if oracle else ":"
        user, found, _ = login.partition(separator)
        if scheme and not oracle and not scheme.endswith("//"):
            user, found = MASK, ""  # as of `user:password@host`, which has no scheme at all
        shown = f"{user}{found}{MASK}" if found else user
        place = f"{shown}@{rest}" if keep_login else rest
    return f"{scheme}{place}{_shown_parameters(parameters, is_plain)}"


def _shown_parameters(parameters: str, is_plain: Callable[[str, str], bool]) -> str:
    shown, hidden = [], False
    for piece in re.split(r"([?;&]|\A:)", parameters):
        name, given, value = piece.partition("=")
        if given and not is_plain(name, value):
            hidden = True
            shown.append(f"{name}={MASK}")
        elif hidden and not given and piece not in ("", "?", ";", "&"):
            shown.append(MASK)  # the end of a value that holds an `&` or a `;`
        else:
            shown.append(piece)
    return "".join(shown)
