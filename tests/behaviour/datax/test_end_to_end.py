"""A job file, from its text to the files that it asks for, through the connectors and without Spark."""

from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.datax import load_job
from spark_channel.errors import SchemaError
from spark_channel.planning import TransferSpec, advise, plan
from spark_channel.transform import Refused, prepare


def carry_out(spec: TransferSpec, job: str = "job") -> list[Refused]:
    """What a transfer does, one task after the other in this thread."""
    reader, ignored = load_reader({"reader": spec.reader.name, **spec.reader.options})
    writer, also_ignored = load_writer({"writer": spec.writer.name, **spec.writer.options})
    assert ignored + also_ignored == []
    steps = prepare(spec.transformers, reader.schema())
    made = plan(spec, reader.split(advise(spec, parallelism=2)), parallelism=2)
    context = WriteContext(job, overwrite=spec.save_mode == "overwrite")
    write_plan = writer.prepare(context, steps.output_schema)
    receipts = []
    refused: list[Refused] = []
    for task in made.tasks:
        target = writer.open(write_plan, task.id, task.id)
        for batch in reader.read(task.split):
            outcome = steps.run(batch)
            refused.extend(outcome.refused)
            target.write(outcome.batch)
        receipts.append(target.close())
    writer.commit(write_plan, receipts)
    return refused


def text_job(make_job: Any, folder: Path, **writes: Any) -> dict[str, Any]:
    columns = [
        {"index": 0, "type": "long"},
        {"index": 2, "type": "string"},
        {"index": 1, "type": "date", "format": "yyyy.MM.dd"},
        {"value": "eu", "type": "string"},
    ]
    steps = [
        {"name": "dx_pad", "parameter": {"columnIndex": 1, "paras": ["r", "5", "-"]}},
        {"name": "dx_filter", "parameter": {"columnIndex": 0, "paras": [">", "${most}"]}},
    ]
    job: dict[str, Any] = make_job(
        "txtfilereader",
        {
            "path": [str(folder / "in")],
            "column": columns,
            "fieldDelimiter": "|",
            "nullFormat": "\\N",
        },
        "txtfilewriter",
        {"path": str(folder / "out"), "fileName": "orders", "writeMode": "truncate", **writes},
        transformer=steps,
    )
    return job


def test_text_files_to_text_files(make_job: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    source.joinpath("a.txt").write_text('1|2024.01.31|ada\n2|2024.02.01|"a|b"\nx|2024.02.01|lost\n')
    source.joinpath("b.txt").write_text("3|2024.02.02|\\N\n9|2024.02.03|filtered\n")
    job = load_job(
        text_job(make_job, tmp_path, header=["id", "name", "day", "region"]), {"most": 8}
    )
    refused = carry_out(job.spec)
    assert [one.rows.to_pylist() for one in refused] == [
        [{"_c0": "x", "_c1": "2024.02.01", "_c2": "lost"}]
    ]
    lines = [
        line
        for path in sorted((tmp_path / "out").glob("orders__*"))
        for line in path.read_text().splitlines()
    ]
    assert set(lines) == {
        "id,name,day,region",
        "1,ada--,2024-01-31 00:00:00,eu",
        "2,a|b--,2024-02-01 00:00:00,eu",
        "3,-----,2024-02-02 00:00:00,eu",
    }
    carry_out(job.spec)  # truncate: the same rows again, not twice
    rows = sum(
        len(path.read_text().splitlines()) - 1 for path in (tmp_path / "out").glob("orders__*")
    )
    assert rows == 3


def test_a_transformer_on_a_column_that_is_not_there_moves_nothing(
    make_job: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1|2024.01.31|ada\n")
    job = text_job(make_job, tmp_path)
    job["job"]["content"][0]["transformer"][0]["parameter"]["columnIndex"] = 4
    with pytest.raises(
        SchemaError, match=r"job\.content\[0\]\.transformer\[0\] \(dx_pad\): pad: no column 4"
    ):
        carry_out(load_job(job, {"most": 8}).spec)
    assert not (tmp_path / "out").exists()


def test_a_line_without_a_column_that_is_read_is_one_refused_row(
    make_job: Any, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    rows = [f"{n},name {n},x\n" for n in range(1000)]
    rows[500], rows[700] = "500,short\n", "700,long,x,y\n"
    rows[800] = '800,"two\nlines, and ""quotes""",x\n'
    source.joinpath("a.txt").write_text("".join(rows))
    columns = [{"index": n, "type": kind} for n, kind in enumerate(["long", "string", "string"])]
    job = make_job(
        "txtfilereader",
        {"path": [str(source)], "column": columns},
        "txtfilewriter",
        {
            "path": str(tmp_path / "out"),
            "fileName": "o",
            "writeMode": "truncate",
            "fileFormat": "csv",
        },
    )
    refused = carry_out(load_job(job).spec)
    assert sorted(
        (one.rows.to_pylist()[0]["line"], one.reason.partition(": ")[2][:22]) for one in refused
    ) == [("500,short", "2 values for 3 columns")]
    text = "".join(path.read_text() for path in (tmp_path / "out").glob("o__*"))
    assert "two\nlines" in text
    numbers = {line.partition(",")[0] for line in text.splitlines()}
    assert {str(n) for n in range(1000)} - numbers == {"500"}


def test_an_empty_text_is_an_empty_text_and_no_number(make_job: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text('1,\n2,""\n3,\\N\n,x\n')
    parameter = {
        "path": str(source),
        "column": [{"index": 0, "type": "long"}, {"index": 1, "type": "string"}],
        "nullFormat": "\\N",
    }
    target = {"path": str(tmp_path), "fileName": "out", "writeMode": "truncate"}
    refused = carry_out(
        load_job(make_job("txtfilereader", parameter, "txtfilewriter", target)).spec
    )
    assert [one.rows.to_pylist() for one in refused] == [[{"_c0": "", "_c1": "x"}]]
    (made,) = tmp_path.glob("out__*")
    assert made.read_text() == "1,\n2,\n3,null\n"


def test_a_folder_named_like_a_partition_adds_no_column(make_job: Any, tmp_path: Path) -> None:
    for day in ("2024-01-31", "2024-02-01"):
        (tmp_path / "in" / f"dt={day}").mkdir(parents=True)
        (tmp_path / "in" / f"dt={day}" / "a.txt").write_text("1,x\n")
    reader = {"path": [str(tmp_path / "in" / "*")], "column": ["*"]}
    target = {"path": str(tmp_path / "out"), "fileName": "out", "writeMode": "truncate"}
    assert (
        carry_out(load_job(make_job("txtfilereader", reader, "txtfilewriter", target)).spec) == []
    )
    made = [path.read_text() for path in (tmp_path / "out").glob("out__*")]
    assert "".join(made) == "1,x\n" * 2
