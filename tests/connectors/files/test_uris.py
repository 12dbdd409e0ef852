"""Characters that mean something in a url, in the paths of files: each names its own folder, or is refused."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.uris import Uri
from spark_channel.errors import OptionError, UnsupportedError
from tests.connectors.files.helpers import numbers, read, write
from tests.servers.stores import STORES, object_server

ODD = (
    "#2",
    "?2",
    "%232",
    "%2F2",
    "%412",
    "+2",
    ";2",
    "@2",
    ":2",
    "&=2",
    " 2",
    " ",
    "*2",
    "[1]2",
    "{a,b}2",
    "~2",
    "\\2",
    "é2",
    "-2",
)
FEW = ("#2", "?2", "%232", ":2", "é2", " 2", "+2", "[1]2", "\\2", "-2")
"""For places where a write takes long."""
REFUSED = {"hdfs": (":2",), "s3": ("?2",), "gcs": ("?2",), "azure": ("?2", "\\2")}
SERVERS = ("ftp", "sftp")

Spelled = Callable[[str], str]
"""A path for the option, of a folder in the place of a test."""


def _names(kind: str) -> tuple[str, ...]:
    slow = kind in ("hdfs", "sftp", "s3")
    return ODD if kind in ("disk", "ftp") else FEW[:5] if slow else FEW


@contextmanager
def _place(kind: str, folder: Path) -> Iterator[tuple[Spelled, dict[str, str]]]:
    """(how a folder there is written, options)."""
    with ExitStack() as held:
        if kind == "disk":
            yield lambda name: f"{folder}/{name}", {}
        elif kind == "file uri":
            yield lambda name: f"{folder.as_uri()}/{quote(name, safe='/')}", {}
        elif kind in SERVERS:
            pytest.importorskip("paramiko", reason="paramiko is not installed")
            pytest.importorskip("pyftpdlib", reason="pyftpdlib is not installed")
            from tests.servers.files import PASSWORD, USER, ftp_server, sftp_server

            login = {"user": USER, "password": PASSWORD}
            if kind == "ftp":
                port = held.enter_context(ftp_server(folder))
            else:
                port, login["host_key"] = held.enter_context(sftp_server(folder))
            yield (
                lambda name: f"{kind}://127.0.0.1:{port}/{name}",
                {"storageOptions": json.dumps(login)},
            )
        else:
            server = held.enter_context(object_server(kind))
            patch = held.enter_context(pytest.MonkeyPatch.context())
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server.uri, {}


def _put(path: str, number: int, options: dict[str, str], *, overwrite: bool) -> None:
    writer, _ = load_writer({"writer": "csv", "path": path, **options})
    rows = numbers(number)
    plan = writer.prepare(WriteContext(f"job{number}", overwrite=overwrite), rows.schema)
    task = writer.open(plan, 0, 0)
    for batch in rows.to_batches():
        task.write(batch)
    writer.commit(plan, [task.close()])


def _get(path: str, options: dict[str, str]) -> list[int]:
    reader, _ = load_reader({"reader": "csv", "path": path, **options})
    schema = reader.schema()
    batches = [batch for split in reader.split(1) for batch in reader.read(split)]
    return sorted(pa.Table.from_batches(batches, schema).column("n").to_pylist())


@pytest.mark.parametrize("kind", ["disk", "file uri", *STORES, *SERVERS])
def test_a_name_with_such_a_character_is_a_folder_of_its_own(kind: str, tmp_path: Path) -> None:
    """Siblings `x` and `x#2`: one is appended to, then overwritten, and the others keep their rows."""
    with _place(kind, tmp_path) as (spelled, options):
        _put(spelled("x"), 0, options, overwrite=False)
        written = {}
        for number, end in enumerate(_names(kind), start=1):
            path = spelled(f"x{end}")
            if end in REFUSED.get(kind, ()):
                said = re.escape(f"'path' holds {end[0]!r}")
                with pytest.raises(OptionError, match=said):
                    _put(path, number, options, overwrite=True)
                with pytest.raises(OptionError, match=said):
                    _get(path, options)
                continue
            _put(path, number, options, overwrite=False)
            _put(path, 100 + number, options, overwrite=True)
            written[path] = [100 + number]
        _put(path, 1000, options, overwrite=False)
        written[path].append(1000)
        assert _get(spelled("x"), options) == [0]
        assert {path: _get(path, options) for path in written} == written


def test_the_disk_has_the_names_as_they_were_given(tmp_path: Path) -> None:
    for number, end in enumerate(ODD):
        write("parquet", f"{tmp_path}/x{end}", numbers(number))
        write("parquet", f"{tmp_path.as_uri()}/y{quote(end)}", numbers(number))
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{first}{end}" for first in "xy" for end in ODD
    }


def test_the_whole_log_is_read_of_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    """Its name is not a partition, and a pattern matches neither more nor less."""
    write("parquet", tmp_path / "[k]=1", numbers(1))
    write("parquet", tmp_path / "a?b", numbers(2))
    write("parquet", tmp_path / "acb", numbers(3))
    assert read("parquet", tmp_path / "[k]=1").column_names == ["n"]
    assert read("parquet", tmp_path / "a?b").column("n").to_pylist() == [2]
    assert read("parquet", tmp_path / "a[?]b").column("n").to_pylist() == [2]
    assert sorted(read("parquet", tmp_path / "a[!/]b").column("n").to_pylist()) == [2, 3]


NAME = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8
)
SCHEMES = st.sampled_from(["s3", "gs", "abfs", "abfss", "hdfs", "viewfs", "sftp", "ftp", "ftps"])


@given(SCHEMES, st.lists(NAME, max_size=4), st.sampled_from(["", "region=eu-west-1", "a=b&c=d%23"]))
def test_a_uri_keeps_its_path(scheme: str, names: list[str], settings: str) -> None:
    """Names come back as they were, and so does the uri: two uris with one path are one folder."""
    in_bucket = scheme in ("s3", "gs", "abfs", "abfss")
    path = "/" + "/".join(names)
    text = f"{scheme}://host{path}" + (f"?{settings}" if settings and in_bucket else "")
    refused = ":" in path and scheme in ("hdfs", "viewfs")
    refused |= "\\" in path and scheme in ("abfs", "abfss")
    refused |= in_bucket and re.search(r"(?<!\[)\?", path) is not None
    try:
        found = Uri.parse(text)
    except OptionError:
        assert refused
        return
    assert not refused
    kept: list[str] = []
    for name in names:
        if name == "..":
            kept = kept[:-1]
        elif name != ".":
            kept.append(name)
    assert found.path == "/" + "/".join(kept)
    assert found.settings == (settings if in_bucket else "")
    assert Uri.parse(str(found)) == found
    assert Uri.parse(found.root).root == found.root


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3://b#1/x", r"'path' holds '#' before the first slash .* names a bucket"),
        ("s3://b%2Fx/y", "holds '%' before"),
        ("s3://b:9/y", "holds ':' before"),
        ("s3:///y", "names no bucket; it takes s3://bucket/folder"),
        ("abfs://c#1@account/x", "holds '#' before .* names a container or account"),
        ("hdfs://h#1/x", "holds '#' before .* names a host"),
        ("ftp://h?1/x", r"holds '\?' before"),
        ("ftp://a#b@h/x", "holds '#' before"),
        ("s3://b/x?", r"holds '\?', and no setting follows it"),
        ("s3://b/x?y=1", r"Unexpected query parameter .*'\?' begins the settings"),
        ("s3://b/x?region=a#1", "holds '#' in its settings, after '.'; write it %23"),
        ("s3://b/a\tb", r"holds the character '\\t'"),
        ("ftp://h/a\nb", r"holds the character '\\n'"),
        ("/a\udcffb", "not a character of Unicode"),
        ("file:///a%FFb", "percent-encoded UTF-8"),
        ("file:///a%00b", "zero byte"),
        ("file://data/x", "followed by a host, here 'data'"),
        (" s3://b/x", "begins with a blank"),
        (" ", "is empty"),
        ("s3://KEY:SE#CRET@b/x", "password or secret key"),
        ("s3://KEY:SE/C?RET@b/x", "password or secret key"),
    ],
)
def test_what_no_name_can_have_is_refused(path: str, said: str) -> None:
    options: list[tuple[Any, str]] = [(load_reader, "reader"), (load_writer, "writer")]
    for load, half in options:
        with pytest.raises(OptionError, match=said) as caught:
            locate(load({half: "csv", "path": path})[0].options.path)
        assert "CRET" not in str(caught.value)


def test_a_path_ends_at_the_root() -> None:
    """`..` leads into no other bucket, and slashes are not counted."""
    for path in ("s3://b/../c/x", "s3://b//c//x/", "s3://b/./c/x"):
        assert locate(f"{path}?region=eu-west-1").path == "b/c/x"
    assert locate("ftp://h//c/x").path == "/c/x"


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_a_delta_table_has_such_a_name(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from tests.connectors.delta import helpers as delta

    refused = [end for end in _names(kind) if "%" in end or (end == "\\2" and kind == "disk")]
    ends = [end for end in _names(kind) if end not in (*refused, *REFUSED.get(kind, ()))]
    with _place(kind, tmp_path) as (spelled, _):
        for end in refused:
            with pytest.raises(OptionError, match="which deltalake decodes"):
                delta.write(spelled(f"x{end}"), delta.numbers(0))
            with pytest.raises(OptionError, match="which deltalake decodes"):
                delta.read(spelled(f"x{end}"))
        delta.write(spelled("x"), delta.numbers(0))
        for number, end in enumerate(ends, start=1):
            delta.write(spelled(f"x{end}"), delta.numbers(number))
            delta.write(spelled(f"x{end}"), delta.numbers(100 + number), overwrite=True)
        found = {end: delta.read(spelled(f"x{end}"))["id"].to_pylist() for end in ("", *ends)}
    assert found == {"": [0], **{end: [100 + number] for number, end in enumerate(ends, start=1)}}


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_database_file_has_such_a_name(scheme: str, tmp_path: Path) -> None:
    """By `path`, and by urls, which take a name byte for byte up to their parameters."""
    rows = pa.table({"n": [1]})
    names = [f"x{end}.db" for end in ODD if scheme != "duckdb" or end not in ("?2", "\\2")]
    for name in names:
        options = {"writer": scheme, "path": f"{tmp_path}/{name}", "dbtable": "t"}
        writer, _ = load_writer(options)
        plan = writer.prepare(WriteContext("job", overwrite=True), rows.schema)
        task = writer.open(plan, 0, 0)
        for batch in rows.to_batches():
            task.write(batch)
        writer.commit(plan, [task.close()])
    assert {name for name in names if (tmp_path / name).is_file()} == set(names)
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    for name in names:
        for form in (
            f"{scheme}:{tmp_path}/{name}",
            f"jdbc:{scheme}:{tmp_path}/{name}",
            f"{scheme}://{tmp_path}/{name}",
        ):
            if "?" in name or (scheme == "duckdb" and ";" in name):
                with pytest.raises(OptionError, match="'url' carries parameters"):
                    load_reader({"url": form, "dbtable": "t"})
            else:
                found: Any = load_reader({"url": form, "dbtable": "t"})[0]
                assert found.options.file == tmp_path / name
    found, _ = load_reader({"url": f"{scheme}:file:{tmp_path}/x%41#1.db", "dbtable": "t"})
    assert found.options.file == tmp_path / "x%41#1.db"
    with pytest.raises(OptionError, match="'url' ends with a blank"):
        load_reader({"url": f"{scheme}:{tmp_path}/x.db ", "dbtable": "t"})


@pytest.mark.parametrize(
    "place", ["s3://b/x#1", "s3://b/x?1", "gs://b/a\nb", "file:///t/x#1", "abfss://c@a/x\ty"]
)
def test_iceberg_is_given_no_location_that_it_would_cut_off(place: str) -> None:
    pytest.importorskip("pyiceberg")
    from spark_channel.connectors.iceberg.file_io import ArrowFileIO

    with pytest.raises(UnsupportedError, match="where pyiceberg would cut it off"):
        ArrowFileIO({}).new_input(place)
    assert ArrowFileIO.parse_location("/t/x#1?2") == ("file", "", "/t/x#1?2")
    assert ArrowFileIO.parse_location("s3://b/x%41+1") == ("s3", "b", "b/x%41+1")
