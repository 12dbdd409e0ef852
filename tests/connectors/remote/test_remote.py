"""Files on servers: the file connectors over FTP and SFTP, against servers of the tests' own processes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.datax import load_job
from spark_channel.errors import ChannelError, CommitError, OptionError, SourceError, TargetError
from spark_channel.testing import reader_conformance, writer_conformance

pytest.importorskip("paramiko", reason="paramiko is not installed")
pytest.importorskip("pyftpdlib", reason="pyftpdlib is not installed")

import paramiko

from tests.behaviour.datax.test_end_to_end import carry_out
from tests.datax.small_jobs import make_job
from tests.servers.files import PASSWORD, USER, ftp_server, sftp_server


class Server(NamedTuple):
    kind: str
    port: int
    folder: Path
    host_key: str = ""

    @property
    def url(self) -> str:
        return f"{self.kind}://127.0.0.1:{self.port}"

    def login(self, **more: str) -> str:
        own = {
            "user": USER,
            "password": PASSWORD,
            **({"host_key": self.host_key} if self.host_key else {}),
        }
        return json.dumps({**own, **more})


@pytest.fixture(scope="module", params=["ftp", "sftp"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ftp":
        with ftp_server(folder) as port:
            yield Server("ftp", port, folder)
    else:
        with sftp_server(folder) as (port, host_key):
            yield Server("sftp", port, folder, host_key)


@pytest.fixture
def home(server: Server, request: pytest.FixtureRequest) -> Path:
    made = server.folder / f"t{abs(hash(request.node.name))}"
    made.mkdir()
    return made


def uri(server: Server, path: Path) -> str:
    return f"{server.url}/{path.relative_to(server.folder)}"


def read(server: Server, form: str, path: str, **options: Any) -> pa.Table:
    reader, _ = load_reader(
        {"reader": form, "path": path, "storageOptions": server.login(), **options}
    )
    schema = reader.schema()
    return pa.Table.from_batches(
        [batch for split in reader.split(3) for batch in reader.read(split)], schema
    )


def write(
    server: Server,
    form: str,
    path: str,
    *batches: pa.RecordBatch,
    overwrite: bool = False,
    **options: Any,
) -> None:
    writer, _ = load_writer(
        {"writer": form, "path": path, "storageOptions": server.login(), **options}
    )
    plan = writer.prepare(WriteContext("job", overwrite=overwrite), batches[0].schema)
    receipts = []
    for number, batch in enumerate(batches):
        task = writer.open(plan, number, number)
        task.write(batch)
        receipts.append(task.close())
    writer.commit(plan, receipts)


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(values, pa.int64()), "text": [f"value {each}" for each in values]}
    )


@pytest.mark.lowest
@pytest.mark.parametrize("form", ["csv", "json", "parquet", "orc", "arrow"])
def test_every_format_goes_there_and_back(server: Server, home: Path, form: str) -> None:
    if server.kind == "sftp" and form not in ("csv", "parquet"):
        pytest.skip(
            "each SSH connection costs a tenth of a second: one format in order, and one with seeks"
        )
    write(server, form, uri(server, home), numbers(1, 2), numbers(3))
    found = read(server, form, uri(server, home))
    assert found.sort_by("n").to_pydict() == {
        "n": [1, 2, 3],
        "text": ["value 1", "value 2", "value 3"],
    }
    assert all(file.name.startswith("part-") for file in home.iterdir())


def test_large_files_are_read_in_pieces(server: Server, home: Path) -> None:
    """More than a buffer, a row group that lies in the middle, and splits that begin inside a file."""
    rows = pa.table(
        {
            "n": pa.array(range(60_000), pa.int64()),
            "text": [f"{n * 7919:024d}" for n in range(60_000)],
        }
    )
    pa.parquet.write_table(rows, home / "a.parquet", row_group_size=20_000)
    pa.csv.write_csv(rows, home / "b.csv")
    assert (home / "b.csv").stat().st_size > 1 << 20
    assert read(server, "parquet", uri(server, home / "a.parquet")).sort_by("n").equals(rows)
    found = read(
        server,
        "csv",
        uri(server, home / "*.csv"),
        schema=None,
        inferSchema="false",
        multiLine="false",
    )
    assert sorted(map(int, found.column("n").to_pylist())) == list(range(60_000))
    some = read(server, "parquet", uri(server, home / "a.parquet"), where="n >= 59999", columns="n")
    assert some.to_pydict() == {"n": [59_999]}


def test_an_overwrite_removes_what_has_its_prefix(server: Server, home: Path) -> None:
    home.joinpath("other.csv").write_text("n,text\n")
    write(server, "csv", uri(server, home), numbers(1), filePrefix="orders")
    write(server, "csv", uri(server, home), numbers(2), filePrefix="orders")
    assert sorted(file.name.split("_")[0] for file in home.iterdir()) == [
        "orders",
        "orders",
        "other.csv",
    ]
    write(server, "csv", uri(server, home), numbers(3), overwrite=True, filePrefix="orders")
    assert read(server, "csv", uri(server, home / "orders*")).column("n").to_pylist() == [3]
    assert home.joinpath("other.csv").exists()


def test_an_overwrite_looks_into_json_files_of_others(server: Server, home: Path) -> None:
    """Settings are none of the format's rows, whatever their name."""
    if server.kind == "sftp":
        pytest.skip("the same code, and each SSH connection costs a tenth of a second")
    home.joinpath("rows.json").write_text('{"n": 1}\n')
    write(server, "json", uri(server, home), numbers(2), overwrite=True)
    assert not home.joinpath("rows.json").exists()
    home.joinpath("settings.json").write_text('{\n  "n": 1\n}\n')
    with pytest.raises(TargetError, match=r"1 file of other programs .*settings\.json"):
        write(server, "json", uri(server, home), numbers(3), overwrite=True)
    assert home.joinpath("settings.json").exists()


