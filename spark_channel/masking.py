"""Values as text, without the logins that they may contain.

An option's type says whether it is secret (`Secret`, `Url` in `spark_channel.options`). Here is how a url is
shown, which of its texts are secret, how these are removed from a message, and what is shown of options whose types
are not declared, such as those of a Spark format.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from urllib.parse import quote, unquote, unquote_plus

__all__ = [
    "MASK",
    "hide",
    "hide_in_error",
    "is_clear",
    "is_plain_parameter",
    "is_secret_name",
    "mask_statement",
    "mask_text",
    "mask_untyped",
    "mask_url",
    "misplaced_secret",
    "scheme_of",
    "secrets_in",
    "without_frames",
    "without_login",
]

MASK = "***"

_ORACLE = re.compile(r"(?i)(?:jdbc:)?oracle:[a-z0-9]+:")
_WITH_SLASHES = re.compile(r"(?i)(?:[a-z][a-z0-9+.\-]*:)+//")
_SCHEME = re.compile(r"(?i)(?:jdbc:)?[a-z][a-z0-9+.\-]*:")
_PARAMETERS = re.compile(r"[?;]|:(?=[A-Za-z_][\w.\-]*=)")
_SECRET_NAME = re.compile(
    r"(?i)pass(word|wd|phrase|code)?$|passw|pwd|token|secret|credential|signature|auth|"
    r"(access|account|api|private|shared|ssl)[._-]?key|^(key|sig)$|keytab"
)
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_NAMED = re.compile(
    r"([A-Za-z_][\w.\-]*)\s*=\s*(.*?)(?=[;&\s]+[A-Za-z_][\w.\-]*\s*=|\Z)", re.DOTALL
)
"""A setting in a connection string, `host=h password=p` or `Server=h;Pwd=p`: its value ends at the next name."""
_HOSTS = re.compile(
    r"(?:\[[^\]]*\]|[^:\[\]@,]*)(?::[0-9]*)?(?:,(?:\[[^\]]*\]|[^:\[\]@,]*)(?::[0-9]*)?)*"
)
_NEXT_URL = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
_IN_STATEMENT = re.compile(
    r"""(?is)
    (\b(?:\w*passw(?:or)?d|passphrase|identified\s+(?:(?:with|via)\s+\S+\s+)?(?:by|as|using)|secret|aws_secret_access_key)
      (?:\s+(?:for\s+\S+(?=\s*=)|password(?=\s*[('"])|hash))?
      (?:\s*:?[=(]\s*|\s+))
    (?: \\'.*?(?:\\'|\Z)  # inside of another literal, as are doubled quotes
      | ''[^']+''
      | [EUN]?&?'(?:[^'\\]|''|\\.)*'?
      | "(?:[^"\\]|""|\\.)*"?
      | (\$\w*\$).*?(?:\2|\Z)
      | (?<==)[^\s'"&;,)]+ )
    """,
    re.VERBOSE,
)
"""A secret in a statement, as after PASSWORD, IDENTIFIED BY or `password=`, and what says so. It may be cut off."""
_SHORTEST = 4
"""Characters of a piece of a secret that is looked for in a message: fewer occur in any text."""
_MOST_CUTS = 64
_COMMON = frozenset(
    {
        "clickhouse",
        "database",
        "host",
        "http",
        "https",
        "jdbc",
        "kafka",
        "mariadb",
        "mongodb",
        "mysql",
        "password",
        "path",
        "port",
        "postgres",
        "postgresql",
        "redis",
        "secret",
        "server",
        "sqlite",
        "token",
        "user",
        "username",
    }
)
"""Words of many messages. Hidden in each, they would say what the password is."""
_NUMBER = re.compile(r"(?i)[0-9]{1,18}|true|false")
_PLAIN_PARAMETERS = frozenset(
    {
        "applicationname",
        "application_name",
        "charset",
        "characterencoding",
        "currentschema",
        "database",
        "databasename",
        "encoding",
        "encrypt",
        "region",
        "schema",
        "search_path",
        "servertimezone",
        "ssl",
        "sslmode",
        "targetservertype",
        "timezone",
        "user",
        "username",
    }
)
_PLAIN_OPTIONS = frozenset(
    {
        "batchsize",
        "columns",
        "compression",
        "createtablecolumntypes",
        "createtableoptions",
        "customschema",
        "database",
        "dbtable",
        "encoding",
        "fetchsize",
        "format",
        "header",
        "isolationlevel",
        "lowerbound",
        "mode",
        "name",
        "numpartitions",
        "partitioncolumn",
        "query",
        "reader",
        "schema",
        "sep",
        "delimiter",
        "sessioninitstatement",
        "table",
        "upperbound",
        "user",
        "where",
        "writemode",
        "writer",
        "jobid",
        "commit",
        "txn",
        "txnappid",
        "txnversion",
        "keycolumns",
    }
)
_PLACES = frozenset({"driver", "url", "uri", "path", "paths"})


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


def scheme_of(url: str) -> str:
    """The scheme of `url` in lower case, without `jdbc:`; "" if it has none: it may begin with a login."""
    match = _SCHEME.match(url.strip())
    return "" if match is None else match.group(0).lower().removeprefix("jdbc:").rstrip(":")


def is_clear(url: str) -> bool:
    """Whether each reader of `url` finds the same login in it.

    A login ends at the first `/`, `?` or `#`. An `@` after it may belong to a password that is not percent-encoded:
    then the first half of the password is where host and port should be. Without a login before it, an `@` in a query
    is part of a value.
    """
    return all(_is_clear(part) for part in _NEXT_URL.split(url))


def _is_clear(url: str) -> bool:
    _, mark, tail = url.partition("://")
    at = tail.rfind("@")
    end = min((index for char in "/?#" if (index := tail.find(char)) >= 0), default=len(tail))
    head = tail[:end]
    if not mark or at < end or not head:
        return True
    if ":" in head:
        login, _, hosts = head.rpartition("@")
        if _HOSTS.fullmatch(hosts) is None or (login and (tail[end] != "/" or ":" in login)):
            return False
    return "@" not in tail[end:].partition("?")[0]


def misplaced_secret(url: str) -> str:
    """The name of a secret parameter that follows a `;`, as in SQL Server's urls; "" if there is none."""
    names = re.findall(r";\s*([A-Za-z_][\w.\-]*)\s*=", url.partition("?")[0])
    return next((name for name in names if is_secret_name(name)), "")


def secrets_in(value: str, is_plain: Callable[[str, str], bool] | None = None) -> Iterator[str]:
    """The texts that must not be shown of a value which is not secret as a whole: a url, or a connection string."""
    for part in _NEXT_URL.split(value):
        if _WITH_SLASHES.match(part.strip()) or _ORACLE.match(part.strip()) or "@" in part:
            yield from _secrets_in_url(part.strip(), is_plain or is_plain_parameter)
        else:
            yield from (secret for name, secret in _NAMED.findall(part) if is_secret_name(name))


def _secrets_in_url(url: str, is_plain: Callable[[str, str], bool]) -> Iterator[str]:
    scheme = _scheme(url)
    body = url[len(scheme) :]
    user, _, password = body.rpartition("@")[0].partition("/" if _ORACLE.fullmatch(scheme) else ":")
    yield password
    if not password and _is_http(scheme):
        yield user
    _, parameters = _split_parameters(body)
    if "@" in parameters:
        yield parameters[1:].rpartition("@")[0]
    hidden = ""
    for piece in re.split(r"(?=[?;&])", parameters):
        name, equals, value = piece[1:].partition("=")
        if equals and not hidden and not is_plain(name, value):
            hidden = value
            yield value
        elif hidden and not (equals and is_plain(name, "")):
            hidden += piece
            yield hidden
        else:
            hidden = ""


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` with `***` for each secret, also in the forms of urls and JSON, and for parts of one.

    A parser that takes a secret for something else cuts it at characters that separate the parts of a url, such as
    `?`: each piece from cut to cut is hidden.
    """
    pieces = {piece for secret in secrets for form in _forms(secret) for piece in _pieces(form)}
    for piece in sorted(
        (piece for piece in pieces if piece.lower() not in _COMMON), key=len, reverse=True
    ):
        text = text.replace(piece, MASK)
    return text


def hide_in_error(error: BaseException, secrets: Iterable[str]) -> None:
    """Hide the secrets in `error` and in all that caused it. A cause whose text cannot be changed is dropped."""
    secret_list = list(secrets)
    links = list(_chain(error))
    for link in links:
        _hide_here(link, secret_list)
    for link in links:
        for name in ("__cause__", "__context__"):
            cause = getattr(link, name)
            if cause is not None and any(
                hide(text, secret_list) != text for text in (str(cause), repr(cause))
            ):
                setattr(link, name, None)


def without_frames(error: BaseException) -> BaseException:
    """`error` of a driver, and all that caused it, without the frames of its functions: their variables hold logins."""
    for link in _chain(error):
        link.__traceback__ = None
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    pending, visited = [error], set[int]()
    while pending:
        link = pending.pop()
        if id(link) not in visited:
            visited.add(id(link))
            pending += [
                linked for linked in (link.__cause__, link.__context__) if linked is not None
            ]
            yield link


def _hide_here(error: BaseException, secrets: list[str]) -> None:
    error.args = tuple(
        hide(argument, secrets) if isinstance(argument, str) else argument
        for argument in error.args
    )
    of_class = ("strerror", "filename", "filename2", "object", "doc")
    for name in {*vars(error), *(name for name in of_class if hasattr(error, name))} - {"option"}:
        value = getattr(error, name)
        if isinstance(value, str) and (hidden := hide(value, secrets)) != value:
            setattr(error, name, hidden)
        elif name == "__notes__":
            error.__notes__ = [hide(note, secrets) for note in error.__notes__]


def _forms(secret: str) -> set[str]:
    plain = {secret, unquote(secret), unquote_plus(secret)}
    encodings = {
        form
        for spelling in plain
        for form in (
            quote(spelling, errors="surrogatepass"),  # a byte of the environment that is not UTF-8
            quote(spelling, safe="", errors="surrogatepass"),
            json.dumps(spelling)[1:-1],
        )
    }
    return plain | encodings | {repr(form)[1:-1] for form in plain}


def _pieces(text: str) -> Iterator[str]:
    cuts = sorted(
        {index for match in re.finditer(r"[^\w.~\-]", text) for index in match.span()}
        | {0, len(text)}
    )
    if len(cuts) > _MOST_CUTS:
        yield text
        yield from (text[start:end] for start, end in pairwise(cuts) if end - start >= _SHORTEST)
        return
    for number, start in enumerate(cuts):
        yield from (text[start:end] for end in cuts[number + 1 :] if end - start >= _SHORTEST)


def is_plain_parameter(name: str, value: str) -> bool:
    """Whether a url's parameter can be shown: a well-known one, or a number that is not secret by its name."""
    if name.lower() in _PLAIN_PARAMETERS:
        return True
    return not is_secret_name(name) and _NUMBER.fullmatch(value) is not None


def mask_text(text: str) -> str:
    """A text that may be a url, or anything else."""
    return (
        mask_url(text)
        if "://" in text or "@" in text or text.lstrip().lower().startswith("jdbc:")
        else text
    )


def mask_statement(text: str) -> str:
    """A text that may hold statements: with `***` for what follows PASSWORD, IDENTIFIED BY, or `password=`."""
    if "'" not in text and '"' not in text and "$" not in text and "=" not in text:
        return text
    return _IN_STATEMENT.sub(
        lambda match: f"{match[1]}'{MASK}'" if match[0][-1] in "'\"$" else match[1] + MASK, text
    )


def is_secret_name(name: str) -> bool:
    """Whether the name of an option that is declared nowhere sounds like a secret's."""
    return _SECRET_NAME.search(name) is not None


def mask_untyped(name: str, value: object) -> str:
    """An option whose type is not known here, as text: shown only where its name or its value says that it may be."""
    lowered, text = name.lower(), str(value)
    if lowered in _PLAIN_OPTIONS:
        return text
    if lowered in _PLACES:
        # As of ODBC: "Server=h;Pwd=p". The class or the name of a driver has no such character.
        is_settings = "://" not in text and (
            lowered == "uri" or (lowered == "driver" and re.search("[:;=@]", text) is not None)
        )
        return MASK if is_settings else mask_url(text)
    return text if is_plain_parameter(name, text) else MASK


def _scheme(text: str) -> str:
    for pattern in (_ORACLE, _WITH_SLASHES, _SCHEME):
        if (match := pattern.match(text)) is not None:
            return match.group(0)
    return ""


def _is_http(scheme: str) -> bool:
    return scheme.lower() in ("http://", "https://")


def _split_parameters(tail: str) -> tuple[str, str]:
    match = _PARAMETERS.search(tail)
    return (tail, "") if match is None else (tail[: match.start()], tail[match.start() :])


def _masked(text: str, is_plain: Callable[[str, str], bool], *, keep_login: bool) -> str:
    scheme = _scheme(text)
    body, parameters = _split_parameters(text[len(scheme) :])
    oracle = _ORACLE.fullmatch(scheme) is not None
    if "@" in parameters:
        # Either the password holds the `?`, or a parameter the `@`: only text that is safe in both is shown.
        is_place = "/" in body and ":" not in body and "@" not in body and not oracle
        return f"{scheme}{body}{parameters[0]}{MASK}" if is_place else f"{scheme}{MASK}"
    login, at, hosts = body.rpartition("@")
    if at and ("/" not in login or ":" in login or oracle):
        separator = "/" if oracle else ":"
        user, mark, _ = login.partition(separator)
        if scheme and not oracle and not scheme.endswith("//"):
            user, mark = MASK, ""  # as of `user:password@host`, which has no scheme at all
        if _is_http(scheme) and len(login) == len(user + mark):
            user, mark = MASK, ""  # a token in place of a user
        login_shown = f"{user}{mark}{MASK}" if mark else user
        body = f"{login_shown}@{hosts}" if keep_login else hosts
    return f"{scheme}{body}{_shown_parameters(parameters, is_plain)}"


def _shown_parameters(parameters: str, is_plain: Callable[[str, str], bool]) -> str:
    """A hidden value may hold a `&` or `;`: text after it is shown only if its name is a well-known one."""
    pieces, hidden = [], False
    for piece in re.split(r"([?;&]|\A:)", parameters):
        name, equals, value = piece.partition("=")
        if piece in ("", "?", ";", "&", ":") or (
            equals and is_plain(name, "" if hidden else value)
        ):
            pieces.append(piece)
        elif equals and _NAME.fullmatch(name) and (not hidden or is_secret_name(name)):
            hidden = True
            pieces.append(f"{name}={MASK}")
        elif hidden or equals:
            hidden = True
            pieces.append(MASK)
        else:
            pieces.append(piece)
    return "".join(pieces)
