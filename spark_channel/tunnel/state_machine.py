"""The store's side of the protocol: what a heartbeat does to a tunnel's channels and clients. Pure.

One call is one transaction: the store loads a `TunnelState`, calls, and writes what differs. Nothing here
depends on clocks for safety: a hand-over always raises the version, and a checkpoint is a
compare-and-set by the owner. A clock that is wrong makes a take-over early or late, never wrong.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from spark_channel.connectors.base.contract import Token
from spark_channel.errors import ChannelLostError, ClientExpiredError, TunnelError
from spark_channel.tunnel.records import (
    PARTITION,
    UNTIL,
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    TokenTest,
    TunnelState,
)

__all__ = [
    "FORCED_AFTER",
    "Shares",
    "assigned",
    "checkpoint",
    "connect",
    "continued",
    "disconnect",
    "hand_out",
    "handed_out",
    "heartbeat",
    "is_blocked",
    "is_ready",
    "park",
    "pause_base",
    "release",
    "resume",
    "resume_base",
    "share",
    "split",
]


Shares = tuple[dict[str, str], tuple[str, ...]]
"""(free channel -> client that gets it, channels that their clients must give back)."""

FORCED_AFTER = 3
"""Heartbeats after which a channel that its client does not give back is taken from it."""
_HELD = (ChannelState.OPEN, ChannelState.CLOSING)
_OVER = (ChannelState.CLOSED, ChannelState.TERMINATED)


def share(
    channels_of: Mapping[str, Sequence[str]],
    leaving: Mapping[str, int],
    free: Sequence[str],
    requests: Mapping[str, Sequence[str]] | None = None,
) -> Shares:
    """Decide which clients get `free` channels, and which give some back.

    `channels_of`: client -> its open channels, every live client with an entry. `leaving`: client -> how many it is
    giving back already; each is free only when its client says so, and counts for no client until then.
    `requests`: client -> channels that it asks for first (they were in its unfinished batch).
    """
    clients = sorted(channels_of)
    if not clients:
        return {}, ()
    on_the_way = sum(leaving.values())
    total = sum(len(channels_of[client]) for client in clients) + len(free) + on_the_way
    floor, extra = divmod(total, len(clients))
    # Those who hold most keep the extra ones, so that nothing moves for the remainder's sake.
    order = sorted(clients, key=lambda client: (-len(channels_of[client]), client))
    target = {client: floor + (number < extra) for number, client in enumerate(order)}
    counts = {client: len(channels_of[client]) for client in clients}
    client_of: dict[str, str] = {}
    requested_by = {
        channel: client for client in clients for channel in (requests or {}).get(client, ())
    }
    for channel in sorted(free, key=lambda channel: channel not in requested_by):
        client = requested_by.get(channel, "")
        if not client or counts[client] >= target[client]:
            client = min(
                clients,
                key=lambda client: (counts[client] - target[client], counts[client], client),
            )
        client_of[channel] = client
        counts[client] += 1
    back = tuple(
        channel
        for client in clients
        for channel in list(channels_of[client])[target[client] :]
        if counts[client] > target[client]
    )
    return client_of, back


def connect(state: TunnelState, client: Client, now: float) -> TunnelState:
    """Add a client. It gets its channels at its first heartbeat."""
    return replace(state, clients={**state.clients, client.id: replace(client, last_seen=now)})


def disconnect(state: TunnelState, client: str) -> TunnelState:
    """Remove a client, and free its channels. Has no effect for an unknown client."""
    clients = {key: entry for key, entry in state.clients.items() if key != client}
    return _without_lost(TunnelState(state.channels, clients))


def heartbeat(
    state: TunnelState,
    client: str,
    report: Sequence[ChannelStatus],
    now: float,
    *,
    gone: Collection[str] = (),
    wanted: Collection[str] = (),
) -> TunnelState:
    """Apply one heartbeat of `client`: take its report, drop silent clients, and assign channels.

    `gone`: clients whose process is known to have ended. `wanted`: channels that `client` asks for first.

    Raises:
        ClientExpiredError: the client was silent for longer than its timeout, and must reconnect.
    """
    if client not in state.clients:
        raise ClientExpiredError(
            f"client {client} is not known to the tunnel: "
            "it was silent for longer than its heartbeatTimeout, and its channels went to others"
        )
    # A clock that was set back must not keep the dead alive: no client was seen later than now.
    clients = {
        key: replace(entry, last_seen=now if key == client else min(entry.last_seen, now))
        for key, entry in state.clients.items()
        if key == client or (key not in gone and now - entry.last_seen <= entry.timeout)
    }
    state = _without_lost(TunnelState(state.channels, clients))
    channels = dict(state.channels)
    for status in report:
        channel = channels.get(status.id)
        if channel is None or channel.client != client:
            continue  # not its channel
        if status.version > channel.version and status.state in _OVER:
            channels[status.id] = replace(
                channel,
                state=status.state,
                version=status.version,
                client="",
                closing_beats=0,
                in_flight=None,
            )
        else:
            channels[status.id] = replace(channel, in_flight=status.in_flight)
    for channel in list(channels.values()):
        if channel.client == client and channel.state is ChannelState.CLOSING:
            beats = channel.closing_beats + 1
            channels[channel.id] = (
                _freed(channel) if beats > FORCED_AFTER else replace(channel, closing_beats=beats)
            )
    return _shared(TunnelState(channels, clients), client, wanted)


def assigned(state: TunnelState, client: str) -> tuple[Channel, ...]:
    """The answer to a heartbeat: the channels that `client` should have, those to be given back included."""
    return tuple(channel for channel in state.channels.values() if channel.client == client)


def is_ready(channel: Channel, channels: Mapping[str, Channel]) -> bool:
    """Whether a client may have it: not drained and not parked, and all its parents are drained."""
    return channel.state not in (ChannelState.TERMINATED, ChannelState.PARKED) and all(
        channels[parent].state is ChannelState.TERMINATED for parent in channel.parents
    )


def is_blocked(channel: Channel, channels: Mapping[str, Channel]) -> bool:
    """Whether nothing of it can be read before a channel is resumed: it is parked, or an ancestor is."""
    return channel.state is ChannelState.PARKED or any(
        is_blocked(channels[parent], channels) for parent in channel.parents
    )


def hand_out(
    state: TunnelState, client: str, channel: str, sequence: int, end: Token
) -> TunnelState:
    """Fix the range that follows checkpoint `sequence`; one that is fixed already stays.

    Two may be fixed at a time: the one after the present checkpoint, and the one after that. None is fixed beyond
    the end of a channel that was split: that end counts, and the channel is drained.

    Raises:
        ChannelLostError: the channel is not this client's, or its checkpoint has moved.
    """
    owned = _owned(state, client, channel)
    if _ends_before(owned, sequence):
        return state
    if owned.sequence == sequence:
        return state if owned.pending is not None else _with(state, replace(owned, pending=end))
    if owned.sequence + 1 == sequence and owned.pending is not None:
        return state if owned.after is not None else _with(state, replace(owned, after=end))
    raise _moved(owned, sequence)


def handed_out(state: TunnelState, channel: str, sequence: int) -> Token:
    """The end that counts of a range that `hand_out` has fixed, or would not."""
    state_of_channel = state.channels[channel]
    counts = (
        state_of_channel.pending
        if state_of_channel.sequence == sequence
        else state_of_channel.after
    )
    counts = state_of_channel.until if counts is None else counts
    assert counts is not None
    return counts


def split(
    state: TunnelState, channel: str, divide: Callable[[Token], Sequence[Token]]
) -> tuple[TunnelState, tuple[str, ...]]:
    """Let a stream channel end after its assigned ranges, and others begin there.

    Each has a part of the later changes. They open when it is drained. `divide` is the feed's.

    Raises:
        TunnelError: the channel does not exist, is a split of existing rows, or has ended. Errors of `divide`.
    """
    divided = state.channels.get(channel)
    streams = [stream for stream in state.channels.values() if not stream.is_base]
    if divided is None or divided.is_base:
        problem = "is a base channel" if divided is not None else "is not there"
        raise TunnelError(
            f"channel {channel!r} {problem}: name a stream channel, one of {', '.join(stream.id for stream in streams)}"
        )
    successors = [stream.id for stream in streams if channel in stream.parents]
    if divided.state is ChannelState.TERMINATED or successors:
        problem = f"was split into {', '.join(successors)}" if successors else "is drained"
        raise TunnelError(f"channel {channel!r} {problem}, and cannot be split")
    end = divided.last_end
    tokens = divide(end)
    ends = [None] * len(tokens) if divided.until is None else divide(divided.until)
    number = 1 + max(int(stream.id.rpartition("-")[2]) for stream in streams)
    first_place = 1 + max(one_channel.place for one_channel in state.channels.values())
    successors_made = {}
    for offset, (token, until) in enumerate(zip(tokens, ends, strict=True)):
        params = (
            {PARTITION: divided.partition}
            if until is None
            else {PARTITION: divided.partition, UNTIL: until}
        )
        key = f"stream-{number + offset}"
        successors_made[key] = Channel(key, first_place + offset, params, (channel,), token=token)
    ended = replace(divided, params={**divided.params, UNTIL: end})
    return replace(state, channels={**state.channels, channel: ended, **successors_made}), tuple(
        successors_made
    )


def continued(
    state: TunnelState,
    change: Callable[[Token], Token],
    *,
    at_once: TokenTest | None = None,
) -> tuple[TunnelState, str]:
    """Let a tunnel's only stream channel end after its assigned ranges, and another begin there.

    `change` makes the new channel's token from that end. Returns the new channel. `at_once`: while no client has one,
    the channels change themselves, with their assigned ranges; one that has an end is over, if it is true of its token.

    Raises:
        TunnelError: its only stream channel has an end that the user set. Errors of `change`.
    """
    streams = [stream for stream in state.channels.values() if not stream.is_base]
    parents = {parent for stream in streams for parent in stream.parents}
    last = next((stream for stream in streams if stream.id not in parents), None)
    if last is None or last.until is not None:
        problem = "has no stream channel" if last is None else f"ends at {dict(last.until or {})}"
        raise TunnelError(f"the tunnel {problem}: its tables cannot be changed")
    open_ones = [stream for stream in streams if stream.state is not ChannelState.TERMINATED]
    if at_once is not None and not any(stream.client for stream in open_ones):
        for stream in open_ones:
            is_over = stream.until is not None and at_once(stream.token)
            state = _with(state, _over(stream) if is_over else _changed(stream, change))
        return state, last.id
    split_state, (key,) = split(state, last.id, lambda token: [change(token)])
    return _with(split_state, replace(split_state.channels[key], paused=last.paused)), key


def _over(channel: Channel) -> Channel:
    return replace(
        channel,
        state=ChannelState.TERMINATED,
        version=channel.version + 1,
        pending=None,
        after=None,
    )


def _changed(channel: Channel, change: Callable[[Token], Token]) -> Channel:
    """With another token, and other ends of its assigned ranges, of which one may have nothing left.

    Such a range would end where it begins, as where nothing is new.
    """
    token = change(channel.token)
    ends = [change(end) for end in (channel.pending, channel.after) if end is not None]
    ends_left = [end for start, end in itertools.pairwise([token, *ends]) if end != start]
    pending, after = [*ends_left, None, None][:2]
    params = dict(channel.params)
    if channel.until is not None:
        params[UNTIL] = change(channel.until)
    return replace(
        channel,
        token=token,
        pending=pending,
        after=after,
        params=params,
    )


def checkpoint(
    state: TunnelState,
    client: str,
    channel: str,
    sequence: int,
    token: Token,
    now: float = 0.0,
    in_flight: Mapping[str, int] | None = None,
) -> TunnelState:
    """Move the checkpoint from `sequence` to the next one, at `token`; the same again changes nothing.

    `in_flight`: the rows that the client has read after it.

    Raises:
        ChannelLostError: the channel is not this client's, or its checkpoint is another one.
    """
    owned = _owned(state, client, channel)
    if owned.sequence == sequence + 1 and owned.token == token:
        return state  # the answer to an earlier call was lost
    if owned.sequence != sequence:
        raise _moved(owned, sequence)
    return _with(
        state,
        replace(
            owned,
            sequence=sequence + 1,
            token=token,
            pending=owned.after,
            after=None,
            checkpointed_at=now,
            in_flight=in_flight,
        ),
    )


def park(state: TunnelState, client: str, channel: str, sequence: int, reason: str) -> TunnelState:
    """Take a channel from all clients, since the range after checkpoint `sequence` fails. Repeating it has no effect.

    Raises:
        ChannelLostError: the channel is not this client's, or its checkpoint has moved.
    """
    current = state.channels.get(channel)
    if (
        current is not None
        and current.state is ChannelState.PARKED
        and current.sequence == sequence
    ):
        return state  # the answer to an earlier call was lost
    owned = _owned(state, client, channel)
    if owned.sequence != sequence:
        raise _moved(owned, sequence)
    return _with(state, replace(_freed(owned), state=ChannelState.PARKED, parked=reason))


def resume(state: TunnelState, channel: str) -> TunnelState:
    """Let clients have a parked channel again, from its checkpoint on. One that is not parked is left unchanged."""
    parked = state.channels[channel]
    if parked.state is not ChannelState.PARKED:
        return state
    return _with(state, replace(_freed(parked), parked=""))


def pause_base(state: TunnelState, channel: str) -> TunnelState:
    """Have no more chunks of existing rows read beside a channel's changes. Its clients hear of it by heartbeat.

    One that reads no existing rows beside its changes is left unchanged.
    """
    current = state.channels[channel]
    return _with(state, replace(current, paused=True)) if current.has_base else state


def resume_base(state: TunnelState, channel: str) -> TunnelState:
    """Have the chunks read again, from where they were paused. One that is not paused is left unchanged."""
    current = state.channels[channel]
    return _with(state, replace(current, paused=False)) if current.paused else state


def release(state: TunnelState, client: str, channels: Collection[str]) -> TunnelState:
    """Free the channels that a client no longer needs as it ends, before it disconnects. Others' are left alone."""
    freed = {
        key: _freed(channel)
        if key in channels and channel.client == client and channel.state in _HELD
        else channel
        for key, channel in state.channels.items()
    }
    return replace(state, channels=freed)


