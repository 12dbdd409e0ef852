"""`spark-channel compact` by its command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.files.publish import TargetDirectory
from tests.cli.typed import typed
from tests.connectors.files.helpers import numbers, visible, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        write("parquet", tmp_path / "out", numbers(number), job=f"job{number}")
    return tmp_path / "out"


def test_it_says_what_it_would_do_and_what_it_did(folder: Path) -> None:
    would = typed("compact", str(folder), "--dry-run")
    assert would.exit_code == 0
    assert "4 files (" in would.output
    assert "would become 1 file; 4 before, 1 after" in would.output
    assert len(list(folder.glob("*.parquet"))) == 4
    did = typed("compact", str(folder), "-o", "writer.retention=7200")
    assert "became 1 file (" in did.output
    assert "stay readable for 7200 s" in did.output
    assert visible("parquet", folder) == [0, 1, 2, 3]
    again = typed("compact", f"parquet:{folder}", "--target-size", "1MB")
    assert "nothing to merge: 1 file, and no two of one kind are below 500kB" in again.output


def test_it_prints_json(folder: Path) -> None:
    found = json.loads(typed("compact", str(folder), "--output", "json").output)
    sizes = [path.stat().st_size for path in folder.glob("*.parquet")]
    assert found.pop("merged_bytes") > sizes[0]
    assert found == {
        "dry_run": False,
        "files_before": 4,
        "files_after": 1,
        "merged_files": 4,
        "made_files": 1,
        "made_bytes": sizes[0],
        "rows": 4,
        "left": [],
        "dropped_files": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "does not say its format by its ending"),
        (("sqlite:a.db", "-o", "writer.dbtable=t"), "SqlWriter cannot merge files"),
        (("out", "--target-size", "x"), "option '--target-size' got 'x'; it takes a size"),
        (("csv:out",), "holds parquet files"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    arguments: tuple[str, ...], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    result = typed("compact", *arguments)
    assert result.exit_code != 0
    assert says in str(result.exception)


def test_it_says_what_another_job_took_out_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = TargetDirectory.merge

    def beside(self: Any, *given: Any) -> Any:
        monkeypatch.undo()
        write("parquet", folder, numbers(9), job="over", context={"overwrite": True})
        return merge(self, *given)

    monkeypatch.setattr(TargetDirectory, "merge", beside)
    result = typed("compact", str(folder))
    assert result.exit_code == 0
    assert "4 files not merged: another job replaced some of them meanwhile" in result.output
    assert "nothing to merge" not in result.output
    assert visible("parquet", folder) == [9]


def test_settings_of_a_store_that_are_not_json_are_refused(folder: Path) -> None:
    result = typed("compact", str(folder), "-o", "writer.storageOptions=x")
    assert result.exit_code != 0
    assert "option 'storageOptions' takes a JSON object of texts" in str(result.exception)
