"""A directory, a bucket or a glob as a change feed: the files that arrive.

Files are taken in the order of their time of change. A token remembers up to which time all files were taken,
and by path (a digest) those that were taken within `late_seconds` before: a file that shows up late, or
with an older time, is found for that long. A time ahead of the clock hides no file: `seen`, the time of the
look, bounds what counts as taken by its time. A file must arrive whole: written elsewhere and renamed, or
hidden (a name that begins with `.` or `_`) until it is whole.

A path is taken once, as by Spark's file source: a file that changes, or is moved away and comes back, within
`late_seconds` after it was taken is not read again. A token names the files that its range took, so the range is
always these files.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pyarrow as pa

from spark_channel.arrow_schema import match_names
from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.files.credentials import StorageCredentials
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import reopen
from spark_channel.connectors.files.formats.base import Format
from spark_channel.connectors.files.listing import SourceFile, beside, merge_of, origins, unmerged
from spark_channel.connectors.files.options import FileReadOptions
from spark_channel.connectors.files.source import has_chosen, is_chosen, listed_files
from spark_channel.errors import OptionError, SchemaError, SourceError, TunnelError
from spark_channel.planning import Split

__all__ = ["FilesFeed"]

_LATE_SECONDS = 600.0
_AHEAD_SECONDS = 86_400.0
"""Clocks differ; a token this far ahead of both the clock and every file does not belong to this source."""
_CHUNK = 4 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = {"part", "parts", "until", "recent"}
_OF_RANGE = {"after", "count", "took", "versions"}
_OPTIONAL = {"seen", "gone"}
_NAMED = 1_000
"""The most files of a range that its token names; of a larger one it has the number and a digest."""
_PUT_BACK = (
    "Its rows would be lost or doubled, since the range is not committed yet. Put the file back as it was, reset the "
    "tunnel, or begin with a new checkpoint directory. Move files away only when the stream is behind them"
)


class FolderReader(Protocol):
    """The reader of the files that a feed found."""

    @property
    def options(self) -> FileReadOptions: ...
    @property
    def form(self) -> Format: ...

    def schema(self) -> pa.Schema: ...

    def split_files(self, files: Sequence[SourceFile], advice: int) -> list[Split]:
        """Splits that cover `files` once."""

    def read(self, split: Split) -> Iterator[pa.RecordBatch]: ...

    def file_columns(self) -> pa.Schema:
        """The columns that files are expected to have."""

    def columns_of(self, file: SourceFile) -> pa.Schema | None:
        """The columns that `file` says it has; None where only reading all of it would show them."""


class FilesFeed(ChangeFeed):
    """`partitions` deals the files out by a digest of their paths."""

    has_one_schema = False

    def __init__(self, reader: FolderReader, options: FeedOptions) -> None:
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
            {"part": part, "parts": self._partitions, "until": 0, "seen": 0, "recent": []}
            for part in range(self._partitions)
        ]

    def now(self) -> list[Token]:
        return [self.latest(token, FeedLimit()) for token in self.earliest()]

    def end_of(self, token: Token) -> Token:
        # Without a look at their columns: a file that does not fit is an error of the range that has it.
        files = self._listed(token)
        files_taken = sorted(self._new(token, files), key=_order)
        return self._taking(token, files, files_taken)

    def at(self, time: datetime) -> list[Token]:
        # What changed before `time` is covered, also when it shows up late: see `_covering`.
        until = (time - _EPOCH) // timedelta(microseconds=1) * 1_000 + self._late_ns
        return [{**token, "until": until, "seen": until} for token in self.earliest()]

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
        # A file with a time before the end may show up until then: asked before the look, which finds such a file.
        over = _now_ns() >= _horizon(end)
        cut = self._latest(after, limit, [end] if upto is None else [end, upto])
        if cut != after or not over:
            return cut
        is_all = upto is None or self._latest(after, FeedLimit(rows=1), [end]) == after
        return None if is_all else cut

    def divide(self, token: Token) -> list[Token]:
        _check(token)
        part, parts = int(token["part"]), 2 * int(token["parts"])
        options = {name: value for name, value in token.items() if name not in _OF_RANGE}
        return [
            {
                **options,
                "part": half,
                "parts": parts,
                "recent": [name for name in token["recent"] if int(name, 16) % parts == half],
                "gone": {
                    name: until
                    for name, until in token.get("gone", {}).items()
                    if int(name, 16) % parts == half
                },
            }
            for half in (part, part + parts // 2)
        ]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        return self._latest(after, limit, [] if upto is None else [upto])

    def _latest(self, after: Token, limit: FeedLimit, ends: Sequence[Token]) -> Token:
        _check(after)
        files = self._listed(after)
        self._check_not_ahead(after, files)
        new = sorted(self._new(after, files), key=_order)
        for end in ends:
            new = list(filter(self._covering(end), new))
        files_taken = self._within(new, limit)
        self._check_columns(files_taken)
        return self._taking(after, files, files_taken)

    def _new(self, after: Token, files: Sequence[SourceFile]) -> list[SourceFile]:
        is_covered = self._covering(after)
        return [file for file in files if not is_covered(file)]

    def _taking(
        self, after: Token, files: Sequence[SourceFile], files_taken: Sequence[SourceFile]
    ) -> Token:
        """The token behind `files_taken`, in their order. `files`: all that are there."""
        if not files_taken:
            return after
        token = {**after, "until": max(int(after["until"]), files_taken[-1].mtime_ns)}
        if "seen" in after:
            token["seen"] = max(int(after["seen"]), _now_ns())
            token["after"] = _identity(after)
            token["count"] = len(files_taken)
            token["took"] = (
                [_version(file) for file in files_taken] if len(files_taken) <= _NAMED else []
            )
            token["versions"] = "" if token["took"] else _versions(files_taken)
        horizon, digest, remembered = _horizon(token), _digest_of(after), _remembered(after)
        old_files_end = _horizon(after) - self._late_ns
        times_there = {
            digest(file): file.mtime_ns for file in files if file.mtime_ns >= old_files_end
        }
        times = {name: mtime_ns for name, mtime_ns in times_there.items() if name in remembered}
        times |= {digest(file): file.mtime_ns for file in files_taken}
        oldest = horizon - self._late_ns
        token["recent"] = sorted(name for name, mtime_ns in times.items() if mtime_ns >= oldest)
        # A file that was moved away may come back with any time: it is remembered for as long as if it were new.
        forget_at = dict.fromkeys(after["recent"], horizon + self._late_ns)
        forget_at |= after.get("gone", {})
        token["gone"] = {
            name: forget_at[name]
            for name in sorted(remembered - times_there.keys())
            if forget_at[name] >= horizon
        }
        return token

    def changes(self, after: Token, upto: Token) -> list[Split]:
        """
        Raises:
            TunnelError: a file that the range took was removed or changed since.
        """
        _check(after)
        _check(upto)
        files = self._listed(upto)
        if upto.get("after") == _identity(after) and upto["took"]:
            files = _as_planned(upto["took"], files)
        else:
            files = self._new(after, list(filter(self._covering(upto), files)))
            is_range = upto.get("after") == _identity(after)
            if is_range and len(files) < upto["count"]:
                raise TunnelError(
                    f"{upto['count'] - len(files)} of {upto['count']} files were removed or changed after a range of "
                    f"this stream was planned with them. {_PUT_BACK}"
                )
            if is_range and _versions(files) != upto.get("versions", _versions(files)):
                raise TunnelError(
                    f"a range of this stream was planned with {upto['count']} files, and some of them were changed, "
                    f"or others with old times came to {', '.join(self._reader.options.all_paths())}. {_PUT_BACK}"
                )
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
        known_rows = [count for count in rows if count is not None]
        return FeedLag(
            sum(known_rows) if len(known_rows) == len(behind) else None,
            sum(file.size for file in behind),
            seconds,
        )

    def _listed(self, token: Token) -> list[SourceFile]:
        is_mine, is_covered = _dealing(token), self._covering(token)
        options, files = self._reader.options, []
        chooses = has_chosen(options)
        for file in unmerged(listed_files(options)):
            if chooses and not any(is_chosen(options, origin) for origin in origins(file)):
                continue
            if is_mine(file):
                files.append(file)
            elif merge_of(file) is not None:
                is_covered(file)  # others may have its rows, and files of this part are in it
        return files

    def _covering(self, token: Token) -> Callable[[SourceFile], bool]:
        """Whether a file was taken at `token`, or came too late for it. Made once for a look at all files.

        Of a merged file, whether those that it was made from were.

        Raises:
            SourceError: some of these were, and they are not there any more.
        """
        oldest, remembered, digest = (
            _horizon(token) - self._late_ns,
            _remembered(token),
            _digest_of(token),
        )
        is_mine, alone = _dealing(token), int(token["parts"]) == 1

        def is_taken(file: SourceFile) -> bool:
            return file.mtime_ns < oldest or digest(file) in remembered

        def is_covered(file: SourceFile) -> bool:
            merge = merge_of(file)
            if merge is None or is_taken(file):
                return is_taken(file)
            covered: list[bool] = []
            any_taken, all_chosen = False, True
            for file_before in merge.files:
                was = beside(file, file_before.path, file_before.nbytes, file_before.mtime_ns)
                any_taken |= (is_one_taken := is_taken(was))
                inner = bool(file_before.of) and all(covered[index] for index in file_before.of)
                is_chosen_one = bool(file_before.of) or is_chosen(self._reader.options, was)
                all_chosen &= is_chosen_one
                covered.append(
                    is_one_taken
                    or inner
                    or not is_chosen_one
                    or not (file_before.of or is_mine(was))
                )
            if all(covered[index] for index in merge.sources):
                return True
            if alone and all_chosen and not any_taken:
                return False
            raise SourceError(
                f"{file.path} was merged from {len(merge.files)} files. This stream may have taken some of them, or "
                "its channels, its starting time or its options take some alone, and they are kept no longer (option "
                "retention). Begin a new stream, or reset the tunnel: with one channel, at the earliest file, and "
                "without options that choose files. Set retention above the longest time that a stream may pause"
            )

        return is_covered

    def _within(self, files: Sequence[SourceFile], limit: FeedLimit) -> list[SourceFile]:
        """The first files that the limit lets through, at least one."""
        if not limit:
            return list(files)
        chosen: list[SourceFile] = []
        rows = nbytes = 0
        for file in files:
            rows += self._rows(file) if limit.rows is not None else 0
            nbytes += file.size
            over = (limit.rows is not None and rows > limit.rows) or (
                limit.nbytes is not None and nbytes > limit.nbytes
            )
            if over and chosen:
                break
            chosen.append(file)
        return chosen

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
            columns = self._reader.columns_of(file)
            if columns is None or file.size == 0:
                continue
            _compare(expected, columns, file.path, typed=not self._reader.form.text)

    def _check_not_ahead(self, token: Token, files: Sequence[SourceFile]) -> None:
        newest = max((file.mtime_ns for file in files), default=0)
        if _horizon(token) > max(newest, _now_ns() + int(_AHEAD_SECONDS * 1e9)):
            raise SourceError(
                "the checkpoint has a time more than a day ahead of this machine's "
                "clock and of every file: it is damaged, or of another source. Reset the tunnel, or begin "
                "with a new checkpoint directory"
            )


def _dealing(token: Token) -> Callable[[SourceFile], bool]:
    """Whether a file is of the token's part."""
    digest, part, parts = _digest_of(token), token["part"], int(token["parts"])
    return lambda file: parts == 1 or int(digest(file), 16) % parts == part


