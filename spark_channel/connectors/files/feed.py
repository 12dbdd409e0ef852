"""A directory, a bucket or a glob as a change feed: the files that arrive.

Files are taken in the order of their time of change. A token remembers up to which time all files were taken,
and by name (a digest) those that were taken within `late_seconds` before: a file that shows up late, or
with an older time, is found for that long. A file must arrive whole: written elsewhere and renamed, or
hidden (a name that begins with `.` or `_`) until it is whole.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.files.filesystem import StorageCredentials, reading, reopen
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.connectors.files.source import find_files
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.files.reader import FilesReader

__all__ = ["FilesFeed"]

_LATE_SECONDS = 600.0
_AHEAD_SECONDS = 86_400.0
"""Clocks differ; a token this far ahead of both the clock and every file does not belong to this source."""
_CHUNK = 4 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = {"part", "parts", "until", "recent"}


class FilesFeed(ChangeFeed):
    """`partitions` deals the files out by a digest of their paths."""

    has_one_schema = False

    def __init__(self, reader: "FilesReader", options: FeedOptions) -> None:
        if options.cursor_column is not None:
            raise OptionError(
                "option 'cursorColumn' is for tables; files are taken as they arrive",
                option="cursorColumn",
            )
        late = _LATE_SECONDS if options.late_seconds is None else options.late_seconds
        self._late_ns = int(late * 1e9)
        self._partitions = options.partitions
        self._reader = reader
        self._advice = reader.options.channels or 2

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [
            {"part": part, "parts": self._partitions, "until": 0, "recent": []}
            for part in range(self._partitions)
        ]

    def now(self) -> list[Token]:
        return [self.latest(token, FeedLimit()) for token in self.earliest()]

    def end_of(self, token: Token) -> Token:
        # Without a look at their columns: a file that does not fit is an error of the range that has it.
        files = self._listed(token)
        return self._taking(token, files, sorted(self._new(token, files), key=_order))

    def at(self, time: datetime) -> list[Token]:
        # What changed before `time` is covered, also when it shows up late: see `_covering`.
        until = (time - _EPOCH) // timedelta(microseconds=1) * 1_000 + self._late_ns
        return [{**token, "until": until} for token in self.earliest()]

    def reaches(self, token: Token, end: Token) -> bool:
        _check(token)
        _check(end)
        if (token["part"], token["parts"]) != (end["part"], end["parts"]):
            raise OptionError(
                f"option 'endingOffsets' has part {end['part']} of {end['parts']} for the channel of part "
                f"{token['part']} of {token['parts']}: give the positions in the order of the channels",
                option="endingOffsets",
            )
        return int(token["until"]) >= int(end["until"])

    def before(
        self, after: Token, limit: FeedLimit, end: Token, upto: Token | None = None
    ) -> Token | None:
        _check(end)
        cut = self._latest(after, limit, [end] if upto is None else [end, upto])
        # A file with a time before the end may show up until then.
        over = utc_now().timestamp() * 1e9 >= int(end["until"])
        if cut != after or not over:
            return cut
        is_all = upto is None or self._latest(after, FeedLimit(rows=1), [end]) == after
        return None if is_all else cut

    def divide(self, token: Token) -> list[Token]:
        _check(token)
        part, parts = int(token["part"]), 2 * int(token["parts"])
        return [
            {
                **token,
                "part": each,
                "parts": parts,
                "recent": [name for name in token["recent"] if int(name, 16) % parts == each],
            }
            for each in (part, part + parts // 2)
        ]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        return self._latest(after, limit, [] if upto is None else [upto])

    def _latest(self, after: Token, limit: FeedLimit, ends: Sequence[Token]) -> Token:
        _check(after)
        files = self._listed(after)
        self._check_not_ahead(after, files)
        new = sorted(self._new(after, files), key=_order)
        covering = [self._covering(end) for end in ends]
        taken = self._within(
            [file for file in new if all(covers(file) for covers in covering)], limit
        )
        self._check_columns(taken)
        return self._taking(after, files, taken)

    def _new(self, after: Token, files: Sequence[SourceFile]) -> list[SourceFile]:
        covers = self._covering(after)
        return [file for file in files if not covers(file)]

    def _taking(
        self, after: Token, files: Sequence[SourceFile], taken: Sequence[SourceFile]
    ) -> Token:
        """The token behind `taken`, in their order. `files`: all that are there."""
        if not taken:
            return after
        until = max(int(after["until"]), taken[-1].mtime_ns)
        known = filter(self._covering(after), files)
        recent = sorted(
            _digest(file) for file in [*known, *taken] if file.mtime_ns >= until - self._late_ns
        )
        return {**after, "until": until, "recent": recent}

    def changes(self, after: Token, upto: Token) -> list[Split]:
        _check(after)
        _check(upto)
        files = self._new(after, [*filter(self._covering(upto), self._listed(upto))])
        return self._reader.split_files(sorted(files, key=_order), self._advice) if files else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        files = [
            file for token in upto for file in filter(self._covering(token), self._listed(token))
        ]
        return (
            self._reader.split_files(sorted(files, key=lambda file: file.path), advice)
            if files
            else []
        )

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        _check(token)
        behind = self._new(token, self._listed(token))
        rows = [file.listed.rows for file in behind if file.listed is not None]
        oldest = min((file.mtime_ns for file in behind), default=None)
        seconds = 0.0 if oldest is None else max(0.0, utc_now().timestamp() - oldest / 1e9)
        known = [each for each in rows if each is not None]
        return FeedLag(
            sum(known) if len(known) == len(behind) else None,
            sum(file.size for file in behind),
            seconds,
        )

    def _listed(self, token: Token) -> list[SourceFile]:
        return [
            file
            for file in find_files(self._reader.options)
            if int(_digest(file), 16) % int(token["parts"]) == token["part"]
        ]

    def _covering(self, token: Token) -> Callable[[SourceFile], bool]:
        """Whether a file was taken at `token`, or came too late for it."""
        begin, recent = int(token["until"]) - self._late_ns, frozenset(token["recent"])
        return lambda file: file.mtime_ns < begin or _digest(file) in recent

    def _within(self, files: Sequence[SourceFile], limit: FeedLimit) -> list[SourceFile]:
        """The first files that the limit lets through, at least one."""
        if not limit:
            return list(files)
        taken: list[SourceFile] = []
        rows = nbytes = 0
        for file in files:
            rows += self._rows(file) if limit.rows is not None else 0
            nbytes += file.size
            over = (limit.rows is not None and rows > limit.rows) or (
                limit.nbytes is not None and nbytes > limit.nbytes
            )
            if over and taken:
                break
            taken.append(file)
        return taken

    def _rows(self, file: SourceFile) -> int:
        splits = self._reader.split_files([file], 1)
        counts = [split.rows for split in splits]
        if all(count is not None for count in counts):
            return sum(count for count in counts if count is not None)
        return _lines(file, self._reader.options.login)

    def _check_columns(self, files: Sequence[SourceFile]) -> None:
        """Raises: SchemaError, when a file has other columns than the stream began with."""
        expected = self._reader.file_columns()
        for file in files:
            found = self._reader.columns_of(file)
            if found is None or file.size == 0:
                continue
            _compare(expected, found, file.path, typed=not self._reader.form.text)

    def _check_not_ahead(self, token: Token, files: Sequence[SourceFile]) -> None:
        newest = max((file.mtime_ns for file in files), default=0)
        ahead = utc_now().timestamp() + _AHEAD_SECONDS
        if int(token["until"]) > max(newest, int(ahead * 1e9)):
            raise SourceError(
                "the checkpoint has a modification time more than a day ahead of this machine's "
                "clock and of every file: it is damaged, or of another source. Reset the tunnel, or begin "
                "with a new checkpoint directory"
            )


def _compare(expected: pa.Schema, found: pa.Schema, path: str, *, typed: bool) -> None:
    advice = "Begin a new stream, or reset the tunnel, to take new columns"
    known = {field.name.lower(): field for field in expected}
    there = {field.name.lower() for field in found}
    for field in found:
        was = known.get(field.name.lower())
        if was is None:
            raise SchemaError(f"{path} has a new column {field.name!r}. {advice}")
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if typed and kind != was.type:
            raise SchemaError(
                f"{path} has column {field.name!r} as {kind}; its stream began with {was.type}. {advice}"
            )
    for name, field in known.items():
        if name not in there:
            raise SchemaError(
                f"{path} lacks column {field.name!r}, with which its stream began. {advice}"
            )


def _check(token: Token) -> None:
    ok = (
        set(token) == _FIELDS
        and all(isinstance(token[name], int) for name in ("part", "parts", "until"))
        and isinstance(token["recent"], list)
        and 0 <= token["part"] < token["parts"]
    )
    if not ok:
        raise SourceError(
            f"the checkpoint {str(dict(token))[:200]} is not a position among arriving files: "
            "it is damaged, or of another source. Reset the tunnel, or begin with a new checkpoint directory"
        )


def _lines(file: SourceFile, login: StorageCredentials | None) -> int:
    """The line ends of a text file, unpacked: what it may hold in rows."""
    lines = 0
    with reading(file.path), reopen(file.root, login).open_input_stream(file.path) as opened:
        while chunk := opened.read(_CHUNK):
            lines += chunk.count(b"\n")
    return lines


def _order(file: SourceFile) -> tuple[int, str]:
    return file.mtime_ns, file.path


def _digest(file: SourceFile) -> str:
    """Short, and new when the file is replaced."""
    name = f"{file.root}\0{file.path}\0{file.size}\0{file.mtime_ns}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
