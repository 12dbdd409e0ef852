"""A tunnel's client: it sends heartbeats, and starts and stops channels at its host.

READY -> STARTED (`start`) -> ENDED (`close`, or a fatal error).
"""

import random
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Token
from spark_channel.errors import ChannelError, ClientExpiredError, TunnelError, TunnelStoreError
from spark_channel.plain_text import log_of
from spark_channel.processes import host_name, process_name
from spark_channel.retry import reconnect_delay
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    ClientState,
    ConnectState,
    TunnelRecord,
    TunnelStore,
)

__all__ = [
    "ChannelConnects",
    "ChannelHost",
    "OpenChannel",
    "StartChannel",
    "Step",
    "StopChannel",
    "TunnelClient",
]

_PAUSES = 4
"""A heartbeat costs more the more channels there are: those that channels' ends ask for are this many times as far
apart as one takes, so that they are a fifth of the time at most."""

_log = log_of(__name__)


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Open what reading `channel` needs, then call `dialled` or `dial_failed`."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class StartChannel:
    """Run the pipeline of `channel`; call `ended` when it is over."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class StopChannel:
    """Ask the pipeline of channel `id` to end; `ended` follows."""

    id: str


Step = OpenChannel | StartChannel | StopChannel


@dataclass(slots=True)
class _Connect:
    channel: Channel
    version: int
    state: ChannelState
    connect: ConnectState = ConnectState.WAIT
    dialled: bool = False
    dialling: bool = True
    finished: bool = False
    dropped: bool = False  # the store no longer names it


class ChannelConnects:
    """The connects of one client: the client's side of the protocol. Pure. Used by one thread at a time.

    `_obey` has the table of the protocol (state in the store, state of the connect, action). The methods return steps,
    which the client carries out.
    """

    def __init__(self) -> None:
        self._connects: dict[str, _Connect] = {}

    def report(self) -> tuple[ChannelStatus, ...]:
        """Return the states that the next heartbeat reports to the store."""
        return tuple(
            ChannelStatus(key, connection.version, connection.state)
            for key, connection in self._connects.items()
            if not connection.dropped
        )

    def running(self) -> tuple[Channel, ...]:
        """The channels whose pipelines run and were not asked to end."""
        return tuple(
            connection.channel
            for connection in self._connects.values()
            if connection.connect is ConnectState.RUNNING
        )

    def states(self) -> dict[str, ConnectState]:
        """The state of each connect."""
        return {key: connection.connect for key, connection in self._connects.items()}

    def merge(self, answer: Sequence[Channel]) -> list[Step]:
        """Merge the store's list: only its ids stay, a higher version wins, and an equal version takes its state."""
        steps: list[Step] = []
        named = {channel.id for channel in answer}
        for key, connection in list(self._connects.items()):
            if key not in named:
                steps += self._drop(key, connection)
        for channel in answer:
            steps += self._take(channel)
        return steps

    def dialled(self, key: str) -> list[Step]:
        """Note that the dial of channel `key` succeeded."""
        connection = self._connects.get(key)
        if connection is None:
            return []
        connection.dialling, connection.dialled = False, True
        if connection.dropped or connection.connect is ConnectState.CLOSED:
            return self._forget_dropped(key, connection)
        return self._obey(connection)

    def dial_failed(self, key: str) -> list[Step]:
        """The dial failed: the channel goes back, for another client or another try."""
        connection = self._connects.get(key)
        if connection is None:
            return []
        connection.dialling = False
        if connection.connect is ConnectState.WAIT:
            connection.connect = ConnectState.CLOSED
            self._give_back(connection)
        return self._forget_dropped(key, connection)

    def ended(self, key: str, *, finished: bool) -> list[Step]:
        """The pipeline of `key` is over; `finished`: the channel is drained for good."""
        connection = self._connects.get(key)
        if connection is None:
            return []
        connection.connect, connection.finished = ConnectState.CLOSED, finished
        if not connection.dropped:
            self._give_back(connection)
        return self._forget_dropped(key, connection)

    def _take(self, channel: Channel) -> list[Step]:
        connection = self._connects.get(channel.id)
        if connection is None:
            return self._dial(channel)
        if connection.dropped:
            return []  # its old pipeline has not ended: it is dialled after that
        if channel.version < connection.version:
            return []
        over = connection.state in (ChannelState.CLOSED, ChannelState.TERMINATED)
        newer = channel.version > connection.version
        if over and newer and channel.state is ChannelState.OPEN and not connection.dialling:
            return self._dial(channel)  # given back, and given to this client once more
        connection.channel, connection.version, connection.state = (
            channel,
            channel.version,
            channel.state,
        )
        return self._obey(connection)

    def _dial(self, channel: Channel) -> list[Step]:
        connection = _Connect(channel, channel.version, channel.state)
        self._connects[channel.id] = connection
        if channel.state is ChannelState.OPEN:
            return [OpenChannel(channel)]
        connection.dialling = False
        return self._obey(connection)

    def _obey(self, connection: _Connect) -> list[Step]:
        match connection.state, connection.connect:
            case ChannelState.OPEN, ConnectState.WAIT if connection.dialled:
                connection.connect = ConnectState.RUNNING
                return [StartChannel(connection.channel)]
            case ((ChannelState.OPEN | ChannelState.CLOSING), ConnectState.CLOSED):
                self._give_back(connection)
            case ChannelState.CLOSING, ConnectState.WAIT:
                connection.connect = ConnectState.CLOSED
                self._give_back(connection)
            case ChannelState.CLOSING, ConnectState.RUNNING:
                connection.connect = ConnectState.CLOSING
                return [StopChannel(connection.channel.id)]
        return []

    def _give_back(self, connection: _Connect) -> None:
        connection.version += 1
        connection.state = ChannelState.TERMINATED if connection.finished else ChannelState.CLOSED

    def _drop(self, key: str, connection: _Connect) -> list[Step]:
        connection.dropped = True
        if connection.connect is ConnectState.RUNNING:
            connection.connect = ConnectState.CLOSING
            return [StopChannel(key)]
        if connection.connect is ConnectState.WAIT:
            connection.connect = ConnectState.CLOSED
        return self._forget_dropped(key, connection)

    def _forget_dropped(self, key: str, connection: _Connect) -> list[Step]:
        if (
            connection.dropped
            and connection.connect is ConnectState.CLOSED
            and not connection.dialling
        ):
            del self._connects[key]
        return []