def _as_planned(
    took: Sequence[tuple[str, int, int]], files: Sequence[SourceFile]
) -> list[SourceFile]:
    """The files of a range, which are there as they were when it was planned."""
    by_path = {file.path: file for file in files}
    for path, size, mtime_ns in took:
        file = by_path.get(path)
        if file is None or (file.size, file.mtime_ns) != (size, mtime_ns):
            happened = "removed" if file is None else "changed"
            raise TunnelError(
                f"{path} was {happened} after a range of this stream was planned with it. {_PUT_BACK}"
            )
    return [by_path[path] for path, _, _ in took]


def _compare(expected: pa.Schema, actual: pa.Schema, path: str, *, typed: bool) -> None:
    advice = "Begin a new stream, or reset the tunnel, to take new columns"
    spellings = match_names(expected.names, actual.names, path)
    began_as = {spelled: name for name, spelled in spellings.items()}
    for field in actual:
        if field.name not in began_as:
            raise SchemaError(f"{path} has a new column {field.name!r}. {advice}")
        was = expected.field(began_as[field.name])
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if typed and kind != was.type:
            raise SchemaError(
                f"{path} has column {field.name!r} as {kind}; its stream began with {was.type}. {advice}"
            )
    for name in expected.names:
        if name not in spellings:
            raise SchemaError(
                f"{path} lacks column {name!r}, with which its stream began. {advice}"
            )


