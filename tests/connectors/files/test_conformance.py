"""The file connectors keep the contract that every connector keeps."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.errors import SourceError
from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.files.helpers import FORMATS, leftovers, read, reader_of, write, writer_of

pytestmark = pytest.mark.real_server("files on a disk", "parquet", "csv", "json", "arrow", "orc")


@pytest.mark.parametrize("form", FORMATS)
def test_readers(tmp_path: Path, form: str) -> None:
    table = pa.table({"id": range(600), "name": [f"name {n}" for n in range(600)]})
    write(form, tmp_path / "out", *[table.slice(n * 120, 120) for n in range(5)])
    reader_conformance(partial(reader_of, form, tmp_path / "out", splitBytes="800"), expected=table)
    some = table.filter(pa.compute.less(table["id"], 140))
    reader_conformance(partial(reader_of, form, tmp_path / "out", where="id < 140"), expected=some)


@pytest.mark.parametrize("form", FORMATS)
def test_readers_of_nothing(tmp_path: Path, form: str) -> None:
    nothing = pa.schema([("id", pa.int64()), ("name", pa.string())]).empty_table()
    write(form, tmp_path / "out", nothing)
    reader_conformance(partial(reader_of, form, tmp_path / "out"), expected=nothing)


@pytest.mark.parametrize("text", ["id,name\n", "id,name", "# nothing\nid,name\n\n"])
def test_a_header_alone_has_no_splits(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    reader_conformance(partial(reader_of, "csv", tmp_path / "x.csv", comment="#"))


@pytest.mark.parametrize("form", FORMATS)
def test_writers(tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"

    def seen() -> pa.Table | None:
        try:
            return read(form, target)
        except SourceError:
            return None

    writer_conformance(
        partial(writer_of, form, target),
        read_back=seen,
        leftovers=lambda: leftovers(target) if target.exists() else [],
    )
