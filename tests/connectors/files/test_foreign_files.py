"""An overwrite takes no file of others that does not look like a former state of the same data."""

from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from spark_channel.api import transfer
from spark_channel.connectors import WriteContext
from spark_channel.connectors.files.filesystem import Location, locate
from spark_channel.connectors.files.foreign_files import refuse_shared_directory
from spark_channel.errors import TargetError
from tests.connectors.files.helpers import numbers, prepare, visible, write, writer_of

STRANGE = ["letter.txt", "project/main.py", "README", "a/part-0.parquet", "k=1/b/x.parquet"]
FITTING = [
    "part-0.parquet",
    "k=1/x.snappy.parquet",
    "k=1/l=2/y.pq",
    "z.parquet.gz",
    "000000_0",
    "k=1/000001_0_copy_2",
    "000000_0.snappy",
    "part-m-00000",
    "20240131_101530_00042_abcde_0b0a9a2c-64f6-4b5e-9a0e-6f1d2c3b4a59",
]


def put(target: Path, *names: str) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("not ours")


def overwrite(target: Path, **options: str) -> None:
    write("parquet", target, numbers(1), job="a", context={"overwrite": True}, **options)


@pytest.mark.parametrize("name", STRANGE)
def test_a_file_that_is_not_of_the_format_or_not_in_a_partition_refuses_an_overwrite(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path / "out", name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TargetError, match=rf"1 file of other .*{name}.*replaceForeignFiles"):
        overwrite(tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", FITTING)
def test_a_former_state_of_the_same_data_is_replaced(tmp_path: Path, name: str) -> None:
    put(tmp_path / "out", name)
    overwrite(tmp_path / "out", retention="0")
    assert visible("parquet", tmp_path / "out") == [1]
    assert not (tmp_path / "out" / name).exists()


JSON_LINES = {
    "rows.json": '{"n": 1}\n{"n": 2}\n',
    "one.json": '{"n": 1}',
    "long.json": '{"n": "' + "x" * 70_000 + '"}\n',
    "empty.json": "",
    "part-00000-c000.json": "[",
    "rows.jsonl": "",
}
OTHER_JSON = {
    "job.json": '{\n  "job": {}\n}\n',
    "list.json": '[{"n": 1}]\n',
    "words.json": "{not json}\n",
    "deep.json": "[" * 60_000,
}


@pytest.mark.parametrize("name", [*JSON_LINES, *OTHER_JSON])
def test_a_json_file_is_of_the_format_if_its_first_line_is_a_row(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text({**JSON_LINES, **OTHER_JSON}[name])
    context = WriteContext("plan", None, overwrite=True)
    look = writer_of("json", tmp_path).rehearse
    if name in JSON_LINES:
        look(context, numbers(1).schema)
    else:
        with pytest.raises(TargetError, match=f"1 file of other programs .*{name}"):
            look(context, numbers(1).schema)


def test_the_root_of_a_bucket_and_a_home_in_hdfs_are_refused() -> None:
    for path, why in (
        ("s3://bucket?region=eu-west-1", "the root of its bucket"),
        ("s3://bucket/?region=eu-west-1", "the root of its bucket"),
        ("gs://bucket", "the root of its bucket"),
    ):
        with pytest.raises(TargetError, match=why):
            refuse_shared_directory(locate(path))
    refuse_shared_directory(locate("s3://bucket/folder?region=eu-west-1"))
    for path, why in (("/", "the root of its file"), ("/user/ana", "a home directory")):
        with pytest.raises(TargetError, match=why):
            refuse_shared_directory(Location(LocalFileSystem(), path, "hdfs://name"))
    refuse_shared_directory(Location(LocalFileSystem(), "/user/ana/out", "hdfs://name"))


def test_the_line_before_the_job_comes_only_if_files_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "out", "part-0.parquet", "letter.txt")

    def run() -> None:
        transfer(
            None,
            {"name": "generator", "rows": 1},
            {"name": "parquet", "path": str(tmp_path / "out")},
            mode="overwrite",
        )

    with pytest.raises(TargetError, match=r"letter\.txt"):
        run()
    assert "replaces" not in caplog.text
    (tmp_path / "out" / "letter.txt").unlink()
    run()
    assert "replaces 1 file that was there" in caplog.text


def test_the_error_names_three_and_how_many(tmp_path: Path) -> None:
    put(tmp_path / "out", *(f"n{number}.txt" for number in range(7)))
    with pytest.raises(TargetError, match=r"7 files .*: n0.txt, n1.txt, n2.txt and 4 more"):
        overwrite(tmp_path / "out")


def test_an_append_before_the_overwrite_does_not_make_them_ours(tmp_path: Path) -> None:
    put(tmp_path / "out", "letter.txt")
    write("parquet", tmp_path / "out", numbers(1), job="first")
    with pytest.raises(TargetError, match=r"letter\.txt"):
        overwrite(tmp_path / "out")
    assert (tmp_path / "out" / "letter.txt").exists()


def test_the_option_allows_it(tmp_path: Path) -> None:
    put(tmp_path / "out", "letter.txt")
    overwrite(tmp_path / "out", replaceForeignFiles="true")
    assert visible("parquet", tmp_path / "out") == [1]


def test_hidden_files_stay(tmp_path: Path) -> None:
    put(tmp_path / "out", ".git/config", "_notes/letter.txt")
    overwrite(tmp_path / "out")
    assert (tmp_path / "out" / ".git" / "config").exists()
    assert (tmp_path / "out" / "_notes" / "letter.txt").exists()


def test_a_plan_refuses_and_counts_the_same_without_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, "part-0.parquet", "k=1/x.parquet")
    writer = writer_of("parquet", out)
    context = WriteContext("plan", None, overwrite=True)
    writer.rehearse(context, numbers(1).schema)
    assert writer.foreign_content(numbers(1).schema) == "2 files that were there"
    put(out, "letter.txt")
    with pytest.raises(TargetError, match=r"letter\.txt"):
        writer.rehearse(context, numbers(1).schema)
    assert not (out / "_spark_channel").exists()


