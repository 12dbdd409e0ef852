"""A server that says whatever a test has it say, to each connection in its own thread."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["rogue", "self_signed"]


@contextmanager
def rogue(speak: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port. `speak` has a connection to itself; it is closed at the end of the test."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(client: socket.socket) -> None:
        try:
            speak(client)
        except (OSError, ValueError):
            pass
        finally:
            client.close()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            clients.append(client)
            threads.append(threading.Thread(target=serve, args=(client,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for client in clients:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in (accepting, *threads):
            thread.join(10)


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """(a server's context, the file of its certificate for 127.0.0.1)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rogue")]),
        datetime.datetime.now(datetime.UTC),
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    path, key_path = folder / "certificate.pem", folder / "key.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key_path)
    return context, path
