"""Apache Kafka for the tests: one broker in its own process and directory, with free ports, removed when it is closed.

`Relay` is a proxy between clients and the broker, for the faults that a broker cannot be made to produce.
"""

import shutil
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.servers.certificate import create_certificate
from tests.servers.installed import not_installed
from tests.servers.ports import free_ports

__all__ = ["PASSWORD", "KafkaServer", "Relay", "kafka_server"]

JARS = Path(__file__).resolve().parents[2] / "artifacts" / "kafka"
PASSWORD = "s3cret of/tester:%"
_START_SECONDS = 60.0
_CLUSTER = "abcdefghijklmnopqrstuw"


@dataclass
class KafkaServer:
    """A broker that anonymous clients reach at `address`.

    `login` is another listener, for the users `tester`, who may do all, and `guest`, who may read topic `orders`;
    `tls` is the same one over TLS, with the certificate of `create_certificate`. `relayed` leads through `relay`.
    """

    folder: Path
    relay: "Relay"
    ports: dict[str, int] = field(
        default_factory=lambda: dict(
            zip(("plain", "relayed", "login", "tls", "control"), free_ports(5), strict=True)
        )
    )
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['plain']}"

    @property
    def login(self) -> str:
        return f"127.0.0.1:{self.ports['login']}"

    @property
    def tls(self) -> str:
        return f"127.0.0.1:{self.ports['tls']}"

    @property
    def relayed(self) -> str:
        return f"127.0.0.1:{self.relay.port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_java("-Xmx256m"), "kafka.Kafka", str(self.folder / "server.properties")],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.admin.list_topics(timeout=1)
                break
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"Kafka does not start: {text[-2000:]}") from None
        self.create_users()

    def create_users(self) -> None:
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        made = self.admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("tester", scram, PASSWORD.encode())]
        )
        for each in made.values():
            each.result(10)
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                "orders",
                ResourcePatternType.LITERAL,
                "User:guest",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.READ, AclOperation.DESCRIBE)
        ]
        for each in self.admin.create_acls(rules).values():
            each.result(10)

    def kill(self) -> None:
        """End the broker as a machine that loses its power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def is_alive(self) -> bool:
        return self._process is not None

    @cached_property
    def admin(self) -> AdminClient:
        # librdkafka would log each refused connection while the broker starts.
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; one of that name is deleted first. `config` has `_` where Kafka's names have dots."""
        self.delete(*{topic} & self.topics().keys())
        given = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=given)
        (made,) = self.admin.create_topics([new]).values()
        made.result(20)
        self._wait_for(lambda found: found.get(topic) == partitions)

    def delete(self, *topics: str) -> None:
        if topics:
            for each in self.admin.delete_topics(list(topics)).values():
                each.result(20)
            self._wait_for(lambda found: found.keys().isdisjoint(topics))

    def _wait_for(self, seen: Callable[[dict[str, int]], bool]) -> None:
        """The controller answers before the broker knows."""
        deadline = time.monotonic() + 20
        while not seen(self.topics()):
            assert time.monotonic() < deadline, "the broker does not follow its controller"
            time.sleep(0.01)

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        found = self.admin.list_topics(timeout=10).topics
        return {
            name: len(each.partitions) for name, each in found.items() if not name.startswith("__")
        }

    def add_partitions(self, topic: str, count: int) -> None:
        (made,) = self.admin.create_partitions([NewPartitions(topic, count)]).values()
        made.result(20)
        self._wait_for(lambda found: found.get(topic) == count)

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        wanted = [TopicPartition(topic, partition, before)]
        for each in self.admin.delete_records(wanted).values():
            each.result(20)

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record, visible or not."""
        client = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "end",
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            return int(
                client.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
            )
        finally:
            client.close()

    def stored(self, topic: str) -> list[bytes | None]:
        """The values that partition 0 holds, also those of aborted transactions."""
        client = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "stored",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        found = []
        try:
            client.assign([TopicPartition(topic, 0, 0)])
            while message := client.poll(10):
                if message.error():
                    break
                found.append(message.value())
        finally:
            client.close()
        return found


@contextmanager
def kafka_server() -> Iterator[KafkaServer]:
    if not JARS.is_dir():
        not_installed("artifacts/kafka (org.apache.kafka:kafka_2.13 of Maven)")
    folder = Path(tempfile.mkdtemp(prefix="kafka-"))
    with relay() as between:
        server = KafkaServer(folder, between)
        between.target = server.ports["relayed"]
        try:
            create_certificate(folder)
            (folder / "server.properties").write_text(_properties(server))
            _format(folder)
            server.start()
            yield server
        finally:
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _java(*options: str) -> list[str]:
    program = shutil.which("java")
    assert program is not None, "no java is installed; run .ci/bootstrap"
    quick = (
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    )
    return [program, "-cp", f"{JARS}/*", *quick, *options]


def _format(folder: Path) -> None:
    command = [*_java(), "kafka.tools.StorageTool", "format", "-t", _CLUSTER]
    command += ["-c", str(folder / "server.properties")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _properties(server: KafkaServer) -> str:
    at = {name: f"{name.upper()}://127.0.0.1:{port}" for name, port in server.ports.items()}
    shown = {**at, "relayed": f"RELAYED://127.0.0.1:{server.relay.port}"}
    kinds = "PLAIN:PLAINTEXT,RELAYED:PLAINTEXT,CONTROL:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL"
    users = f'user_tester="{PASSWORD}" user_guest="{PASSWORD}"'
    module = "org.apache.kafka.common.security"
    lines = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{server.ports['control']}",
        "controller.listener.names": "CONTROL",
        "inter.broker.listener.name": "PLAIN",
        "listeners": ",".join(at.values()),
        "advertised.listeners": ",".join(each for name, each in shown.items() if name != "control"),
        "listener.security.protocol.map": kinds,
        "log.dirs": server.folder / "data",
        "auto.create.topics.enable": "false",
        # The reader states times in other units, so the broker has to take them.
        "log.message.timestamp.after.max.ms": (1 << 63) - 1,
        # A broker that was killed is back after this time.
        "broker.session.timeout.ms": 1000,
        "broker.heartbeat.interval.ms": 300,
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:tester",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": server.folder / "server.pem",
    }
    for listener in ("login", "tls"):
        lines |= {
            f"listener.name.{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"listener.name.{listener}.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
            f"listener.name.{listener}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


class Relay:
    """Passes frames of Kafka's protocol on, but for the answers that are to be lost.

    `lose`: how many answers to writes are lost with their connections. `mute`: no answer to a fetch is passed on.
    """

    PRODUCE, FETCH = 0, 1

    def __init__(self) -> None:
        self.port = self.target = 0
        self.lose = self.writes = 0
        self.mute = False

    def reset(self) -> None:
        self.lose = self.writes = 0
        self.mute = False

    def passes(self, key: int) -> bool | None:
        """Whether an answer is passed on; None ends its connection."""
        if key == self.PRODUCE and self.lose:
            self.lose -= 1
            return None
        return not (key == self.FETCH and self.mute)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        served = cast("_RelayServer", self.server)
        keys: dict[int, int] = {}
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", served.relay.target)) as broker,
        ):
            served.sockets += [self.request, broker]
            back = threading.Thread(target=self._answers, args=(broker, keys), daemon=True)
            back.start()
            while frame := _frame(self.request):
                key, _, number = struct.unpack_from(">hhi", frame, 4)
                keys[number] = key
                served.relay.writes += key == Relay.PRODUCE
                broker.sendall(frame)

    def _answers(self, broker: socket.socket, keys: dict[int, int]) -> None:
        relay = cast("_RelayServer", self.server).relay
        with suppress(OSError):
            while frame := _frame(broker):
                (number,) = struct.unpack_from(">i", frame, 4)
                passes = relay.passes(keys.pop(number, -1))
                if passes is None:
                    break
                if passes:
                    self.request.sendall(frame)
        for each in (broker, self.request):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _frame(link: socket.socket) -> bytes:
    """The next frame with its length in front; empty at the end."""
    head = _whole(link, 4)
    return head + _whole(link, struct.unpack(">i", head)[0]) if head else b""


def _whole(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


class _RelayServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, relay: Relay) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.relay = relay
        self.sockets: list[socket.socket] = []


@contextmanager
def relay() -> Iterator[Relay]:
    made = Relay()
    with _RelayServer(made) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            for each in server.sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            thread.join()
