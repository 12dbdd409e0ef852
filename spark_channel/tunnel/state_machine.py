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


def share(
    held: Mapping[str, Sequence[str]],
    leaving: Mapping[str, int],
    free: Sequence[str],
    wanted: Mapping[str, Sequence[str]] | None = None,
) -> Shares:
    """Decide which clients get `free` channels, and which give some back.

    `held`: client -> its open channels, every live client with an entry. `leaving`: client -> how many it is
    giving back already; each is free only when its client says so, and counts for no client until then.
    `wanted`: client -> channels that it asks for first (they were in its unfinished batch).
    """
    clients = sorted(held)
    if not clients:
        return {}, ()
    on_the_way = sum(leaving.values())
    total = sum(len(held[client]) for client in clients) + len(free) + on_the_way
    floor, extra = divmod(total, len(clients))
    # Those who hold most keep the extra ones, so that nothing moves for the remainder's sake.
    order = sorted(clients, key=lambda client: (-len(held[client]), client))
    target = {client: floor + (number < extra) for number, client in enumerate(order)}
    counts = {client: len(held[client]) for client in clients}
    given: dict[str, str] = {}
    asked = {channel: client for client in clients for channel in (wanted or {}).get(client, ())}
    for channel in sorted(free, key=lambda each: each not in asked):
        client = asked.get(channel, "")
        if not client or counts[client] >= target[client]:
            client = min(
                clients, key=lambda each: (counts[each] - target[each], counts[each], each)
            )
        given[channel] = client
        counts[client] += 1
    back = tuple(
        channel
        for client in clients
        for channel in list(held[client])[target[client] :]
        if counts[client] > target[client]
    )
    return given, back


FORCED_AFTER = 3
"""Heartbeats after which a channel that its client does not give back is taken from it."""

_HELD = (ChannelState.OPEN, ChannelState.CLOSING)
_OVER = (ChannelState.CLOSED, ChannelState.TERMINATED)


def connect(state: TunnelState, client: Client, now: float) -> TunnelState:
    """Add a client. It gets its channels at its first heartbeat."""
    return replace(state, clients={**state.clients, client.id: replace(client, last_seen=now)})


def disconnect(state: TunnelState, client: str) -> TunnelState:
    """Remove a client, and free its channels. Has no effect for an unknown client."""
    clients = {key: each for key, each in state.clients.items() if key != client}
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
        key: replace(each, last_seen=now if key == client else min(each.last_seen, now))
        for key, each in state.clients.items()
        if key == client or (key not in gone and now - each.last_seen <= each.timeout)
    }
    state = _without_lost(TunnelState(state.channels, clients))
    channels = dict(state.channels)
    for said in report:
        channel = channels.get(said.id)
        if channel is None or channel.client != client:
            continue  # not its channel
        if said.version > channel.version and said.state in _OVER:
            channels[said.id] = replace(
                channel,
                state=said.state,
                version=said.version,
                client="",
                closing_beats=0,
                in_flight=None,
            )
        else:
            channels[said.id] = replace(channel, in_flight=said.in_flight)
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
    found = _owned(state, client, channel)
    if _ends_before(found, sequence):
        return state
    if found.sequence == sequence:
        return state if found.pending is not None else _with(state, replace(found, pending=end))
    if found.sequence + 1 == sequence and found.pending is not None:
        return state if found.after is not None else _with(state, replace(found, after=end))
    raise _moved(found, sequence)


