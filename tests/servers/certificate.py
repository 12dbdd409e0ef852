"""Certificates of 127.0.0.1, for servers of the tests."""

import subprocess
from pathlib import Path

__all__ = ["create_certificate"]


def create_certificate(folder: Path) -> None:
    """Write `ca.pem` and `server.pem`, which has the key, too."""
    command = "openssl req -new -x509 -days 2 -nodes -subj /CN=127.0.0.1 -newkey rsa:2048"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run([*command.split(), *more], cwd=folder, check=True, capture_output=True)
    text = (folder / "key.pem").read_text() + (folder / "ca.pem").read_text()
    (folder / "server.pem").write_text(text)