class ChannelHost(Protocol):
    """Runs the channels of a client. Its methods are called under the client's lock and must return immediately."""

    def dial(self, channel: Channel) -> None:
        """Prepare to run `channel`; then `TunnelClient.dialled` or `dial_failed`, from any thread."""
        ...

    def run_channel(self, channel: Channel) -> None:
        """Begin with `channel`; `TunnelClient.ended` when it is over."""
        ...

    def stop_channel(self, channel: str) -> None:
        """End with `channel` as soon as its range is done; `TunnelClient.ended` follows."""
        ...

    def heartbeat_done(self) -> None:
        """A heartbeat was answered. Called outside the lock, by the thread of the heartbeat."""
        ...

    def failed(self, error: BaseException) -> None:
        """The tunnel was deleted or replaced: the client has ended."""
        ...


class TunnelClient:
    """One client of one tunnel; safe to use from several threads.

    A store that does not answer is tried again after a random while; a client that was given up by the tunnel
    reconnects under another id, after its channels were stopped.

    Args:
        record: the tunnel as it was when its source was checked; another one of the same name is an error.
        interval, timeout: seconds between heartbeats, and of silence after which others take over.
        in_flight: see `ChannelStatus`, of a channel.
    """

    def __init__(
        self,
        store: TunnelStore,
        record: TunnelRecord,
        host: ChannelHost,
        *,
        tag: str = "",
        interval: float = 30.0,
        timeout: float = 300.0,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        in_flight: Callable[[str], Mapping[str, int] | None] = lambda channel: None,
    ) -> None:
        self._in_flight = in_flight
        self._store = store
        self._record = record
        self._host = host
        self._tag = tag
        self._interval = interval
        self._timeout = timeout
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._chance = chance
        self._changed = threading.Condition(threading.RLock())
        self._beating = threading.Lock()
        self._connects = ChannelConnects()
        self._id = ""
        self._state = ClientState.READY
        self._due_now = False
        self._resting = False
        self._wanted: tuple[str, ...] = ()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def state(self) -> ClientState:
        return self._state

    def start(self) -> None:
        """Connect, take the first channels, and keep heartbeats going from a thread. Again after an error: the same
        client, so that an answer that was lost leaves no second one behind.

        Raises:
            TunnelError: the tunnel does not exist, or the store does not answer.
        """
        with self._changed:
            if self._state is not ClientState.READY:
                raise TunnelError(f"this client of tunnel {self._record.name!r} is {self._state}")
            self._connect()
        self.heartbeat()
        with self._changed:
            if self.state is not ClientState.READY:
                return  # it was closed meanwhile
            self._state = ClientState.STARTED
        self._thread = threading.Thread(
            target=self._beat_on, name="spark-channel-tunnel", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give all channels back, and end. Safe twice; the host has stopped its pipelines before."""
        with self._changed:
            was, self._state = self._state, ClientState.ENDED
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if was is not ClientState.ENDED and self._id:
            try:
                self._store.disconnect(self._record.name, self._id)
            except TunnelError as error:
                _log.warning(
                    "tunnel %s: %s; its channels are free after the timeout",
                    self._record.name,
                    error,
                )

    def heartbeat(self, wanted: Collection[str] = ()) -> None:
        """One heartbeat now, from this thread; `wanted`: channels to ask for first.

        Raises:
            TunnelError: the tunnel was deleted or replaced, or the store does not answer.
        """
        with self._beating:
            with self._changed:
                self._due_now = False
                report = self._connects.report()
                wanted = (*wanted, *self._wanted)
                client = self._id
            report = tuple(
                replace(status, in_flight=self._in_flight(status.id)) for status in report
            )
            try:
                answer = self._store.heartbeat(self._record.name, client, report, wanted)
            except ClientExpiredError as error:
                _log.warning("tunnel %s: %s", self._record.name, error)
                with self._changed:
                    self._do(self._connects.merge(()))
                    self._connect()
                return
            with self._changed:
                self._do(self._connects.merge(answer))
        self._host.heartbeat_done()

    def want(self, channels: Collection[str]) -> None:
        """Ask for these channels first from now on."""
        with self._changed:
            self._wanted = tuple(channels)

    def wake(self) -> None:
        """Send a heartbeat now, since the state has changed."""
        with self._changed:
            self._due_now = True
            self._changed.notify_all()

    def dialled(self, channel: str) -> None:
        with self._changed:
            self._do(self._connects.dialled(channel))

    def dial_failed(self, channel: str) -> None:
        with self._changed:
            self._do(self._connects.dial_failed(channel))
        self.wake()

    def ended(self, channel: str, *, finished: bool) -> None:
        """The host is done with `channel`; `finished`: it is drained for good."""
        with self._changed:
            self._do(self._connects.ended(channel, finished=finished))
        self.wake()

    def running(self) -> tuple[Channel, ...]:
        """The channels that are to be run, as the last answer gave them."""
        with self._changed:
            return self._connects.running()

    def hand_out(self, channel: str, sequence: int, end: Token) -> Token:
        """See `state_machine.hand_out`."""
        return self._store.hand_out(self._record.name, self._id, channel, sequence, end)

    @property
    def named(self) -> str:
        """The tunnel as an argument of `spark-channel tunnel`."""
        return self._store.named(self._record.name)

    def checkpoint(
        self, channel: str, sequence: int, token: Token, in_flight: Mapping[str, int] | None = None
    ) -> None:
        """See `state_machine.checkpoint`."""
        self._store.checkpoint(self._record.name, self._id, channel, sequence, token, in_flight)

    def park(self, channel: str, sequence: int, reason: str) -> None:
        """See `state_machine.park`."""
        self._store.park(self._record.name, self._id, channel, sequence, reason)

    def release(self, channels: Collection[str]) -> None:
        """Give these channels back now, before `close`, and stop sending heartbeats."""
        with self._changed:
            if self._state is not ClientState.STARTED:
                return
            self._resting = True
        with self._beating:
            self._store.release(self._record.name, self._id, channels)

    def _connect(self) -> None:
        record = self._store.get(self._record.name)
        if record.id != self._record.id:
            raise TunnelError(
                f"tunnel {record.name!r} was reset or created again while it was read: its positions are void. "
                "Begin again, with a new checkpoint directory"
            )
        if self._state is not ClientState.READY or not self._id:
            self._id = uuid.uuid4().hex[:12]
        self._store.connect(
            record.name,
            Client(
                self._id,
                self._tag,
                self._timeout,
                host=host_name(),
                process=process_name(),
            ),
        )
        self._due_now = True

    def _do(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case OpenChannel(channel):
                    self._host.dial(channel)
                case StartChannel(channel):
                    self._host.run_channel(channel)
                case StopChannel(key):
                    self._host.stop_channel(key)

    def _beat_on(self) -> None:
        wait, failures, pause = self._interval, 0, 0.0
        while True:
            began = self._clock.now()
            with self._changed:
                while self._state is ClientState.STARTED:
                    seconds_left = began + (pause if self._due_now else wait) - self._clock.now()
                    if seconds_left <= 0 and not self._resting:
                        break
                    self._clock.wait(self._changed, None if self._resting else seconds_left)
                if self._state is not ClientState.STARTED:
                    return
            began = self._clock.now()
            try:
                self.heartbeat()
                wait, failures = self._interval, 0
                pause = min(wait, _PAUSES * (self._clock.now() - began))
            except TunnelStoreError as error:
                wait = min(self._interval, reconnect_delay(failures, self._chance))
                failures += 1
                with self._changed:
                    self._due_now = False
                _log.warning(
                    "tunnel %s: %s; trying again in %.1f s", self._record.name, error, wait
                )
            except ChannelError as error:
                with self._changed:
                    self._state = ClientState.ENDED
                    self._do(self._connects.merge(()))
                self._host.failed(error)
                return
