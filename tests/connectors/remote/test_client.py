"""File servers that misbehave: the reader bounds its time and memory, and sends them no password."""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

paramiko = pytest.importorskip("paramiko", reason="paramiko is not installed")
pytest.importorskip("pyftpdlib", reason="pyftpdlib is not installed")

from paramiko.sftp import CMD_HANDLE, CMD_NAME, CMD_READDIR  # noqa: E402 - behind importorskip

from spark_channel.connectors.remote import Address, Entry, client, connect, ftp  # noqa: E402 - behind importorskip
from spark_channel.connectors.remote.sftp import _BoundedClient  # noqa: E402 - behind importorskip
from tests.servers.files import PASSWORD, USER, _Login, sftp_server  # noqa: E402 - behind importorskip
from tests.servers.rogue import rogue, self_signed  # noqa: E402 - behind importorskip
from tests.service.fuzz import resident_mib  # noqa: E402 - behind importorskip

Answer = Callable[[str], bytes]


def address(kind: str, port: int, **settings: str) -> Address:
    own = {"user": USER, "password": PASSWORD, "timeout": "2", **settings}
    return Address.from_uri(f"{kind}://127.0.0.1:{port}", tuple(own.items()))


def ftp_says(
    answer: Answer, data: bytes = b"", heard: list[str] | None = None, end: str = "226 done"
) -> Callable[[socket.socket], None]:
    """A control connection; PASV names a host that it does not have, as a server that sends callers elsewhere."""

    def speak(client: socket.socket) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(2)
        with listener, client.makefile("rw", encoding="utf-8", newline="") as lines:
            client.sendall(b"220 ready\r\n")
            for line in lines:
                command = line.strip().partition(" ")[0].upper()
                if heard is not None:
                    heard.append(line.strip())
                if reply := answer(command):
                    client.sendall(reply)
                elif command == "PASV":
                    waiting, _, _ = select.select([listener], [], [], 0)
                    if waiting:  # the client went on without the data of a command that was refused
                        listener.accept()[0].close()
                    port = listener.getsockname()[1]
                    client.sendall(f"227 go (10,255,255,1,{port >> 8},{port & 255})\r\n".encode())
                elif command in ("MLSD", "LIST", "RETR"):
                    client.sendall(b"150 it comes\r\n")
                    with listener.accept()[0] as sending:
                        sending.sendall(data)
                    client.sendall(f"{end}\r\n".encode())
                elif command == "STOR":
                    client.sendall(b"150 send it\r\n")
                    with listener.accept()[0] as receiving:
                        while receiving.recv(1 << 16):
                            pass
                    client.sendall(f"{end}\r\n".encode())
                else:
                    client.sendall(
                        {"USER": b"331 who\r\n", "PASS": b"230 in\r\n"}.get(command, b"200 ok\r\n")
                    )

    return speak


def nothing(command: str) -> bytes:
    return b""


def listed(*lines: str) -> list[Entry]:
    data = "".join(f"{line}\r\n" for line in lines).encode()
    with rogue(ftp_says(nothing, data)) as port, connect(address("ftp", port)) as remote:
        return remote.entries("/in")


def test_a_listing_comes_from_the_server_itself_and_names_may_have_their_folder() -> None:
    found = listed(
        "type=file;size=3;modify=20240131083000; /in/a b.csv",
        "type=dir; c",
        "type=cdir; .",
        "type=pdir; ..",
    )
    assert [(each.path, each.is_folder, each.size) for each in found] == [
        ("/in/a b.csv", False, 3),
        ("/in/c", True, 0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "type=file;size=1; ../../etc/passwd",
        "type=file;size=1; /etc/passwd",
        "type=dir; ..",
        "type=dir; .",
        "type=dir; ",
        "type=file;size=-5; a",
        "type=file;size=99999999999999999999; a",
        "type=file;size=x; a",
        "type=file;size=1;modify=never; a",
        f"type=file;size={'9' * 5_000}; a",
        "type=file;size=1; " + "x" * 9_000,
    ],
    ids=lambda line: line[:30],
)
def test_names_and_sizes_that_lead_elsewhere_are_refused(line: str) -> None:
    with pytest.raises(OSError, match=r"the server|answer|got more than"):
        listed(line)