def _ends_before(channel: Channel, sequence: int) -> bool:
    """Whether the range after checkpoint `sequence` would begin where the channel ends."""
    if channel.until is None:
        return False
    if channel.sequence == sequence:
        return channel.pending is None and channel.token == channel.until
    is_next = channel.sequence + 1 == sequence and channel.pending is not None
    return is_next and channel.after is None and channel.pending == channel.until


def _owned(state: TunnelState, client: str, channel: str) -> Channel:
    owned = state.channels.get(channel)
    if (
        owned is None
        or client not in state.clients
        or owned.client != client
        or owned.state not in _HELD
    ):
        raise ChannelLostError(f"channel {channel} does not belong to client {client} any more")
    return owned


def _moved(channel: Channel, sequence: int) -> ChannelLostError:
    return ChannelLostError(
        f"the checkpoint of channel {channel.id} is number {channel.sequence}, and not {sequence}"
    )


def _with(state: TunnelState, channel: Channel) -> TunnelState:
    return replace(state, channels={**state.channels, channel.id: channel})


def _freed(channel: Channel) -> Channel:
    return replace(
        channel,
        state=ChannelState.CLOSED,
        version=channel.version + 1,
        client="",
        closing_beats=0,
        in_flight=None,
    )


def _without_lost(state: TunnelState) -> TunnelState:
    """Free the channels of clients that do not exist."""
    channels = {
        key: _freed(channel)
        if channel.state in _HELD and channel.client not in state.clients
        else channel
        for key, channel in state.channels.items()
    }
    return replace(state, channels=channels)


def _shared(state: TunnelState, client: str, requests: Collection[str]) -> TunnelState:
    channels = dict(state.channels)
    channels_of: dict[str, list[str]] = {key: [] for key in state.clients}
    leaving: dict[str, int] = dict.fromkeys(state.clients, 0)
    free = []
    for channel in channels.values():
        if channel.state is ChannelState.OPEN:
            channels_of[channel.client].append(channel.id)
        elif channel.state is ChannelState.CLOSING:
            leaving[channel.client] += 1
        elif is_ready(channel, channels):
            free.append(channel.id)
    client_of, back = share(channels_of, leaving, free, {client: list(requests)})
    for key, to in client_of.items():
        channels[key] = replace(
            channels[key],
            state=ChannelState.OPEN,
            version=channels[key].version + 1,
            client=to,
            closing_beats=0,
        )
    for key in back:
        channels[key] = replace(
            channels[key],
            state=ChannelState.CLOSING,
            version=channels[key].version + 1,
            closing_beats=0,
        )
    return replace(state, channels=channels)
