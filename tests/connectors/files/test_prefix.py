"""Files of one prefix in a folder that belongs to several programs."""

from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import OptionError, TargetError
from tests.connectors.files.helpers import (
    numbers,
    prepare,
    read,
    reader_of,
    stage,
    write,
    writer_of,
)


def names(folder: Path, prefix: str = "") -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.is_file() and path.name.startswith(prefix)
    )


def content(folder: Path, prefix: str) -> list[str]:
    """What `cat folder/prefix*` prints."""
    return [
        line
        for name in names(folder, prefix)
        for line in (folder / name).read_text().splitlines()
        if line
    ]


def put(folder: Path, *rows: int, prefix: str = "out", **more: Any) -> None:
    write(
        "csv", folder, *(numbers(each) for each in rows), filePrefix=prefix, header="false", **more
    )


def test_files_are_named_and_replaced_by_their_prefix(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("theirs\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out__datax_file").write_text("old\n")
    put(tmp_path, 1, 2, job="a")
    assert [name.split("-")[0] for name in names(tmp_path, "out__0")] == [
        "out__00000",
        "out__00001",
    ]
    assert content(tmp_path, "out") == ["1", "2", "old"]
    put(tmp_path, 3, job="b", prefix="outlook")
    put(tmp_path, 4, job="c", prefix="in")
    # As DataX: every file whose name begins so, also those of others, but no folder and no other file.
    put(tmp_path, 5, job="d", context={"overwrite": True})
    assert content(tmp_path, "out") == ["5"]
    assert (tmp_path / "out").is_dir()
    assert content(tmp_path, "in") == ["4"]
    assert (tmp_path / "other.txt").read_text() == "theirs\n"
    assert "_SUCCESS" not in names(tmp_path)
    put(tmp_path, 6, job="e", prefix="outlook")
    assert content(tmp_path, "outlook") == ["6"]


def test_a_file_that_another_program_writes_again_is_replaced_again(tmp_path: Path) -> None:
    for turn in (1, 2, 3):
        (tmp_path / "out.csv").write_text(f"old {turn}\n")
        put(tmp_path, turn, job=f"j{turn}", context={"overwrite": True})
        assert content(tmp_path, "out") == [str(turn)]


def test_files_that_were_fetched_are_no_matter(tmp_path: Path) -> None:
    put(tmp_path, 1, job="a")
    for name in names(tmp_path, "out"):
        (tmp_path / name).unlink()
    put(tmp_path, 2, job="b")
    put(tmp_path, 3, job="c", context={"overwrite": True})
    assert content(tmp_path, "out") == ["3"]


def test_readers_see_the_files_of_every_program(tmp_path: Path) -> None:
    (tmp_path / "theirs.csv").write_text("7\n")
    put(tmp_path, 1, job="a")
    (tmp_path / "later.csv").write_text("8\n")
    found = read("csv", tmp_path, header="false")
    assert sorted(found.column(0).to_pylist()) == [1, 7, 8]


def test_a_read_keeps_what_it_planned(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, job="a")
    found = reader_of("csv", tmp_path, header="false")
    found.schema()
    splits = found.split(4)
    for prefix in ("out", "o"):  # the second removes files of the first, as DataX does
        put(tmp_path, 3, job=f"b{prefix}", prefix=prefix, context={"overwrite": True})
    rows = [
        row
        for split in splits
        for batch in found.read(split)
        for row in batch.column(0).to_pylist()
    ]
    assert sorted(rows) == [1, 2]
    assert content(tmp_path, "o") == ["3"]


def test_nothing_is_seen_before_the_commit_and_a_dead_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out.old").write_text("old\n")
    writer = writer_of("csv", tmp_path, filePrefix="out", header="false")
    plan = prepare(writer, numbers(1).schema, "a", overwrite=True)
    receipts = stage(writer, plan, [numbers(1)])
    assert content(tmp_path, "out") == ["old"]
    writer.abort(plan, None)
    again = prepare(writer, numbers(1).schema, "b", txn=("nightly", 1))
    lost = stage(writer, again, [numbers(2)])
    # Killed between the renames and the entry of the log: the files are there, and nothing counts them.
    (staged,) = (tmp_path / "_spark_channel").rglob("out__*.csv")
    staged.rename(tmp_path / staged.name)
    put(tmp_path, 3, job="c", context={"txn": ("nightly", 1)})
    assert content(tmp_path, "out") == ["old", "3"]
    writer.commit(again, lost)  # published by another run meanwhile: nothing is added
    put(tmp_path, 4, job="d", context={"txn": ("nightly", 1)})
    assert content(tmp_path, "out") == ["old", "3"]
    assert receipts[0].rows == 1


def test_a_folder_with_a_log_of_its_own_takes_no_prefix(tmp_path: Path) -> None:
    write("csv", tmp_path, numbers(1))
    with pytest.raises(
        TargetError, match=r"has a log of spark-channel.* write without 'filePrefix'"
    ):
        put(tmp_path, 2, job="b")


def test_whether_there_are_such_files(tmp_path: Path) -> None:
    writer = writer_of("csv", tmp_path / "new", filePrefix="out")
    assert writer.exists() is False
    put(tmp_path, 1, prefix="outlook")
    assert writer_of("csv", tmp_path, filePrefix="out").exists() is True
    assert writer_of("csv", tmp_path, filePrefix="x").exists() is False


@pytest.mark.parametrize("prefix", ["", "a/b", ".a", "_a", "a\nb", "a" * 101])
def test_prefixes_are_names(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(OptionError, match="option 'filePrefix' got"):
        writer_of("csv", tmp_path, filePrefix=prefix)