def test_a_directory_that_serves_for_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = tmp_path / "above" / "working"
    working.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(working)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for path, why in (
        ("/", "root"),
        ("/proc", "mount point"),
        (working, "working directory"),
        (working.parent, "above the working directory"),
        (tmp_path / "home", "home"),
        (tmp_path / "link", "home"),
        (working / ".." / ".." / "home", "home"),
    ):
        for options in ({}, {"replaceForeignFiles": "true"}):
            with pytest.raises(TargetError, match=why):
                prepare(writer_of("parquet", path, **options), numbers(1).schema, overwrite=True)
    write("parquet", working, numbers(1), job="append")
    assert visible("parquet", working) == [1]


@pytest.mark.parametrize(
    ("log", "kind"),
    [("_delta_log/00000000000000000000.json", "Delta Lake"), (".hoodie/hoodie.properties", "Hudi")],
)
@pytest.mark.parametrize("option", [{}, {"replaceForeignFiles": "true"}], ids=["", "option"])
def test_a_table_of_a_lake_is_refused(
    tmp_path: Path, log: str, kind: str, option: dict[str, str]
) -> None:
    """Its log is hidden, and would name files that are not there any more."""
    (tmp_path / log).parent.mkdir()
    (tmp_path / log).write_text("{}")
    (tmp_path / "part-0.parquet").write_bytes(b"")
    writer = writer_of("parquet", tmp_path, **option)
    with pytest.raises(TargetError, match=f"is a table of .*{kind}"):
        prepare(writer, numbers(1).schema, overwrite=True)
    assert (tmp_path / "part-0.parquet").exists()


def test_a_file_in_place_of_the_directory_is_named_by_plan_and_write(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"")
    writer = writer_of("parquet", path)
    for look in (
        lambda: writer.foreign_content(numbers(1).schema),
        lambda: writer.rehearse(WriteContext("job", overwrite=True), numbers(1).schema),
        lambda: prepare(writer, numbers(1).schema, overwrite=True),
    ):
        with pytest.raises(TargetError, match="is a file; a write needs a directory"):
            look()


def test_a_user_without_a_home_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    prepare(writer_of("parquet", tmp_path / "t"), numbers(1).schema, overwrite=True)