def test_files_are_hidden_until_the_job_ends(server: Server, home: Path) -> None:
    writer, _ = load_writer(
        {"writer": "csv", "path": uri(server, home), "storageOptions": server.login()}
    )
    plan = writer.prepare(WriteContext("job"), numbers(1).schema)
    task = writer.open(plan, 0, 0)
    task.write(numbers(1))
    receipt = task.close()
    assert [file.name.startswith(".spark-channel.job.") for file in home.iterdir()] == [True]
    (staged,) = home.iterdir()
    staged.unlink()
    with pytest.raises(CommitError, match=r"neither .* nor its staging is there"):
        writer.commit(plan, [receipt])
    assert writer.exists() is False


def test_the_reader_keeps_its_promises(server: Server, home: Path) -> None:
    if server.kind == "sftp":
        pytest.skip("as above: FTP goes through the same filesystem")
    for number in range(3):
        home.joinpath(f"{number}.csv").write_text(
            "n\n" + "".join(f"{number * 50 + n}\n" for n in range(50))
        )
    options = {"reader": "csv", "path": uri(server, home), "storageOptions": server.login()}
    reader_conformance(
        lambda: load_reader(options)[0], expected=pa.table({"n": range(150)}), advice=2
    )


def test_the_writer_keeps_its_promises(server: Server, home: Path) -> None:
    if server.kind == "sftp":
        pytest.skip("as above")
    options = {"writer": "csv", "path": uri(server, home), "storageOptions": server.login()}

    def read_back() -> pa.Table | None:
        return (
            read(server, "csv", uri(server, home), schema=None)
            if any(home.glob("part-*"))
            else None
        )

    writer_conformance(
        lambda: load_writer(options)[0],
        read_back=read_back,
        commits=["job"],
        ledger=False,
        leftovers=lambda: list(home.glob(".*")),
    )


def test_a_server_without_mlsd_is_listed(tmp_path: Path) -> None:
    """As vsftpd."""
    tmp_path.joinpath("in", "deep folder").mkdir(parents=True)
    tmp_path.joinpath("in", "a b.csv").write_text("n\n1\n")
    tmp_path.joinpath("in", "deep folder", "c.csv").write_text("n\n2\n")
    with ftp_server(tmp_path, mlsd=False) as port:
        server = Server("ftp", port, tmp_path)
        assert sorted(read(server, "csv", f"{server.url}/in").column("n").to_pylist()) == [1, 2]


def test_a_login_that_is_refused_shows_no_password(server: Server) -> None:
    options = {
        "reader": "csv",
        "path": f"{server.url}/",
        "storageOptions": server.login(password="wr0ng"),
    }
    with pytest.raises(SourceError, match="login") as met:
        load_reader(options)[0].schema()
    assert "wr0ng" not in str(met.value)
    assert "wr0ng" not in repr(load_reader(options)[0].options)