@pytest.mark.parametrize(
    ("end", "lines", "message"),
    [
        ("226 Output truncated to 1 matches", 1, "Output truncated"),
        ("226-Sorry, we were unable to read [.]\r\n226 0 matches total", 0, "unable to read"),
        ("226 Transfer done (but failed to open directory).", 0, "failed to open"),
        ("226 3 matches total", 2, "lists 2 names, and says that it lists 3"),
    ],
)
def test_the_answer_after_a_listing_is_read(end: str, lines: int, message: str) -> None:
    data = "".join(f"type=file;size=1; {number}\r\n" for number in range(lines)).encode()
    says = ftp_says(nothing, data, end=end)
    with (
        rogue(says) as port,
        connect(address("ftp", port)) as remote,
        pytest.raises(ConnectionError, match=message),
    ):
        remote.entries("/in")


@pytest.mark.parametrize("line", ["rest of a name.csv", "type=file;size=1 a", "file; a"])
def test_a_line_that_is_no_fact_is_refused(line: str) -> None:
    """The second half of a name with a line's end in it was left out without a word."""
    with pytest.raises(OSError, match="a form that is not known"):
        listed("type=file;size=1; a.csv", line)


def test_a_name_that_the_server_shows_and_does_not_have_is_refused() -> None:
    folders = iter([b"250 the folder\r\n"])

    def answer(command: str) -> bytes:
        if command == "CWD":
            return next(folders, b"550 no such folder\r\n")
        return {
            "MLSD": b"500 what\r\n",
            "MDTM": b"550 no such file\r\n",
            "SIZE": b"550 no such file\r\n",
        }.get(command, b"")

    line = b"-rw-r--r--    1 0        0               5 Nov 29 07:17 %b\r\n"
    with (
        rogue(ftp_says(answer, line % b"." + line % b"gr?n.csv")) as port,
        connect(address("ftp", port)) as remote,
        pytest.raises(OSError, match=r"lists 'gr\?n\.csv', and says that it has no such file"),
    ):
        remote.entries("/in")


def test_a_file_of_which_the_server_kept_a_part_is_not_written() -> None:
    def answer(command: str) -> bytes:
        return {"CWD": b"550 a file\r\n", "SIZE": b"213 3\r\n"}.get(command, b"")

    with rogue(ftp_says(answer)) as port, connect(address("ftp", port)) as remote:
        file = remote.open_write("/in/a.csv")
        file.write(b"id\n1\n")
        with pytest.raises(OSError, match="the server has 3 bytes, and 5 bytes were sent"):
            file.close()


def test_a_listing_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ftp, "MOST_ENTRIES", 1_000)
    with pytest.raises(ConnectionError, match="more than 1000 lines"):
        listed(*["type=file;size=1; a"] * 2_000)


def test_an_answer_without_end_is_cut() -> None:
    def answer(command: str) -> bytes:
        return b"230-more\r\n" * 20_000 if command == "PASS" else b""

    with (
        rogue(ftp_says(answer)) as port,
        pytest.raises(ConnectionError, match="more than 10000 lines"),
    ):
        connect(address("ftp", port))


def test_a_folder_that_is_linked_into_itself_is_no_endless_read() -> None:
    class Loop:
        def entries(self, path: str) -> list[Entry]:
            return [Entry(f"{path}/again", is_folder=True)]

    with pytest.raises(OSError, match="linked into itself"):
        list(client._listed(Loop(), "/in", recursive=True))  # type: ignore[arg-type] # a stand-in


def test_ftps_sends_a_password_only_to_a_server_that_it_knows(tmp_path: Path) -> None:
    """Python's library checks no certificate by itself."""
    context, certificate = self_signed(tmp_path)
    heard: list[str] = []

    def speak(client: socket.socket) -> None:
        client.sendall(b"220 ready\r\n")
        client.recv(100)
        client.sendall(b"234 go\r\n")
        with (
            context.wrap_socket(client, server_side=True) as secure,
            secure.makefile("r", newline="") as lines,
        ):
            for line in lines:
                heard.append(line.strip())
                secure.sendall(b"331 who\r\n" if line.startswith("USER") else b"230 ok\r\n")

    with rogue(speak) as port:
        with pytest.raises(ConnectionError, match=r"certificate is not trusted.*sslrootcert"):
            connect(address("ftps", port))
        assert heard == []
        with pytest.raises(OSError, match="cannot be read"):
            connect(address("ftps", port, sslrootcert="/no/file"))
        for known in ({"sslrootcert": str(certificate)}, {"sslmode": "require"}):
            connect(address("ftps", port, **known)).close()
            assert f"PASS {PASSWORD}" in heard
            heard.clear()


