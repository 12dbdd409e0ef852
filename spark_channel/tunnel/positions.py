"""The positions of a streaming query: what its offsets hold, and how they advance.

An offset is one JSON document: for each channel the range of the batch that ends there (`from`, `to`) and its
number (`seq`), so that a batch that is run again reads the same rows, whatever came since. Without a
tunnel the offsets are all there is; with one, the ranges are assigned by the tunnel's store, and the query
is one of its clients.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel import serialization
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLag, FeedLimit, has_base
from spark_channel.errors import OptionError, SourceError, TunnelError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split
from spark_channel.progress.render import lag_text
from spark_channel.progress.report import short
from spark_channel.retry import RetryingCalls
from spark_channel.tunnel.records import Channel
from spark_channel.tunnel.source import READ, StreamSource, base_split, paused_base

__all__ = [
    "CheckpointPositions",
    "LagWatch",
    "Offset",
    "OffsetRange",
    "StreamPositions",
    "added_up",
    "base_words",
    "brief_words",
    "check_offset",
    "grouped",
    "in_flight_words",
    "kept_words",
    "lag_numbers",
    "make_offset",
    "token_in",
]


_log = log_of(__name__)

Offset = dict[str, Any]
_VERSION = 1
_LAG_EVERY_SECONDS = 10.0
_LAG_SHARE = 100
"""Measuring the lag takes at most 1/100 of the time."""
_LAG_UNKNOWN_SECONDS = 300.0
"""The longest pause after a measurement that failed: the lag is unknown for as long."""
_FRESH_SECONDS = 1.0
"""A lag that was measured longer ago is shown with its age."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A channel's part of a batch. `origin` always names the same rows; empty without a tunnel."""

    channel: str
    sequence: int
    splits: tuple[Split, ...]
    origin: str = ""


class RunEnd:
    """The end of a run with Trigger.AvailableNow; empty for other triggers."""

    def __init__(self) -> None:
        self.tokens: Sequence[Token] | None = None

    def token_of(self, number: int) -> Token | None:
        """The end of feed partition `number`, if any."""
        return None if self.tokens is None or number >= len(self.tokens) else self.tokens[number]


class StreamPositions(ABC):
    """Used by one thread: the one that Spark asks for offsets."""

    def __init__(self, source: StreamSource, *, clock: Clock | None = None) -> None:
        self.source = source
        self.target = RunEnd()
        # Longer than that, and a tunnel's channels have gone to others.
        self.renewal = RetryingCalls(source.options.heartbeat_timeout, clock=clock)
        self.feed = self.renewal.wrap(source.feed, source.feed.is_passing)

    @abstractmethod
    def initial(self) -> Offset:
        """Where a new query begins."""

    @abstractmethod
    def latest(self, start: Offset | None, limit: FeedLimit) -> Offset:
        """The end of the next batch after `start`, which is done; `start` itself when nothing is new.

        `start` is None before Spark 4.2, which does not pass it to the source.
        """

    @abstractmethod
    def is_beside(self, start: Offset | None) -> bool:
        """Whether the next batch after `start` may have existing rows beside changes."""

    @abstractmethod
    def ranges(self, start: Offset, end: Offset) -> list[OffsetRange]:
        """Return the ranges of the batch between two offsets."""

    @abstractmethod
    def settle(self, offset: Offset) -> None:
        """Note that all rows up to `offset` are processed, and will not be read again."""

    @abstractmethod
    def behind(self, end: Offset) -> FeedLag:
        """Return how far the source is ahead of a reader whose position is `end`; unknown numbers are None.

        Asks the source; some sources count rows for it.
        """

    def close(self) -> None:  # noqa: B027 - only a tunnel's client holds something
        """Release everything. Safe twice."""

    def columns(self) -> str | None:
        """The columns that an offset must fit; None: the query continues with other columns."""
        return self.source.schema_text() if self.source.keeps_columns else None

    def prepare(self) -> None:
        """Fix the end of the run: later rows are not read."""
        self.target.tokens = self.feed.end()

    def check_base(self, tokens: Iterable[Token | None]) -> None:
        """Check at the end of a run, where nothing is new, that no existing rows are left.

        Raises:
            TunnelError: some are, since their reading is paused.
        """
        is_left = any(token is not None and has_base(token) for token in tokens)
        if self.target.tokens is not None and is_left:
            name = self.source.options.tunnel
            raise paused_base(self.source.about if name is None else f"tunnel {name!r}")


def token_in(value: object) -> Token:
    """Return a token in the form that an offset holds."""
    token: Token = serialization.load_tagged(json.dumps(value))
    return token


def _json(token: Token) -> object:
    return json.loads(serialization.dump_tagged(token))