def _check(token: Token) -> None:
    ok = (
        _FIELDS <= set(token) <= _FIELDS | _OF_RANGE | _OPTIONAL
        and all(isinstance(token[name], int) for name in ("part", "parts", "until"))
        and isinstance(token.get("seen", 0), int)
        and isinstance(token["recent"], list)
        and isinstance(token.get("took", []), list)
        and isinstance(token.get("gone", {}), dict)
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
    with reading(file.path), reopen(file.root, login).open_input_stream(file.path) as stream:
        while chunk := stream.read(_CHUNK):
            lines += chunk.count(b"\n")
    return lines


def _order(file: SourceFile) -> tuple[int, str]:
    return file.mtime_ns, file.path


def _now_ns() -> int:
    return int(utc_now().timestamp() * 1e9)


def _horizon(token: Token) -> int:
    """The time before which, less `late_seconds`, every file counts as taken: never ahead of the look's own time."""
    return min(int(token["until"]), int(token.get("seen", token["until"])))


def _remembered(token: Token) -> set[str]:
    """The digests of the files that are taken whatever their time: those that are there, and those that were."""
    return {*token["recent"], *token.get("gone", {})}


def _identity(token: Token) -> str:
    """A digest that identifies a position of a channel, whatever range led to it."""
    position = {name: token[name] for name in sorted(token) if name not in _OF_RANGE}
    return hashlib.blake2b(json.dumps(position).encode(), digest_size=8).hexdigest()


def _version(file: SourceFile) -> list[str | int]:
    return [file.path, file.size, file.mtime_ns]


def _versions(files: Sequence[SourceFile]) -> str:
    """A digest of the files of a range, whatever their order."""
    return _short(json.dumps(sorted(_version(file) for file in files)))


def _digest_of(token: Token) -> Callable[[SourceFile], str]:
    """Tokens without `seen`, of earlier versions, know a file by its size and time, too."""
    return _digest if "seen" in token else _digest_with_time


def _digest(file: SourceFile) -> str:
    return _short(f"{file.root}\0{file.path}")


def _digest_with_time(file: SourceFile) -> str:
    return _short(f"{file.root}\0{file.path}\0{file.size}\0{file.mtime_ns}")


def _short(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
