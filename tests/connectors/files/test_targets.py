"""Targets that do not let themselves be written."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.files.store import LocalStore
from spark_channel.errors import OptionError, TargetError
from tests.connectors.files.helpers import (
    FORMATS,
    leftovers,
    numbers,
    prepare,
    visible,
    write,
    writer_of,
)


def test_a_target_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(TargetError, match=r"x is a file; a write needs a directory"):
        write("csv", tmp_path / "x", numbers(1))
    with pytest.raises(TargetError, match=r"x/below cannot be written: Not a directory"):
        write("csv", tmp_path / "x" / "below", numbers(1))
    assert (tmp_path / "x").read_text() == "mine"


def test_a_target_without_permission(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Its parents are open to everybody.
    folder = Path("/tmp") / f"spark-channel-target-{os.getpid()}"
    folder.mkdir(mode=0o555)
    root = os.geteuid() == 0
    delta, _ = load_writer({"writer": "delta", "path": str(folder / "t")})
    try:
        if root:
            os.seteuid(65534)
        for path in (folder, folder / "new"):
            with pytest.raises(
                TargetError, match="cannot be written: permission denied to user"
            ) as caught:
                write("csv", path, numbers(1))
            assert isinstance(caught.value.__cause__, PermissionError)
            with pytest.raises(TargetError, match="permission denied to user"):
                writer_of("csv", path).rehearse(WriteContext("job"), numbers(1).schema)
        with pytest.raises(TargetError, match="permission denied to user"):
            delta.rehearse(WriteContext("job"), numbers(1).schema)
        assert list(folder.iterdir()) == []
    finally:
        if root:
            os.seteuid(0)
        folder.rmdir()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk(tiny: Path, form: str) -> None:
    target = tiny / "out"
    write(form, target, numbers(1), job="before")
    noise = pa.table({"s": [os.urandom(500).hex() for _ in range(4_000)]})
    out = writer_of(form, target)
    plan = prepare(out, noise.schema, "big")
    opened = out.open(plan, 0, 0)

    def fill() -> None:
        for batch in noise.to_batches() * 3:
            opened.write(batch)
        opened.close()

    with pytest.raises(TargetError, match=r"no space left where .*out is written") as caught:
        fill()
    assert caught.value.__cause__ is not None
    opened.rollback()
    out.abort(plan, None)
    assert visible(form, target) == [1]
    assert leftovers(target) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_that_is_made_up(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where mounting is not allowed: the disk is full when a file is made durable."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = writer_of(form, tmp_path / "out")
    plan = prepare(out, numbers().schema)
    opened = out.open(plan, 0, 0)
    opened.write(numbers(1).to_batches()[0])
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "seal", full)
        with pytest.raises(TargetError, match="no space left"):
            opened.close()
    opened.rollback()
    out.abort(plan, None)
    assert leftovers(tmp_path / "out") == []
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_write_needs_a_path() -> None:
    with pytest.raises(OptionError, match="'path' is missing"):
        writer_of("csv", "x").Options.parse({})