def make_offset(
    tunnel: str, key: str, schema: str, channels: Mapping[str, Any], **more: Any
) -> Offset:
    """An offset document."""
    return {
        "version": _VERSION,
        "tunnel": tunnel,
        "id": key,
        "schema": schema,
        "channels": dict(channels),
        **more,
    }


def entry(sequence: int, start: Token, end: Token) -> dict[str, Any]:
    """One channel's part of an offset."""
    return {"seq": sequence, "from": _json(start), "to": _json(end)}


def added_up(lags: Iterable[FeedLag]) -> FeedLag:
    """The lag of several channels: sums, which are not known where one is not, and the longest time."""
    feed_lags = list(lags)
    rows = [lag.rows for lag in feed_lags if lag.rows is not None]
    nbytes = [lag.nbytes for lag in feed_lags if lag.nbytes is not None]
    seconds = [lag.seconds for lag in feed_lags if lag.seconds is not None]
    return FeedLag(
        sum(rows) if len(rows) == len(feed_lags) else None,
        sum(nbytes) if len(nbytes) == len(feed_lags) else None,
        max(seconds, default=None),
        max(
            (lag.kept for lag in feed_lags if lag.kept is not None), default=None
        ),  # all have the same slot
        *_base_of([lag for lag in feed_lags if lag.base_read is not None]),
    )


def _base_of(lags: Sequence[FeedLag]) -> tuple[int | None, int | None, int | None, bool]:
    if not lags:
        return None, None, None, False
    sizes = [lag.base_rows for lag in lags if lag.base_rows is not None]
    return (
        sum(lag.base_read or 0 for lag in lags),
        sum(sizes) if len(sizes) == len(lags) else None,
        sum(lag.base_chunks or 0 for lag in lags),
        any(lag.base_held for lag in lags),
    )


def check_offset(offset: Offset, *, tunnel: str, key: str, schema: str | None) -> None:
    """Check that an offset of Spark's checkpoint is of this source. `schema`: None = whatever columns it was made for.

    Raises:
        SourceError: damaged, or of another format. TunnelError: of another source, tunnel or schema.
    """
    fields = {"version": int, "tunnel": str, "id": str, "schema": str, "channels": dict}
    sound = all(isinstance(offset.get(name), kind) for name, kind in fields.items()) and all(
        isinstance(position, dict) and {"seq", "from", "to"} <= set(position)
        for position in offset["channels"].values()
    )
    if not sound or offset["version"] != _VERSION:
        raise SourceError(
            f"the offset {json.dumps(offset)[:200]} in Spark's checkpoint is damaged, or of another "
            "version: begin with a new checkpoint directory"
        )
    if offset["tunnel"] != tunnel:
        was = f"tunnel {offset['tunnel']!r}" if offset["tunnel"] else "no tunnel"
        now = f"tunnel {tunnel!r}" if tunnel else "none"
        raise TunnelError(
            f"the checkpoint directory is of a query on {was}, and this one is on {now}: name that tunnel, "
            "or another checkpoint directory"
        )
    if offset["id"] != key:
        origin = (
            f"tunnel {tunnel!r} as it was before it was reset or created again"
            if tunnel
            else offset["id"]
        )
        raise TunnelError(
            f"the checkpoint directory is of {origin}, and this query reads {tunnel or key}: "
            "begin with a new checkpoint directory"
        )
    if schema is not None and offset["schema"] != schema:
        raise TunnelError(
            f"the checkpoint directory is of columns ({offset['schema']}), and the source has ({schema}) "
            "now: begin with a new checkpoint directory to take the new columns"
        )


