"""The client's side of the protocol: which channels it dials, runs and closes. Pure.

The table of the protocol (what the store says, where the connect is, what happens) is `_obey`; everything
that has to be done comes back as steps, which the client carries out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_channel.tunnel.records import Channel, ChannelStatus
from spark_channel.tunnel.states import ChannelState, ConnectState

__all__ = ["Connects", "Dial", "Start", "Step", "Stop"]


@dataclass(frozen=True, slots=True)
class Dial:
    """Open what reading `channel` needs, then call `dialled` or `dial_failed`."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Start:
    """Run the pipeline of `channel`; call `ended` when it is over."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the pipeline of channel `id` to end; `ended` follows."""

    id: str


Step = Dial | Start | Stop


@dataclass(slots=True)
class _Connect:
    channel: Channel
    version: int
    state: ChannelState
    connect: ConnectState = ConnectState.WAIT
    dialled: bool = False
    dialling: bool = True
    finished: bool = False
    dropped: bool = False  # the store does not name it any more


class Connects:
    """The connects of one client. Used by one thread at a time."""

    def __init__(self) -> None:
        self._connects: dict[str, _Connect] = {}

    def report(self) -> tuple[ChannelStatus, ...]:
        """What the next heartbeat tells the store."""
        return tuple(
            ChannelStatus(key, each.version, each.state)
            for key, each in self._connects.items()
            if not each.dropped
        )

    def running(self) -> tuple[Channel, ...]:
        """The channels whose pipelines run and were not asked to end."""
        return tuple(each.channel for each in self._connects.values() if each.connect is ConnectState.RUNNING)

    def states(self) -> dict[str, ConnectState]:
        """The state of each connect."""
        return {key: each.connect for key, each in self._connects.items()}

    def merge(self, answer: Sequence[Channel]) -> list[Step]:
        """Take the store's list: only its ids stay, a higher version wins, an equal one takes its state."""
        steps: list[Step] = []
        named = {channel.id for channel in answer}
        for key, each in list(self._connects.items()):
            if key not in named:
                steps += self._drop(key, each)
        for channel in answer:
            steps += self._take(channel)
        return steps

    def dialled(self, key: str) -> list[Step]:
        """The dial of channel `key` succeeded."""
        each = self._connects.get(key)
        if each is None:
            return []
        each.dialling, each.dialled = False, True
        if each.dropped or each.connect is ConnectState.CLOSED:
            return self._forget_dropped(key, each)
        return self._obey(each)

    def dial_failed(self, key: str) -> list[Step]:
        """The dial failed: the channel goes back, for another client or another try."""
        each = self._connects.get(key)
        if each is None:
            return []
        each.dialling = False
        if each.connect is ConnectState.WAIT:
            each.connect = ConnectState.CLOSED
            self._give_back(each)
        return self._forget_dropped(key, each)

    def ended(self, key: str, *, finished: bool) -> list[Step]:
        """The pipeline of `key` is over; `finished`: the channel is drained for good."""
        each = self._connects.get(key)
        if each is None:
            return []
        each.connect, each.finished = ConnectState.CLOSED, finished
        if not each.dropped:
            self._give_back(each)
        return self._forget_dropped(key, each)

    def _take(self, channel: Channel) -> list[Step]:
        each = self._connects.get(channel.id)
        if each is None:
            return self._dial(channel)
        if each.dropped:
            return []  # its old pipeline has not ended: it is dialled after that
        if channel.version < each.version:
            return []
        over = each.state in (ChannelState.CLOSED, ChannelState.TERMINATED)
        newer = channel.version > each.version
        if over and newer and channel.state is ChannelState.OPEN and not each.dialling:
            return self._dial(channel)  # given back, and given to this client once more
        each.channel, each.version, each.state = channel, channel.version, channel.state
        return self._obey(each)

    def _dial(self, channel: Channel) -> list[Step]:
        each = _Connect(channel, channel.version, channel.state)
        self._connects[channel.id] = each
        if channel.state is ChannelState.OPEN:
            return [Dial(channel)]
        each.dialling = False
        return self._obey(each)

    def _obey(self, each: _Connect) -> list[Step]:
        match each.state, each.connect:
            case ChannelState.OPEN, ConnectState.WAIT if each.dialled:
                each.connect = ConnectState.RUNNING
                return [Start(each.channel)]
            case ((ChannelState.OPEN | ChannelState.CLOSING), ConnectState.CLOSED):
                self._give_back(each)
            case ChannelState.CLOSING, ConnectState.WAIT:
                each.connect = ConnectState.CLOSED
                self._give_back(each)
            case ChannelState.CLOSING, ConnectState.RUNNING:
                each.connect = ConnectState.CLOSING
                return [Stop(each.channel.id)]
        return []

    def _give_back(self, each: _Connect) -> None:
        each.version += 1
        each.state = ChannelState.TERMINATED if each.finished else ChannelState.CLOSED

    def _drop(self, key: str, each: _Connect) -> list[Step]:
        each.dropped = True
        if each.connect is ConnectState.RUNNING:
            each.connect = ConnectState.CLOSING
            return [Stop(key)]
        if each.connect is ConnectState.WAIT:
            each.connect = ConnectState.CLOSED
        return self._forget_dropped(key, each)

    def _forget_dropped(self, key: str, each: _Connect) -> list[Step]:
        if each.dropped and each.connect is ConnectState.CLOSED and not each.dialling:
            del self._connects[key]
        return []
