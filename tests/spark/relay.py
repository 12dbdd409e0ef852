"""A TCP relay on 127.0.0.1, whose network a test may cut: connections break, and new ones are refused."""

import socket
import threading

__all__ = ["Relay"]


class Relay:
    """Passes bytes between those who connect to `port` and `to`, until `end`."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
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

    def end(self) -> None:
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
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(
                    target=carry, args=(source, sink), name="relay", daemon=True
                )
                self._threads.append(thread)
                thread.start()


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Pass all bytes on, to the end; then `sink` hears of it, and `source` is closed."""
    try:
        while data := source.recv(65_536):
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