def test_a_host_that_is_not_known_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if server.kind == "ftp":
        pytest.skip("FTP has no host keys")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ({"host_key": ""}, {"host_key": "SHA256:AAAA"}):
        settings = {
            name: value for name, value in json.loads(server.login(**given)).items() if value
        }
        options = {
            "reader": "csv",
            "path": f"{server.url}/",
            "storageOptions": json.dumps(settings),
        }
        with pytest.raises(
            SourceError, match=rf"the server's key {re.escape(server.host_key)} is not"
        ):
            load_reader(options)[0].schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"commit": "task"}, "option 'commit' got 'task'; with FTP and SFTP it takes job"),
        (
            {"txnAppId": "a", "txnVersion": "1"},
            "'txn' is not supported with FTP",
        ),
        ({"filePrefix": "a/b"}, "option 'filePrefix' got 'a/b'"),
        (
            {"path": "s3://b/x", "filePrefix": "a"},
            "option 'filePrefix' is for local disks, FTP and SFTP",
        ),
        ({"path": "ftp:///x"}, "names no host"),
        ({"path": "ftp://h#1/x"}, "holds '#' before the first slash"),
        ({"storageOptions": '{"usr": "a"}'}, "option 'storageOptions' has 'usr'"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_writer({"writer": "csv", "path": "ftp://h/x", **options})[0].exists()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    for kind in ("ftp", "sftp"):
        writer, _ = load_writer({"writer": "csv", "path": f"{kind}://127.0.0.1:1/x"})
        with pytest.raises(TargetError, match="refused"):
            writer.prepare(WriteContext("job"), numbers(1).schema)


def test_a_datax_job_copies_files(server: Server, home: Path) -> None:
    home.joinpath("in").mkdir()
    home.joinpath("in", "a1.txt").write_text("1|2024.01.31|ada\nx|2024.02.01|lost\n")
    home.joinpath("in", "b.txt").write_text("9|2024.01.31|other\n")
    home.joinpath("out").mkdir()
    home.joinpath("out", "orders__old.csv").write_text("old\n")
    inside = f"/{home.relative_to(server.folder)}"
    where = {
        "protocol": server.kind,
        "host": "127.0.0.1",
        "port": str(server.port),
        "username": USER,
        "password": PASSWORD,
        "hostKey": server.host_key,
    }
    columns = [
        {"index": 0, "type": "long"},
        {"index": 2, "type": "string"},
        {"index": 1, "type": "date", "format": "yyyy.MM.dd"},
    ]
    job = load_job(
        make_job(
            "ftpreader",
            {**where, "path": [f"{inside}/in/a?.txt"], "column": columns, "fieldDelimiter": "|"},
            "ftpwriter",
            {
                **where,
                "path": f"{inside}/out",
                "fileName": "orders",
                "writeMode": "truncate",
                "header": ["id", "name", "day"],
            },
        )
    )
    refused = carry_out(job.spec)
    assert [one.rows.to_pylist()[0]["_c2"] for one in refused] == ["lost"]
    (written,) = home.joinpath("out").iterdir()
    assert written.name.startswith("orders__")
    assert written.read_text() == "id,name,day\n1,ada,2024-01-31 00:00:00\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"path": "data"}, "path got 'data'; it takes a path from the root"),
        ({"protocol": "http"}, "protocol got 'http'"),
        ({"host": "h:21"}, "host got 'h:21'; it takes a name or an address"),
        ({"path": []}, "path is missing"),
    ],
)
def test_faults_of_a_job_are_named(changed: dict[str, Any], message: str) -> None:
    given = {"protocol": "ftp", "host": "h", "path": "/x", "column": ["*"], **changed}
    with pytest.raises(ChannelError, match=message):
        load_job(make_job("ftpreader", given))


def _known(server: Server, text: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> list[str]:
    """Read with one file of known hosts; KEY, HOST and HASH stand for the server's."""
    transport = paramiko.Transport(("127.0.0.1", server.port))
    transport.start_client(timeout=10)
    key, host = transport.get_remote_server_key(), f"[127.0.0.1]:{server.port}"
    transport.close()
    words = {
        "KEY": f"{key.get_name()} {key.get_base64()}",
        "HOST": host,
        "HASH": paramiko.HostKeys.hash_host(host),
    }
    (home / ".ssh").mkdir()
    (home / ".ssh" / "known_hosts").write_text(
        re.sub("KEY|HOST|HASH", lambda found: words[found[0]], text)
    )
    monkeypatch.setenv("HOME", str(home))
    (server.folder / "t.csv").write_text("a\n1\n")
    login = json.dumps({"user": USER, "password": PASSWORD})
    options = {"reader": "csv", "path": f"{server.url}/t.csv", "storageOptions": login}
    return list(load_reader(options)[0].schema().names)


@pytest.mark.parametrize(
    "text",
    [
        "@cert-authority *.example.com KEY\nHOST KEY\n",
        "# a comment\n\nHASH KEY\n",
        "other,[127.0.0.*]:* KEY a comment\n",
        "@revoked\tother KEY\nHOST KEY\n",
    ],
)
def test_a_host_is_known_beside_lines_with_markers(
    server: Server, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if server.kind == "ftp":
        pytest.skip("FTP has no host keys")
    assert _known(server, text, monkeypatch, tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HOST KEY\n@revoked * KEY\n", "known_hosts says @revoked"),
        ("@cert-authority * KEY\n", "is not in known_hosts"),
        ("!HOST,* KEY\n", "is not in known_hosts"),
        ("HOST KEY\nother ssh-rsa AAAA\n", r"line 2 of \S+/known_hosts is not understood"),
        ("@maybe HOST KEY\n", r"line 1 of \S+/known_hosts .*'@maybe' is not a marker"),
    ],
)
def test_a_host_that_known_hosts_does_not_prove_is_refused(
    server: Server, text: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if server.kind == "ftp":
        pytest.skip("FTP has no host keys")
    with pytest.raises(SourceError, match=message):
        _known(server, text, monkeypatch, tmp_path)
