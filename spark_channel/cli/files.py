"""The job files of a command: found, read, and reports put beside them."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spark_channel.connectors.registry import has_third_parties
from spark_channel.errors import OptionError
from spark_channel.jobs import LoadedJob, load_job, parse_parameters
from spark_channel.local.light import without_pandas

__all__ = ["check_place", "job_files", "load", "publish_text"]


def job_files(given: Sequence[Path]) -> list[Path]:
    """The files, and those that end with .json below the folders, by name; each once.

    Raises:
        OptionError: a folder without job files.
    """
    found: dict[Path, None] = {}
    for path in given:
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(each for each in path.rglob("*.json") if each.is_file())
        if not inside:
            raise OptionError(
                f"folder {path} has no job files: it takes files that end with .json",
                option="jobs",
                got=str(path),
            )
        found.update(dict.fromkeys(inside))
    return list(found)


def load(
    job: Path,
    parameters: Sequence[str],
    all_content: bool,
    *,
    commit: str | None = None,
    transaction: str | None = None,
    named: bool = False,
) -> LoadedJob:
    """The job in a file; its warnings go to the standard error, `named` with the file's name.

    Raises:
        JobFileError: it is broken.
    """
    if not has_third_parties():  # whose connectors may hand pyarrow what only pandas can read
        without_pandas()
    loaded = load_job(
        str(job),
        parse_parameters(" ".join(parameters)),
        all_content=all_content,
        commit=commit,
        transaction=transaction,
    )
    for warning in loaded.warnings:
        print(f"{f'{job}: ' if named else ''}warning: {warning}", file=sys.stderr)  # noqa: T201 - the command line talks
    return loaded


def check_place(path: Path) -> None:
    """Hold that a report can be put at `path`, before a row moves.

    Raises:
        OptionError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-"):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"option '--report' got {str(path)!r}, which cannot be written: {error.strerror or error}",
        option="--report",
        got=str(path),
    )


def publish_text(path: Path, text: str) -> None:
    """Put `text` in place of the file at `path`, so that a reader finds the old one or the new one, and no half.

    Raises:
        OptionError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error
