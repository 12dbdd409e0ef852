"""`Tunnel`: a named, checkpointed subscription to a source, for programs."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors import find_connector
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, RetainedLog, RetainsLogs
from spark_channel.connectors.base.registry import describe
from spark_channel.errors import ChannelError, TunnelError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.processes import has_ended
from spark_channel.retry import RetryingCalls
from spark_channel.tunnel.options import split_options
from spark_channel.tunnel.reader import TunnelReader
from spark_channel.tunnel.records import Channel, ChannelState, Client, TunnelRecord, TunnelStore
from spark_channel.tunnel.source import READ, StreamSource, base_split, place_of, slot_of
from spark_channel.tunnel.store import open_store
from spark_channel.tunnel.worker import Delivery, Processor, TunnelWorker

__all__ = ["ChannelView", "Tunnel", "TunnelView"]

_log = log_of(__name__)

_ADVICE = 8
_RELEASE_SECONDS = 30.0
"""How long `delete` waits for a client that reads from the slot at this moment."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows by table (a single table: ""), as a client reported them `seconds` ago."""

    tables: Mapping[str, int]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(self.tables.values())


@dataclass(frozen=True, slots=True)
class ChannelView:
    """One channel, and how far it is behind; `lag` is None where the source was not asked or does not exist.

    `channel.token` is where it is read from next. The lag's seconds are the source's own, for a cursor that is a
    time; else those since the last checkpoint, by the store's clock, and 0 when nothing is left to read.
    `no_lag`: why the lag is unknown. `in_flight`: rows that its client has read without a checkpoint; None = it has no
    running client, or one that does not report them.
    """

    channel: Channel
    lag: FeedLag | None
    no_lag: str = ""
    in_flight: InFlight | None = None

    @property
    def stage(self) -> str:
        """`base`: a split of the rows that existed when the tunnel was made; `stream`: later changes."""
        return "base" if self.channel.is_base else "stream"


@dataclass(frozen=True, slots=True)
class TunnelView:
    """A tunnel at one moment: `now`, by the store's clock."""

    record: TunnelRecord
    channels: tuple[ChannelView, ...]
    clients: tuple[Client, ...]
    now: float = 0.0


