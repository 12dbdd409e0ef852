"""A TCP relay on 127.0.0.1, whose network a test may cut: connections break, and new ones are refused.

Or it falls silent: nothing breaks and nothing is answered, as with a server that is stopped.
"""

import socket
import threading
from collections.abc import Callable

__all__ = ["Relay"]


class Relay:
    """Passes bytes between those who connect to `port` and `to`, until `end`.

    `last`: once a client has sent these bytes, nothing passes any more, in any connection, until `speak`.
    """

    def __init__(self, to: tuple[str, int], last: bytes = b"") -> None:
        self._to = to
        self._last = last
        self.silent = threading.Event()
        self._speaks = threading.Event()
        self._speaks.set()
        self._sides: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._open(0)

    def cut(self) -> None:
        """Break each connection, and refuse new ones until `mend`."""
        shut(self._listening)
        self._accepting.join(20)
        self._listening.close()
        for each in self._sides:
            shut(each)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        self._sides.clear()
        self._threads.clear()

    def mend(self) -> None:
        self._open(self.port)

    def speak(self) -> None:
        """Pass on what has come meanwhile, and all that comes."""
        self._last = b""
        self._speaks.set()

    def end(self) -> None:
        self.speak()
        if self._listening.fileno() >= 0:
            self.cut()

    def _open(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return  # cut
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            self._sides += (near, far)
            for source, sink, hears in ((near, far, self._hear), (far, near, self._wait)):
                thread = threading.Thread(
                    target=carry, args=(source, sink, hears), name="relay", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _hear(self, data: bytes) -> None:
        if self._last and self._last in data:
            self._speaks.clear()
            self.silent.set()
        self._speaks.wait()

    def _wait(self, _data: bytes) -> None:
        self._speaks.wait()


def carry(
    source: socket.socket, sink: socket.socket, hears: Callable[[bytes], None] = lambda _: None
) -> None:
    """Pass all bytes on, to the end; then `sink` hears of it, and `source` is closed."""
    try:
        while data := source.recv(65_536):
            hears(data)
            sink.sendall(data)
    except OSError:
        pass  # one of them is gone
    shut(sink)
    source.close()


def shut(side: socket.socket) -> None:
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is shut already
