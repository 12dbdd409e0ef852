"""Why a NameNode does not answer a client that lacks what it asks for, which hdfs-native does not say: it waits."""

import os
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

__all__ = ["Answer", "addresses", "ask", "folder", "settings"]

_SECONDS = 2.0
_PORT = 8020
_HELLO = b"hrpc\x09\x00\xdf"
"""Version 9 of Hadoop's protocol, no class of service, and SASL (-33)."""
_NEGOTIATE = b"\x0a\x08\x02\x10\x00\x18\x41\x22\x00\x28\x01" + b"\x02\x10\x01"
"""The header of call -33, which belongs to no user and is not sent again; and: say how you take logins."""


class Answer(NamedTuple):
    """What a server says or does, for people; `kerberos`: it is a NameNode that takes nobody without."""

    text: str
    kerberos: bool = False


def folder() -> str | None:
    """Where the configuration is, as hdfs-native looks for it; None = nowhere."""
    home = os.environ.get("HADOOP_HOME")
    return os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)


def settings() -> dict[str, str]:
    """Those of core-site.xml and hdfs-site.xml; {} without a configuration."""
    properties: dict[str, str] = {}
    top = folder()
    for name in ("core-site.xml", "hdfs-site.xml") if top else ():
        try:
            site = ElementTree.parse(Path(str(top), name))  # noqa: S314 - the cluster's own configuration
        except (OSError, ElementTree.ParseError):
            continue
        for entry in site.iter("property"):
            properties[entry.findtext("name", "").strip()] = entry.findtext("value", "").strip()
    return properties


def addresses(root: str, configuration: dict[str, str]) -> list[tuple[str, int]]:
    """The NameNodes of `hdfs://host:port`, `hdfs://nameservice` or `hdfs://`; [] if the settings name none."""
    parts = urlsplit(root if urlsplit(root).netloc else configuration.get("fs.defaultFS", ""))
    if not parts.hostname or parts.scheme != "hdfs":
        return []
    service = parts.netloc
    names = [
        name.strip() for name in configuration.get(f"dfs.ha.namenodes.{service}", "").split(",")
    ]
    texts = [
        configuration.get(f"dfs.namenode.rpc-address.{service}.{name}", "")
        for name in names
        if name
    ]
    places = [urlsplit(f"//{address}") for address in texts if address] or [parts]
    return [(url.hostname, url.port or _PORT) for url in places if url.hostname]


def ask(host: str, port: int) -> Answer:
    """Connect, and have the server say how it takes logins. Takes four seconds at most, beside those of the name."""
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            connection.settimeout(_SECONDS)
            connection.sendall(
                _HELLO + len(_NEGOTIATE).to_bytes(4, "big") + _NEGOTIATE,
            )
            answer = connection.recv(4096)
    except TimeoutError:
        return Answer(f"{host}:{port} says nothing")
    except OSError as error:
        return Answer(f"{host}:{port}: {error.strerror or error}")
    if b"KERBEROS" in answer and b"SIMPLE" not in answer:
        return Answer(f"{host}:{port} asks for Kerberos", kerberos=True)
    if b"SIMPLE" in answer:
        return Answer(f"{host}:{port} is a server of Hadoop that takes logins without Kerberos")
    return Answer(f"{host}:{port} is no NameNode: it does not speak Hadoop's protocol")
