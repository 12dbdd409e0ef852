"""Files on the servers that are used most: OpenSSH, vsftpd, ProFTPD and pure-ftpd, with the settings of Debian."""

import ftplib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.remote import Address, Remote, connect, ftp
from spark_channel.errors import TargetError
from tests.servers.file_servers import PASSWORD, USER, FileServer, file_server

pytest.importorskip("paramiko", reason="paramiko is not installed")

pytestmark = pytest.mark.real_server(
    "OpenSSH, vsftpd, ProFTPD and pure-ftpd of Debian 12", "parquet", "csv", "json", "arrow", "orc"
)

SERVERS = {
    "ftp vsftpd": ("ftp", "vsftpd", False),
    "ftps vsftpd": ("ftps", "vsftpd", True),
    "ftps proftpd": ("ftps", "proftpd", False),
    "ftps pure-ftpd": ("ftps", "pure-ftpd", False),
    "sftp sshd": ("sftp", "sshd", False),
    "sftp proftpd": ("sftp", "proftpd-sftp", False),
}


class Login(NamedTuple):
    """A server, and how a job reaches it."""

    scheme: str
    at: FileServer

    @property
    def settings(self) -> dict[str, str]:
        own = {"user": USER, "password": PASSWORD}
        if self.scheme == "ftps":
            own["sslrootcert"] = str(self.at.certificate)
        if self.scheme == "sftp":
            own["host_key"] = self.at.host_key
        return own

    def uri(self, path: Path) -> str:
        return f"{self.scheme}://127.0.0.1:{self.at.port}{path}"

    def connect(self) -> Remote:
        return connect(Address.from_uri(self.uri(Path("/")), tuple(self.settings.items())))

    def options(self, kind: str, form: str, path: Path, **more: Any) -> dict[str, Any]:
        login = json.dumps(self.settings)
        return {kind: form, "path": self.uri(path), "storageOptions": login, **more}


@pytest.fixture(scope="module", params=SERVERS)
def login(request: pytest.FixtureRequest) -> Iterator[Login]:
    scheme, kind, tls = SERVERS[request.param]
    with file_server(kind, tls=tls) as at:
        yield Login(scheme, at)


@pytest.fixture
def home(login: Login, request: pytest.FixtureRequest) -> Path:
    folder = login.at.home / str(request.node.originalname)
    folder.mkdir()
    login.at.give(folder)
    return folder


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))  # noqa: PTH208 - with the names that begin with a dot


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def write(login: Login, folder: Path, *batches: pa.RecordBatch, overwrite: bool = False) -> None:
    writer, _ = load_writer(login.options("writer", "csv", folder))
    plan = writer.prepare(WriteContext("job", overwrite=overwrite), batches[0].schema)
    assert plan.at_least_once
    receipts = []
    for number, batch in enumerate(batches):
        task = writer.open(plan, number, 0)
        task.write(batch)
        receipts.append(task.close())
    writer.commit(plan, receipts)


def read(login: Login, path: Path) -> list[int]:
    reader, _ = load_reader(login.options("reader", "csv", path))
    batches = [batch for split in reader.split(2) for batch in reader.read(split)]
    return sorted(value for batch in batches for value in batch.column("n").to_pylist())


def test_rows_go_there_and_back(login: Login, home: Path) -> None:
    write(login, home, numbers(1, 2), numbers(3))
    assert read(login, home) == [1, 2, 3]
    write(login, home, numbers(4), overwrite=True)
    assert read(login, home) == [4]
    assert [name.partition("-")[0] for name in _names(home)] == ["part"]


def test_a_large_file_is_read_in_parts(login: Login, home: Path) -> None:
    """More than a buffer, with seeks: each is a data connection of its own over FTP."""
    table = pa.table({"n": range(300_000), "text": [f"{n * 7919:012d}" for n in range(300_000)]})
    pq.write_table(table, home / "a.parquet", row_group_size=100_000)
    assert (home / "a.parquet").stat().st_size > 1 << 20
    reader, _ = load_reader(login.options("reader", "parquet", home / "a.parquet"))
    batches = [batch for split in reader.split(3) for batch in reader.read(split)]
    assert pa.Table.from_batches(batches).sort_by("n").equals(table)


def test_staging_of_a_task_that_was_killed_is_removed(login: Login, home: Path) -> None:
    """vsftpd lists names that begin with a dot only when it is told to."""
    writer, _ = load_writer(login.options("writer", "csv", home))
    plan = writer.prepare(WriteContext("job"), numbers(1).schema)
    writer.open(plan, 0, 0)
    home.joinpath(".spark-channel.job.part-00000-job-0-left-000.csv").write_text("n\n1\n")
    home.joinpath(".spark-channel.older.probe").touch()
    os.utime(home / ".spark-channel.older.probe", (1_700_000_000, 1_700_000_000))
    home.joinpath(".spark-channel.other.probe").touch()
    login.at.give(home)
    writer.abort(plan, [])
    assert _names(home) == [".spark-channel.other.probe"]


def test_names_arrive_as_they_are(login: Login, home: Path) -> None:
    names = [
        " lead.csv",
        "trail.csv ",
        "a -> b.csv",
        "é.csv",
        "st*r[1].csv",
        "q?.csv",
        "semi;x=1 y.csv",
    ]
    for name in names:
        home.joinpath(name).write_text("n\n1\n")
    with login.connect() as remote:
        entries = remote.entries(str(home))
        assert sorted(entry.name for entry in entries if entry.size == 4) == sorted(names)
        assert all(remote.open_read(entry.path).read() == b"n\n1\n" for entry in entries)