class CheckpointPositions(StreamPositions):
    """A query by itself: Spark's checkpoint holds all. Each offset names every channel that is not drained."""

    def __init__(self, source: StreamSource, advice: int, *, clock: Clock | None = None) -> None:
        super().__init__(source, clock=clock)
        for name in ("ending_offsets", "ending_timestamp"):
            if getattr(source.options, name) is not None:
                option = type(source.options).model_fields[name].alias or name
                raise OptionError(
                    f"option {option!r} needs option 'tunnel', which keeps where its channels end: "
                    "name a tunnel, or end the query with Trigger.AvailableNow",
                    option=option,
                )
        self._advice = advice
        self._planned: Offset | None = None

    def initial(self) -> Offset:
        new_channels = self.renewal.call(
            lambda: self.source.channels(self._advice), self.source.feed.is_passing
        )
        channels = {channel.id: entry(0, channel.token, channel.token) for channel in new_channels}
        base = {channel.id: _json(channel.params) for channel in new_channels if channel.is_base}
        return self._offset(channels, base)

    def latest(self, start: Offset | None, limit: FeedLimit) -> Offset:
        if start is None:
            start = self._planned
        if start is None:
            return self._unknown_start()
        self._check(start)
        self.settle(start)  # a source that keeps changes until they are settled shows those first
        channels, base = dict(start["channels"]), dict(start.get("base", {}))
        room = BatchAdmission(limit)
        waiting = [key for key in base if token_in(channels[key]["to"]) != READ]
        if waiting:
            for key in waiting:
                split = base_split(Channel(key, 0, token_in(base[key])))
                if not room.takes(split.rows, split.nbytes):
                    break
                channels[key] = entry(channels[key]["seq"] + 1, token_in(channels[key]["to"]), READ)
            return self._offset(channels, base)
        news = {}
        with self.feed.shared_look():
            for key, position in channels.items():
                if key in base or room.full:
                    continue
                token = token_in(position["to"])
                number = int(key.rpartition("-")[2])
                end = self.feed.latest(token, room.left, self.target.token_of(number))
                if end != token:
                    news[key] = entry(position["seq"] + 1, token, end)
                    room.full = bool(limit)
        if not news:
            self.check_base(
                token_in(position["to"]) for key, position in channels.items() if key not in base
            )
            return start
        streams = {key: position for key, position in channels.items() if key not in base}
        return self._offset({**streams, **news}, {})

    def is_beside(self, start: Offset | None) -> bool:
        start = self._planned if start is None else start
        base = {} if start is None else start.get("base", {})
        return start is not None and any(
            has_base(token_in(position["to"]))
            for key, position in start["channels"].items()
            if key not in base
        )

    def ranges(self, start: Offset, end: Offset) -> list[OffsetRange]:
        self._check(start)
        self._check(end)
        self._planned = end
        ranges = []
        for key, position in end["channels"].items():
            before = start["channels"].get(key)
            if before == position:
                continue
            upto = token_in(position["to"])
            if key in end.get("base", {}):
                if upto == READ:
                    split = base_split(Channel(key, 0, token_in(end["base"][key])))
                    ranges.append(OffsetRange(key, position["seq"], (split,)))
                continue
            after = token_in(
                before["to"] if position["from"] is None and before else position["from"]
            )
            ranges.append(OffsetRange(key, position["seq"], tuple(self.feed.changes(after, upto))))
        return ranges

    def behind(self, end: Offset) -> FeedLag:
        base = end.get("base", {})
        lags = []
        with self.feed.shared_look():
            for key, position in end["channels"].items():
                token = token_in(position["to"])
                if key not in base:
                    lags.append(self.feed.lag(token))
                elif token != READ:
                    split = base_split(Channel(key, 0, token_in(base[key])))
                    lags.append(FeedLag(split.rows, split.nbytes))
        return added_up(lags)

    def settle(self, offset: Offset) -> None:
        for key, position in offset["channels"].items():
            if key not in offset.get("base", {}):
                self.feed.settle(token_in(position["to"]))

    def _unknown_start(self) -> Offset:
        """Before Spark 4.2, a query that begins again learns where it stood when its batch is planned."""
        if self.source.options.tunnel_type != "stream":
            raise UnsupportedError(
                f"tunnelType {self.source.options.tunnel_type} needs Spark 4.2, or option 'tunnel', "
                "which keeps the positions: this Spark does not pass a source the position of its query"
            )
        tokens = self.feed.now()
        self.feed.settled(tokens)
        channels = {
            f"stream-{number}": {**entry(0, token, token), "from": None}
            for number, token in enumerate(tokens)
        }
        return self._offset(channels, {})

    def _check(self, offset: Offset) -> None:
        check_offset(offset, tunnel="", key=self.source.about, schema=self.columns())

    def _offset(self, channels: Mapping[str, Any], base: Mapping[str, Any]) -> Offset:
        base_fields = {"base": dict(base)} if base else {}
        return make_offset(
            "", self.source.about, self.source.schema_text(), channels, **base_fields
        )