class Tunnel:
    """A tunnel of a source, by name.

        orders = Tunnel("orders", {"path": "shop.db", "dbtable": "orders", "cursorColumn": "id"})
        orders.create()
        orders.consume(lambda delivery: print(delivery.channel, sum(b.num_rows for b in delivery.batches)))

    Args:
        options: the source's, as `spark.readStream` takes them. What only looks at the tunnel, or removes it,
            needs none.
        store: where it is kept; else option `tunnelStore`, else a file in the user's home.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        store: TunnelStore | str | None = None,
    ) -> None:
        self.name = name
        self._options = dict(options or {})
        place = next(
            (self._options[key] for key in self._options if key.lower() == "tunnelstore"), None
        )
        self.store: TunnelStore = (
            open_store(store if store is not None else place)
            if store is None or isinstance(store, str)
            else store
        )
        self.shown: Mapping[str, str] = {}
        """Further facts of the job that a client of this `Tunnel` reports: `target` and `part_of` of `JobSpec`."""
        self._changed = threading.Lock()
        self._calls: dict[int, tuple[threading.Event, TunnelWorker | None]] = {}

    def create(self, *, channels: int = _ADVICE) -> TunnelRecord:
        """Make the tunnel: where its source ends now, and about `channels` splits of what is there.

        Raises:
            TunnelError: the name is taken. ChannelError: a source that cannot be read, or has no feed.
        """
        # The store is made before the source makes a slot: one that no tunnel names would keep the log.
        if any(record.name == self.name for record in self.store.all(make=True)):
            raise TunnelError(f"there is a tunnel {self.name!r} in {self.store.show()} already")
        source = StreamSource(self._options)
        return self.store.create(source.record(self.name), source.channels(channels))

    def exists(self) -> bool:
        """Whether the store has this tunnel."""
        return any(record.name == self.name for record in self.store.all())

    def reset(self, *, channels: int = _ADVICE) -> TunnelRecord:
        """Start over, as `create` does: drop all positions, and notify the clients.

        With option `tables`, it follows the tables that the options name: a log line names the others that it had.
        """
        source = StreamSource(self._options)
        slot = slot_of(self.store.get(self.name))
        old, new = self.store.state(self.name).channels.values(), source.channels(channels)
        new_record = self.store.reset(self.name, source.record(self.name), new)
        if slot and slot != slot_of(new_record):
            _log.warning(
                "tunnel %r no longer reads slot %r, which keeps its server's log until it is dropped: "
                "SELECT pg_drop_replication_slot('%s')",
                self.name,
                slot,
                slot,
            )
        left_out = sorted(_tables(source.feed, old) - _tables(source.feed, new))
        if left_out:
            _log.warning(
                "tunnel %r no longer follows %s, which option 'tables' does not name: `spark-channel tunnel "
                "add-table %s --table TABLE` adds a table again",
                self.name,
                ", ".join(left_out),
                self.store.named(self.name),
            )
        return new_record

    def delete(self, *, leave_slot: bool = False) -> None:
        """Remove the tunnel and, where its options are given, what the source holds for it.

        A tunnel with a replication slot is removed with the source's options, which drop the slot, or with
        `leave_slot`, which leaves it to the server's administrator.

        The slot is dropped first: if this fails halfway, the tunnel still exists, and another `delete`
        continues. A slot that no tunnel names would keep the server's log forever.

        Raises:
            TunnelError: the tunnel does not exist, the options are of another source, or it has a slot and no options.
        """
        record = self.store.get(self.name)
        slot = slot_of(record)
        if slot and not leave_slot and not self._source_options():
            raise TunnelError(
                f"tunnel {self.name!r} reads replication slot {slot!r} of {record.source.split(';')[0]}, "
                "which keeps the server's log until it is dropped: "
                "give the source's options, so that the slot is dropped too, "
                "or leave it behind with --leave-slot, and drop it with SELECT pg_drop_replication_slot(...)"
            )
        if self._source_options() and not leave_slot:
            source = StreamSource(self._options)
            source.check_source(record)
            feed = source.feed
            RetryingCalls(_RELEASE_SECONDS).call(feed.close, feed.is_passing)
        self.store.delete(self.name)

    def _source_options(self) -> bool:
        """Whether the options say more than where tunnels are kept."""
        return any(key.lower() != "tunnelstore" for key in self._options)

    def describe(self) -> TunnelView:
        """Channels, clients, and, where its options are given, how far each channel is behind."""
        record, state = self.store.get(self.name), self.store.state(self.name)
        source = None
        if self._options:
            source = StreamSource(self._options)
            source.check(record)
        now = self.store.now()
        views = []
        for channel in state.channels.values():
            lag, no_lag = _lag(channel, source)
            lag = _timed(channel, lag, max(record.created_at, channel.checkpointed_at), now)
            views.append(ChannelView(channel, lag, no_lag, _in_flight(channel, state.clients, now)))
        return TunnelView(record, tuple(views), tuple(state.clients.values()), now)

    def orphans(self) -> list[RetainedLog]:
        """The replication slots of the database of `options` that no tunnel of this store reads.

        A stream without a tunnel has such a slot, too, and so have other programs: nothing is dropped here. `named_by`
        names the tunnels that use such a slot at another server, which may be this server under another name.

        Raises:
            UnsupportedError: a source without replication slots. ChannelError: it cannot be reached.
        """
        _, options = split_options(self._options)
        if not {"dbtable", "query"} & {key.lower() for key in options}:
            options["query"] = "SELECT 1"
        connector = find_connector(options, "reader")
        reader, _ = connector.reader_with(options)
        if not isinstance(reader, RetainsLogs):
            raise UnsupportedError(
                f"{connector.name} has no replication slots, which a tunnel could leave behind: name a PostgreSQL "
                "server"
            )
        here = place_of(f"{connector.name} {describe(reader.options)}")
        named: dict[str, list[TunnelRecord]] = {}
        for record in self.store.all():
            named.setdefault(slot_of(record), []).append(record)
        orphans = []
        for retained_log in reader.retained_logs():
            records = named.get(retained_log.slot, [])
            if any(place_of(record.source) == here for record in records):
                continue
            # Usually another server, but it may be this one under another name, which the text does not show.
            others = ", ".join(f"{record.name} of {place_of(record.source)}" for record in records)
            orphans.append(replace(retained_log, named_by=others))
        return orphans

    def consume(
        self,
        processor: Processor | Callable[[Delivery], object] | None = None,
        *,
        factory: Callable[[str], Processor | Callable[[Delivery], object]] | None = None,
        threads: int = 4,
        drained: bool = False,
    ) -> None:
        """Hand every range of this client's channels to `processor`, until `stop`, SIGTERM, an error, or until all
        channels have ended for good.

        Several clients, in other threads, processes or hosts, share the channels; when one dies, the others
        go on from its checkpoints. A range is delivered at least once; (channel, sequence) names it. The next
        range of a channel is read while one is processed, as far as `capacityRows` and `capacityBytes` allow, which
        count over all channels. With option `tables`, each table has its own deliveries, and a range one checkpoint.

        A range that fails is tried again, up to `maxRetryInterval` apart, and then its channel is parked while the
        others run on (`onError`). SIGTERM, in the main thread of a program that does not handle it, ends the
        ranges at hand within `shutdownGrace` and gives all channels back.

        Args:
            processor: an object with `process` and `shutdown`, and `opened(channel)` where it has one; or a
                function that takes a `Delivery`.
            factory: in place of `processor`: makes one for each channel, or table of one, that opens here, from the
                channel's id.
            threads: ranges processed at the same time, each of another channel, or table of one.
            drained: return when all that was there at the call has been processed, also if the source gets rows all
                the time.

        Raises:
            TunnelError: the tunnel does not exist, is of another source or schema, or all that is left is parked.
            SystemExit: SIGTERM was received; the exit code is 143.
            Anything: what the processor raised, with `onError=stop`, or when nothing is left that is not parked;
                the range is delivered again next time.
        """
        if (processor is None) == (factory is None):
            raise TypeError(
                "consume() takes a processor, or factory=, which makes one for each channel"
            )
        stopped = threading.Event()
        call = id(stopped)
        with self._changed:
            self._calls[call] = stopped, None
        try:
            record = self.store.get(self.name)
            consumer = TunnelWorker(
                self.store,
                record,
                self._options,
                processor,
                threads=threads,
                drained=drained,
                factory=factory,
                shown=self.shown,
            )
            with self._changed:
                self._calls[call] = stopped, consumer
            if stopped.is_set():
                consumer.stop()
            consumer.run()
        finally:
            with self._changed:
                del self._calls[call]

    def open(self, *, ranges: int = 4, drained: bool = False) -> TunnelReader:
        """A client for a program that writes its own loop: `read`, `checkpoint`, and heartbeats in the background.

        All that `consume` says of channels, reading ahead and ranges that fail holds here.

        Args:
            ranges: how many deliveries may be read and not checkpointed, each of another channel, or table of one.
            drained: `read` returns None when all that was there at the call has been checkpointed, also if the source
                gets rows all the time.

        Raises:
            TunnelError: the tunnel does not exist, or is of another source or schema.
        """
        record = self.store.get(self.name)

        def make(reader: TunnelReader) -> TunnelWorker:
            return TunnelWorker(
                self.store,
                record,
                self._options,
                reader.deliver,
                threads=ranges,
                drained=drained,
                ending=reader.ending,
                shown=self.shown,
            )

        return TunnelReader(make)

    def stop(self) -> None:
        """End every `consume` that has begun, after the ranges at hand, in another thread. Readers of `open` run on."""
        with self._changed:
            calls = list(self._calls.values())
        for stopped, consumer in calls:
            stopped.set()
            if consumer is not None:
                consumer.stop()

    def resume(self, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """Let clients have parked channels again, these or all, from their checkpoints on; returns which.

        Raises:
            TunnelError: the tunnel does not exist, or has no channel of that name.
        """
        return self.store.resume(self.name, channels)

    def pause_base(self, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """Have no more chunks of existing rows read, while the changes are read on; returns the paused channels.

        Clients hear of it at their next heartbeat; the ranges that are planned by then are read to their end. Channels
        that read no existing rows beside their changes are left alone.

        Raises:
            TunnelError: the tunnel does not exist, has no channel of that name, or reads its existing rows before its
                changes, which would wait, too.
        """
        state = self.store.state(self.name)
        before = [
            channel.id
            for channel in state.channels.values()
            if channel.is_base and channel.state is not ChannelState.TERMINATED
        ]
        if before:
            raise TunnelError(
                f"tunnel {self.name!r} reads its existing rows before its changes, "
                f"in {len(before)} channels that are not done: "
                "while they were paused, no changes would be read, either. Stop its clients, "
                "which continue where they were, or pause their limit (`spark-channel limits pause`)"
            )
        return self.store.pause_base(self.name, channels)

    def resume_base(self, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """Let the chunks of existing rows be read again, from where `pause_base` left them; returns which channels.

        Raises:
            TunnelError: the tunnel does not exist, or has no channel of that name.
        """
        return self.store.pause_base(self.name, channels, paused=False)

    def split(self, channel: str) -> tuple[str, ...]:
        """Divide a stream channel while the tunnel is read; returns the channels that take its place.

        It ends after the ranges that are assigned, and the new channels open when those are processed, so that no
        change of a row is delivered before an earlier one. Files, and tables by a cursor column whose primary key has
        a whole number.

        Raises:
            TunnelError: the tunnel has no such stream channel, or it has ended. UnsupportedError: its source's
                channels cannot be divided.
        """
        source = StreamSource(self._options)
        source.check(self.store.get(self.name))
        return self.store.split(self.name, channel, source.feed.divide)

    def add_table(self, table: str) -> None:
        """Follow one more table of option `tables` while the tunnel is read: its existing rows, and its changes from
        now on. The publication has it already.

        Kept in the store: a client hears of it with its next range or heartbeat, and restarts continue with it. Its
        existing rows are read when the transactions that run now have ended.

        Raises:
            TunnelError: the tunnel has the table. UnsupportedError: it is of one table.
            ChannelError: the table cannot be followed; says why.
        """
        self._join(table, again=False)

    def resnapshot(self, table: str) -> None:
        """Read the existing rows of one table of option `tables` again, while its changes and other tables go on.

        They arrive as `_op = read`, with the columns that the table has now. A row that only the target has is not
        removed from it.

        Raises:
            TunnelError: the tunnel does not have the table. UnsupportedError: it is of one table.
            ChannelError: the table cannot be read so; says why.
        """
        self._join(table, again=True)

    def check_table(self, table: str) -> None:
        """Check that `add_table` and `resnapshot` can read one table of the source.

        Raises:
            ChannelError: it cannot be followed; says why.
        """
        StreamSource(self._options).feed.joining(table, again=False)

    def remove_table(self, table: str, *, at_once: bool = False) -> None:
        """Stop following one table of option `tables`. The others continue: no row of them is lost or read again.

        Assigned ranges are delivered with its rows; its later changes are not delivered. The source may have dropped
        the table, and option `tables` may still name it. `at_once`, with the name that the tunnel has for it: while no
        client reads the tunnel, assigned ranges lose its rows, too, which may be what cannot be read.

        Raises:
            TunnelError: the tunnel does not have the table, or no other one. UnsupportedError: it is of one table.
        """
        source = StreamSource(self._options)
        source.check(self.store.get(self.name))
        leave, tables = source.feed.leaving(table), source.feed.tables

        def left(token: Token) -> Token:
            return leave(token) if table in tables(token) or not at_once else token

        def has_no_other(token: Token) -> bool:
            return {*tables(token)} == {table}

        self.store.continued(self.name, left, at_once=has_no_other if at_once else None)

    def _join(self, table: str, *, again: bool) -> None:
        source = StreamSource(self._options)
        source.check(self.store.get(self.name))
        channel = self.store.continued(self.name, source.feed.joining(table, again=again))
        joined = self.store.state(self.name).channels.get(channel)
        if joined is not None and joined.paused:
            _log.warning(
                "existing rows of tunnel %r are paused, also those of %s: "
                "`spark-channel tunnel resume-base %s` has them read",
                self.name,
                table,
                self.store.named(self.name),
            )


def _tables(feed: ChangeFeed, channels: Collection[Channel]) -> set[str]:
    """The names of the tables of its stream channels."""
    return {
        name for channel in channels if not channel.is_base for name in feed.tables(channel.token)
    }


def _timed(channel: Channel, lag: FeedLag | None, at: float, now: float) -> FeedLag | None:
    """Return `lag` with the seconds since the last checkpoint, by the store's clock, if the source reports no time.

    What waits came after that checkpoint, so it has waited for so long at most.
    """
    if lag is None or lag.seconds is not None or lag.rows is None:
        return lag
    return replace(lag, seconds=max(0.0, now - at) if lag.rows else 0.0)


def _lag(channel: Channel, source: StreamSource | None) -> tuple[FeedLag | None, str]:
    """Return the lag of `channel`, or None and the reason if the source does not report it."""
    if channel.is_base:
        split = base_split(channel)
        return (FeedLag(0, 0) if channel.token == READ else FeedLag(split.rows, split.nbytes)), ""
    if channel.state is ChannelState.TERMINATED:  # later changes belong to another channel
        return FeedLag(0, 0, 0.0), ""
    if source is None:
        return None, ""
    try:
        return source.feed.lag(channel.token), ""
    except ChannelError as error:
        return None, str(error)


def _in_flight(channel: Channel, clients: Mapping[str, Client], now: float) -> InFlight | None:
    """Return the last report of the channel's client, unless it has ended or is silent for too long."""
    client = clients.get(channel.client)
    if channel.in_flight is None or client is None or has_ended(client.host, client.process):
        return None
    if now - client.last_seen > client.timeout:
        return None
    # Each heartbeat and each checkpoint reports the rows.
    return InFlight(
        channel.in_flight, max(0.0, now - max(client.last_seen, channel.checkpointed_at))
    )