def test_a_name_that_is_not_utf8_is_refused_by_name(login: Login, home: Path) -> None:
    os.close(os.open(os.fsencode(home) + b"/gr\xfcn.csv", os.O_CREAT))
    with (
        login.connect() as remote,
        pytest.raises(OSError, match=r"encoding than UTF-8: b'.*gr\\xfcn\.csv"),
    ):
        remote.entries(str(home))


def test_a_folder_that_may_not_be_listed_is_not_empty(login: Login, home: Path) -> None:
    home.chmod(0o300)
    with (
        login.connect() as remote,
        pytest.raises(OSError, match=r"(?i)denied|failed to open|check for"),
    ):
        remote.entries(str(home))
    home.chmod(0o700)


def test_a_size_is_known_after_a_listing_that_failed(login: Login, home: Path) -> None:
    """ProFTPD tells no size while the type is that of a text, which a listing sets."""
    home.joinpath("a.csv").write_text("n\n1\n")
    with login.connect() as remote:
        with pytest.raises(FileNotFoundError):
            remote.entries(str(home / "missing"))
        found = remote.info(str(home / "a.csv"))
        assert found is not None
        assert found.size == 4
        file = remote.open_write(str(home / "b.csv"))
        file.write(b"n\r\n1\n")
        file.close()
    assert home.joinpath("b.csv").read_bytes() == b"n\r\n1\n"


def test_a_link_is_the_file_that_it_leads_to(login: Login, home: Path) -> None:
    """As on a disk. A link to a folder, or to nothing, is no file; nor is a pipe (ProFTPD lists one as a file)."""
    folder = home / "read"
    home.joinpath("other").mkdir()
    folder.mkdir()
    home.joinpath("other", "x.csv").write_text("n\n4242\n")
    folder.joinpath("a.csv").write_text("n\n1\n")
    for name, target in (
        ("plain.csv", "../other/x.csv"),
        ("a -> b.csv", "../other/x.csv"),
        ("é.csv", "a.csv"),
        ("folder", "../other"),
        ("missing.csv", "nothing"),
    ):
        folder.joinpath(name).symlink_to(target)
    login.at.give(home)
    if login.at.kind != "proftpd":
        os.mkfifo(folder / "pipe.csv")
    with login.connect() as remote:
        sizes = {entry.name: entry.size for entry in remote.entries(str(folder))}
    assert sizes == {"a.csv": 4, "plain.csv": 7, "a -> b.csv": 7, "é.csv": 4}
    assert read(login, folder) == [1, 1, 4242, 4242]


def test_a_write_into_a_folder_whose_listing_is_cut_is_refused_before_rows_move() -> None:
    with file_server("pure-ftpd", "-L 5:5") as at:
        at.home.joinpath("a").mkdir()
        for number in range(6):
            at.home.joinpath("a", f"{number}.csv").write_text("n\n1\n")
        at.give(at.home)
        writer, _ = load_writer(Login("ftp", at).options("writer", "csv", at.home / "a"))
        with pytest.raises(TargetError, match="Output truncated to 5 matches"):
            writer.prepare(WriteContext("job"), numbers(1).schema)
        assert len(_names(at.home / "a")) == 6


def test_a_job_whose_files_are_published_does_not_fail_for_a_listing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The folder was small enough when the job began."""
    with file_server("pure-ftpd", "-L 6:5") as at:
        write(Login("ftp", at), at.home / "a", *(numbers(n) for n in range(6)))
        assert len(_names(at.home / "a")) == 6
    assert "has published its files" in caplog.text


@pytest.mark.parametrize("command", ["MDTM", "MLSD"])
def test_a_command_that_the_server_denies(command: str) -> None:
    """Without MDTM no file has a time, but in a listing. A folder that MLSD may not list is not an empty one."""
    with file_server("proftpd", f"<Limit {command}>", "DenyAll", "</Limit>") as at:
        login = Login("ftp", at)
        at.home.joinpath("a.csv").write_text("n\n1\n")
        if command == "MDTM":
            assert read(login, at.home) == [1]
            return
        with login.connect() as remote, pytest.raises(PermissionError, match="does not list"):
            remote.entries(str(at.home))
        writer, _ = load_writer(login.options("writer", "csv", at.home))
        with pytest.raises(TargetError, match="does not list"):
            writer.prepare(WriteContext("job"), numbers(1).schema)


def test_a_listing_that_the_server_cuts_is_an_error() -> None:
    with file_server("pure-ftpd", "-L 5:5") as at:
        for number in range(6):
            at.home.joinpath(f"{number}.csv").write_text("n\n1\n")
        with (
            Login("ftp", at).connect() as remote,
            pytest.raises(ConnectionError, match="Output truncated to 5 matches"),
        ):
            remote.entries(str(at.home))


def test_no_probe_stays_where_a_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server makes the file before it refuses the connection for its data."""

    def new_session(self: Any, cmd: str, rest: Any = None) -> Any:
        data, size = ftplib.FTP.ntransfercmd(self, cmd, rest)
        return self.context.wrap_socket(data, server_hostname=self.host), size

    monkeypatch.setattr(ftp._BoundedTls, "ntransfercmd", new_session)
    with file_server("vsftpd", tls=True) as at:
        writer, _ = load_writer(Login("ftps", at).options("writer", "csv", at.home))
        with pytest.raises(TargetError):
            writer.prepare(WriteContext("job"), numbers(1).schema)
        assert _names(at.home) == []