class LagWatch:
    """Keeps the last lag; measures it again after 10 s, or after 100 times as long as the last measurement took.
    After one that failed, in 5 minutes at most.

    `waits_seconds`: for so long the newest changes wait for late ones, which the text says. `first_after`: seconds
    until the first measurement.
    """

    def __init__(
        self, waits_seconds: float = 0.0, clock: Clock | None = None, *, first_after: float = 0.0
    ) -> None:
        self._waits = waits_seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._heard = self._clock.now()
        self._due = self._heard + first_after
        self._text = ""
        self._numbers: Mapping[str, int | float] = {}

    def look(self, ask: Callable[[], FeedLag]) -> tuple[str, Mapping[str, int | float]]:
        """As people read it, and as numbers; empty when it is not known. A source that does not answer fails no
        stream.
        """
        began = self._clock.now()
        if began >= self._due:
            answered = self._ask(ask)
            self._heard = self._clock.now()
            pause = max(_LAG_EVERY_SECONDS, _LAG_SHARE * (self._heard - began))
            self._due = self._heard + (pause if answered else min(pause, _LAG_UNKNOWN_SECONDS))
        ago = self._clock.now() - self._heard
        text = (
            f"{self._text} ({ago:.0f} s ago)"
            if self._text and ago >= _FRESH_SECONDS
            else self._text
        )
        return text, {**self._numbers, "seconds_ago": round(ago, 1)} if self._numbers else {}

    def _ask(self, ask: Callable[[], FeedLag]) -> bool:
        """Whether there was an answer."""
        try:
            lag = ask()
        except Exception as error:
            _log.debug("the lag of the stream cannot be measured: %s", error)
            self._text, self._numbers = "", {}
            return False
        text = lag_text(lag.rows, lag.nbytes, lag.seconds)
        if self._waits and (lag.rows or lag.nbytes):
            text += f", new rows wait {self._waits:g} s for late ones"
        self._text = ", ".join(part for part in (text, brief_words(lag)) if part)
        self._numbers = lag_numbers(lag)
        return True


class BatchAdmission:
    """The rest of a batch's limit: it admits at least one split, and no split beyond the limit."""

    def __init__(self, limit: FeedLimit) -> None:
        self.left = limit
        self.full = False
        self._first = True

    def takes(self, rows: int | None, nbytes: int | None) -> bool:
        """Whether a split of this size, as estimated, still goes in; it is then counted."""
        over = (self.left.rows is not None and (rows or 0) > self.left.rows) or (
            self.left.nbytes is not None and (nbytes or 0) > self.left.nbytes
        )
        if self.full or (over and not self._first):
            self.full = True
            return False
        self._first = False
        self.left = FeedLimit(
            None if self.left.rows is None else max(0, self.left.rows - (rows or 0)),
            None if self.left.nbytes is None else max(0, self.left.nbytes - (nbytes or 0)),
        )
        return True


def base_words(lag: FeedLag, *, paused: bool = False) -> str:
    """Return how much of the existing rows is read while changes are delivered; empty where none are read."""
    if lag.base_read is None:
        return ""
    chunks = f"{grouped(lag.base_chunks)}{_of(lag.chunks)} chunks, " if lag.base_chunks else ""
    words = f"{chunks}{grouped(lag.base_read)}{_of(lag.base_rows)} existing rows are read"
    if paused:
        return f"{words}, paused by pause-base"
    return f"{words}, paused since the slot keeps more than maxSlotLag" if lag.base_held else words


def kept_words(lag: FeedLag) -> str:
    """Return how much WAL the slot makes its server keep; empty without a slot."""
    return (
        ""
        if lag.kept is None
        else f"its slot makes the server keep {grouped(lag.kept)} bytes of WAL"
    )


def lag_numbers(lag: FeedLag) -> dict[str, int | float]:
    """Return the known numbers by name."""
    numbers = {
        "rows": lag.rows,
        "bytes": lag.nbytes,
        "seconds": None if lag.seconds is None else round(lag.seconds, 3),
        "wal_kept_bytes": lag.kept,
        "base_rows_read": lag.base_read,
        "base_rows": lag.base_rows,
        "base_chunks_read": lag.base_chunks,
        "base_chunks": lag.chunks,
    }
    return {name: value for name, value in numbers.items() if value is not None}


def in_flight_words(rows: int, seconds: float) -> str:
    """Return how many rows a client has read without a checkpoint, and how old its report is."""
    return f"{grouped(rows)} rows are read and have no checkpoint, as its client reported {seconds:.0f} s ago"


def brief_words(lag: FeedLag) -> str:
    """Return both in short: `base 5 of 24 chunks (100k of 480k rows), slot keeps 8.39MB`; empty for neither."""
    parts = []
    if lag.base_read is not None:
        rows = f"{short(lag.base_read)}{'' if lag.base_rows is None else f' of {short(lag.base_rows)}'} rows"
        of = "" if lag.chunks is None else f" of {lag.chunks}"
        base = f"base {lag.base_chunks}{of} chunks ({rows})" if lag.base_chunks else f"base {rows}"
        parts.append(base + (" paused by maxSlotLag" if lag.base_held else ""))
    if lag.kept is not None:
        parts.append(f"slot keeps {short(lag.kept)}B of WAL")
    return ", ".join(parts)


def _of(value: int | None) -> str:
    return "" if value is None else f" of about {grouped(value)}"


def grouped(value: int | None) -> str:
    """`12 400`; `-` if it is not known."""
    return "-" if value is None else f"{value:,}".replace(",", " ")