def test_data_of_another_host_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With active=true the server connects, and so may anyone else."""
    with (
        rogue(ftp_says(nothing, b"type=file;size=1; a\r\n")) as port,
        connect(address("ftp", port)) as remote,
    ):
        control: Any = remote._ftp.sock  # type: ignore[attr-defined] # a part of FTP

        class Elsewhere:
            def getpeername(self) -> tuple[str, int]:
                return ("10.255.255.2", 21)

            def __getattr__(self, name: str) -> Any:
                return getattr(control, name)

        remote._ftp.sock = Elsewhere()  # type: ignore[attr-defined] # a part of FTP
        with socket.create_server(("127.0.0.1", 0)) as other:
            place = ("127.0.0.1", other.getsockname()[1])
            monkeypatch.setattr(remote._ftp, "makepasv", lambda: place)  # type: ignore[attr-defined] # a part of FTP
            with pytest.raises(ConnectionError, match=r"the data came from 127\.0\.0\.1"):
                remote.entries("/in")


def test_a_packet_of_gigabytes_before_the_host_is_known_is_refused() -> None:
    before = resident_mib()

    def speak(client: socket.socket) -> None:
        client.sendall(b"SSH-2.0-rogue\r\n" + struct.pack(">I", (1 << 30) + 4))
        while True:
            client.sendall(bytes(1 << 16))

    with rogue(speak) as port, pytest.raises(ConnectionError, match="a packet of"):
        connect(address("sftp", port, host_key="any"))
    assert resident_mib() - before < 64


@pytest.mark.parametrize("step", ["silent", "login", "channel", "subsystem", "version"])
def test_a_server_that_does_not_go_on_costs_the_timeout(step: str) -> None:
    """paramiko waits an hour for a channel, and forever for SFTP in it."""
    ended, key = threading.Event(), paramiko.ECDSAKey.generate()

    class Stuck(_Login):
        def check_auth_password(self, username: str, password: str) -> int:
            if step == "login":
                ended.wait(20)
            return int(paramiko.AUTH_SUCCESSFUL)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            if step == "channel":
                ended.wait(20)
            return int(paramiko.OPEN_SUCCEEDED)

        def check_channel_subsystem_request(self, channel: Any, name: str) -> bool:
            if step == "subsystem":
                ended.wait(20)
            return True

    def speak(client: socket.socket) -> None:
        if step == "silent":
            ended.wait(20)
            return
        with paramiko.Transport(client) as transport:
            transport.add_server_key(key)
            transport.start_server(server=Stuck())
            ended.wait(20)

    with rogue(speak) as port:
        start = time.monotonic()
        try:
            with pytest.raises(OSError, match=r"within 1 s|[Tt]imed? ?out|banner"):
                connect(address("sftp", port, host_key="any", timeout="1"))
            assert time.monotonic() - start < 8
        finally:
            ended.set()


def message(*parts: Any) -> Any:
    made = paramiko.Message()
    for part in parts:
        made.add_int(part) if isinstance(part, int) else made.add_string(part)
    return paramiko.Message(made.asbytes())


@pytest.mark.parametrize(
    "parts", [(4_294_967_295,), (1, "../x", "long", 0), (1, "a/b", "long", 0), (1, "", "long", 0)]
)
def test_a_listing_over_sftp_names_files_of_its_folder(parts: tuple[Any, ...]) -> None:
    """Four billion names were announced in 20 bytes, and each was held."""
    client: Any = object.__new__(_BoundedClient)
    client._request = lambda kind, *_: (
        (CMD_NAME, message(*parts)) if kind == CMD_READDIR else (CMD_HANDLE, message("h"))
    )
    with pytest.raises(OSError, match="which is not the name of a file"):
        list(client.bounded_entries("/in"))


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # paramiko's thread that asks
def test_a_connection_that_is_lost_is_an_error_of_the_system(tmp_path: Path) -> None:
    tmp_path.joinpath("a").write_bytes(bytes(3 << 20))
    with sftp_server(tmp_path) as (port, host_key):
        remote: Any = connect(address("sftp", port, host_key=host_key))
        file = remote.open_read("/a")
        assert len(file.read(10)) == 10
        remote.close()
        with pytest.raises(OSError):
            file.read()
        with pytest.raises(OSError):
            remote.entries("/")
        with pytest.raises(OSError):
            remote.info("/a")
        file.close()
