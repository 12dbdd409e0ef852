"""The file that the options of a database file name. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path

from spark_channel.errors import OptionError

__all__ = ["FileUrl"]


@dataclass(frozen=True, slots=True)
class FileUrl:
    """The urls of a file database: its scheme (`sqlite`), its name (`SQLite`), and advice for a url's parameters."""

    scheme: str
    label: str
    suffix: str
    instead_of_parameters: str
    ends_path: str = "?"
    not_in_path: str = ""

    @property
    def takes(self) -> str:
        scheme, file = self.scheme, f"file.{self.suffix}"
        return f"jdbc:{scheme}:/path/to/{file}, {scheme}:///path/to/{file} or {scheme}:{file}"

    def path(self, url: str | None, path: str | None) -> Path:
        """The file that `url` and `path` name: `sqlite:///a/b.db` is /a/b.db, a relative file is `sqlite:a/b.db`.

        Raises:
            OptionError: none, two different ones, a url of another scheme, or a database in memory.
        """
        from_url = None if url is None else self._of(url)
        if from_url is not None and path is not None and Path(from_url) != Path(path):
            raise OptionError(
                f"options 'url' ({url}) and 'path' ({path}) name different files: give one of them",
                option="path",
            )
        text = from_url if from_url is not None else path
        if text is None:
            raise OptionError(
                f"nothing names the database file: give a path, or 'url' as {self.takes}", option="url"
            )
        if not text or text.startswith(":") or "\0" in text:
            raise OptionError(
                f"a {self.label} database in memory belongs to one process, and Spark has several: name a file",
                option="url" if from_url is not None else "path",
                got=text,
                takes=self.takes,
            )
        option = "url" if from_url is not None else "path"
        if strange := next((each for each in self.not_in_path if each in text), None):
            raise OptionError(
                f"option {option!r} holds {strange!r} in the path of the file, where {self.label} would use another "
                "file than this; name another file or folder",
                option=option,
            )
        return Path(text)

    def _of(self, url: str) -> str:
        text = re.sub(r"^jdbc:", "", url.lstrip(), flags=re.IGNORECASE)
        scheme, colon, text = text.partition(":")
        if scheme.lower() != self.scheme or not colon:
            shown = scheme if colon else ""  # the rest may hold a login
            raise OptionError(
                f"option 'url' has scheme {shown!r}; it takes {self.takes}",
                option="url",
                got=shown,
                takes=self.takes,
            )
        if text != text.rstrip():
            raise OptionError(
                "option 'url' ends with a blank, which may belong to the file's name or not; remove it, or name the "
                "file with option 'path'",
                option="url",
            )
        if text.startswith("file:") and (strange := re.search("[%#]", text)):
            raise OptionError(
                f"option 'url' holds {strange[0]!r} after file:, where it is not a character of the name for "
                f"{self.label}; leave out file:, and write the name as it is: {self.takes}",
                option="url",
                takes=self.takes,
            )
        text = text.removeprefix("file:")
        text, mark, parameters = self._split(text)
        if mark:
            names = [
                part.partition("=")[0] for part in re.split("[&;]", parameters)
            ]  # a value may be a secret
            raise OptionError(
                f"option 'url' carries parameters ({', '.join(names)}), which are JDBC's or {self.label}'s own; "
                f"{self.instead_of_parameters}",
                option="url",
                takes=self.takes,
            )
        if text.startswith("//"):
            host, slash, rest = text[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                shown = host.rpartition("@")[2]  # before it is a login
                raise OptionError(
                    f"option 'url' names host {shown!r}; a {self.label} file is local: {self.takes}",
                    option="url",
                    takes=self.takes,
                )
            text = "/" + rest
        return text

    def _split(self, text: str) -> tuple[str, str, str]:
        at = min((place for mark in self.ends_path if (place := text.find(mark)) >= 0), default=len(text))
        return text[:at], text[at : at + 1], text[at + 1 :]
