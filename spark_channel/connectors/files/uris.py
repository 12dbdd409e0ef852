"""The uri of a folder that is not on a local disk: its place, its path and its settings. Pure.

A path is taken byte for byte, as Hadoop's `Path` takes it: `#`, `?` and `%` are characters of a name. Only where a
bucket's uri has settings does `?` begin these.
"""

import posixpath
import re
from dataclasses import dataclass

from spark_channel.errors import OptionError

__all__ = ["BUCKETS", "MARK", "Uri", "check_text"]

BUCKETS = ("s3", "gs", "abfs", "abfss")
"""Schemes of object stores, whose uris have settings."""

_NOT_THERE = {
    ":": (("hdfs", "viewfs"), "which HDFS does not allow"),
    "\\": (("abfs", "abfss"), "which Azure takes for a slash"),
}
MARK = (
    "'?' begins the settings of the uri of an object store, such as ?region=eu-west-1. A read matches a name that "
    "has this character by the pattern [?]; a folder to write needs a name without it"
)

_SAME_AS = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SETTINGS = re.compile(r"(?<!\[)\?")
"""`[?]` is a pattern, which matches the character."""
_SETTING = re.compile(r"[A-Za-z_]+=[^#]*")
_OF_USER = r"[\w.~!$&'()*+,;=%-]"
_OF_HOST = r"[\w.$-]"
_OF_BUCKET = r"[A-Za-z0-9._-]"
_PLACE = re.compile(rf"(?:{_OF_USER}*@)?(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|{_OF_HOST}*)(?::[0-9]*)?")
_BUCKET = re.compile(rf"(?:{_OF_USER}*@)?{_OF_BUCKET}+")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")


@dataclass(frozen=True, slots=True)
class Uri:
    """`path` begins with a slash, and has no `.`, no `..` and no empty name in it. `settings` is what follows `?`."""

    scheme: str
    place: str
    path: str
    settings: str = ""

    @property
    def root(self) -> str:
        """The uri without its path."""
        return f"{self.scheme}://{self.place}" + (f"?{self.settings}" if self.settings else "")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}{self.path}" + (
            f"?{self.settings}" if self.settings else ""
        )

    @classmethod
    def parse(cls, text: str, option: str = "path") -> "Uri":
        """
        Raises:
            OptionError: a password inside, or a character that its place cannot have; says how to write it.
        """
        check_text(text, option)
        scheme_text, _, body = text.partition("://")
        scheme = _SAME_AS.get(scheme_text.lower(), scheme_text.lower())
        settings, mark = "", None
        if scheme in BUCKETS and (mark := _SETTINGS.search(body)):
            body, settings = body[: mark.start()], body[mark.end() :]
        bucket, _, path = body.partition("/")
        if ":" in bucket.rpartition("@")[0] or not _HOST.fullmatch(bucket.rpartition("@")[2]):
            # A secret with a / in it, as in s3://KEY:SEC/RET@bucket, leaves its first half where the port should be.
            raise OptionError(
                f"option {option!r} holds a password or secret key; "
                "leave it to the environment, the profile or the role that the filesystem reads",
                option=option,
            )
        if control := re.search(r"[\x00-\x1f\x7f]", text):
            raise OptionError(
                f"option {option!r} holds the character {control[0]!r}, which the names of files on servers and in "
                "object stores cannot have here; name another folder",
                option=option,
            )
        _check_place(scheme, scheme_text, bucket, option)
        for character, (schemes, fault) in _NOT_THERE.items():
            if scheme in schemes and character in path:
                raise OptionError(
                    f"option {option!r} holds {character!r} in the name of a file or folder, {fault}; name another one",
                    option=option,
                )
        if mark:
            _check_settings(scheme_text, settings, option)
        return cls(scheme, bucket, posixpath.normpath("/" + path.lstrip("/")), settings)


def check_text(text: str, option: str) -> None:
    """
    Raises:
        OptionError: half of a surrogate pair, which no filesystem is given here.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"option {option!r} holds {text[error.start]!r}, which is not a character of Unicode: the name is in "
            "another encoding than UTF-8; rename the file or folder",
            option=option,
        ) from None


def _check_place(scheme: str, named: str, bucket: str, option: str) -> None:
    of_bucket = scheme in ("s3", "gs")
    good = _BUCKET if of_bucket else _PLACE
    if good.fullmatch(bucket):
        return
    kind = "bucket" if of_bucket else "container or account" if scheme in BUCKETS else "host"
    if not bucket:
        raise OptionError(
            f"option {option!r} names no {kind}; it takes {named}://{kind}/folder",
            option=option,
        )
    user, _, host = bucket.rpartition("@")
    strange = (
        re.sub(_OF_USER, "", user) or re.sub(_OF_BUCKET if of_bucket else _OF_HOST, "", host) or "@"
    )
    strange = strange[0]
    raise OptionError(
        f"option {option!r} holds {strange!r} before the first slash after {named}://, where it names a {kind}, which "
        f"cannot have it; a folder follows a slash, as in {named}://{kind}/folder{strange}1",
        option=option,
    )


def _check_settings(scheme_text: str, settings: str, option: str) -> None:
    wrong = next(
        (setting for setting in settings.split("&") if not _SETTING.fullmatch(setting)), None
    )
    if wrong is None:
        return
    if "=" in wrong and "#" in wrong:
        raise OptionError(
            f"option {option!r} holds '#' in its settings, after '?'; write it %23 there, or, if it belongs to the "
            "path, before the '?'",
            option=option,
        )
    raise OptionError(
        f"option {option!r} holds '?', and no setting follows it: {MARK}", option=option
    )