def handed_out(state: TunnelState, channel: str, sequence: int) -> Token:
    """The end that counts of a range that `hand_out` has fixed, or would not."""
    found = state.channels[channel]
    counts = found.pending if found.sequence == sequence else found.after
    counts = found.until if counts is None else counts
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
    found = state.channels.get(channel)
    streams = [each for each in state.channels.values() if not each.is_base]
    if found is None or found.is_base:
        what = "is a base channel" if found is not None else "is not there"
        raise TunnelError(
            f"channel {channel!r} {what}: name a stream channel, one of {', '.join(each.id for each in streams)}"
        )
    successors = [each.id for each in streams if channel in each.parents]
    if found.state is ChannelState.TERMINATED or successors:
        what = f"was split into {', '.join(successors)}" if successors else "is drained"
        raise TunnelError(f"channel {channel!r} {what}, and cannot be split")
    end = found.last_end
    tokens = divide(end)
    ends = [None] * len(tokens) if found.until is None else divide(found.until)
    number = 1 + max(int(each.id.rpartition("-")[2]) for each in streams)
    place = 1 + max(each.place for each in state.channels.values())
    made = {}
    for offset, (token, until) in enumerate(zip(tokens, ends, strict=True)):
        params = (
            {PARTITION: found.partition}
            if until is None
            else {PARTITION: found.partition, UNTIL: until}
        )
        key = f"stream-{number + offset}"
        made[key] = Channel(key, place + offset, params, (channel,), token=token)
    ended = replace(found, params={**found.params, UNTIL: end})
    return replace(state, channels={**state.channels, channel: ended, **made}), tuple(made)


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
    streams = [each for each in state.channels.values() if not each.is_base]
    parents = {parent for each in streams for parent in each.parents}
    last = next((each for each in streams if each.id not in parents), None)
    if last is None or last.until is not None:
        what = "has no stream channel" if last is None else f"ends at {dict(last.until or {})}"
        raise TunnelError(f"the tunnel {what}: its tables cannot be changed")
    open_ones = [each for each in streams if each.state is not ChannelState.TERMINATED]
    if at_once is not None and not any(each.client for each in open_ones):
        for each in open_ones:
            is_over = each.until is not None and at_once(each.token)
            state = _with(state, _over(each) if is_over else _changed(each, change))
        return state, last.id
    made, (key,) = split(state, last.id, lambda token: [change(token)])
    return _with(made, replace(made.channels[key], paused=last.paused)), key


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
    ends = [change(each) for each in (channel.pending, channel.after) if each is not None]
    kept = [end for start, end in itertools.pairwise([token, *ends]) if end != start]
    pending, after = [*kept, None, None][:2]
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
    found = _owned(state, client, channel)
    if found.sequence == sequence + 1 and found.token == token:
        return state  # the answer to an earlier call was lost
    if found.sequence != sequence:
        raise _moved(found, sequence)
    return _with(
        state,
        replace(
            found,
            sequence=sequence + 1,
            token=token,
            pending=found.after,
            after=None,
            checkpointed_at=now,
            in_flight=in_flight,
        ),
    )


def park(state: TunnelState, client: str, channel: str, sequence: int, why: str) -> TunnelState:
    """Take a channel from all clients, since the range after checkpoint `sequence` fails. Repeating it has no effect.

    Raises:
        ChannelLostError: the channel is not this client's, or its checkpoint has moved.
    """
    known = state.channels.get(channel)
    if known is not None and known.state is ChannelState.PARKED and known.sequence == sequence:
        return state  # the answer to an earlier call was lost
    found = _owned(state, client, channel)
    if found.sequence != sequence:
        raise _moved(found, sequence)
    return _with(state, replace(_freed(found), state=ChannelState.PARKED, parked=why))


def resume(state: TunnelState, channel: str) -> TunnelState:
    """Let clients have a parked channel again, from its checkpoint on. One that is not parked is left unchanged."""
    found = state.channels[channel]
    if found.state is not ChannelState.PARKED:
        return state
    return _with(state, replace(_freed(found), parked=""))


def pause_base(state: TunnelState, channel: str) -> TunnelState:
    """Have no more chunks of existing rows read beside a channel's changes. Its clients hear of it by heartbeat.

    One that reads no existing rows beside its changes is left unchanged.
    """
    found = state.channels[channel]
    return _with(state, replace(found, paused=True)) if found.has_base else state


def resume_base(state: TunnelState, channel: str) -> TunnelState:
    """Have the chunks read again, from where they were paused. One that is not paused is left unchanged."""
    found = state.channels[channel]
    return _with(state, replace(found, paused=False)) if found.paused else state


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
    found = state.channels.get(channel)
    if (
        found is None
        or client not in state.clients
        or found.client != client
        or found.state not in _HELD
    ):
        raise ChannelLostError(f"channel {channel} does not belong to client {client} any more")
    return found


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


def _shared(state: TunnelState, client: str, wanted: Collection[str]) -> TunnelState:
    channels = dict(state.channels)
    held: dict[str, list[str]] = {key: [] for key in state.clients}
    leaving: dict[str, int] = dict.fromkeys(state.clients, 0)
    free = []
    for channel in channels.values():
        if channel.state is ChannelState.OPEN:
            held[channel.client].append(channel.id)
        elif channel.state is ChannelState.CLOSING:
            leaving[channel.client] += 1
        elif is_ready(channel, channels):
            free.append(channel.id)
    given, back = share(held, leaving, free, {client: list(wanted)})
    for key, to in given.items():
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
