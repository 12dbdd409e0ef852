"""Commands in this process, and the jobs that they run."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

from typer.testing import CliRunner, Result

from spark_channel.cli.app import complete
from spark_channel.cli.exit_codes import exit_code


def typed(*arguments: str) -> Result:
    """What a command printed, and its exit code as the script would end with it."""
    # The guard that keeps pandas out of a process applies only to separate processes.
    with mock.patch("spark_channel.cli.plan.without_pandas"):
        result = CliRunner().invoke(complete(arguments), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        result.exit_code = exit_code(result.exception)
    return result


def made_up(rows: int, value: str = "x") -> dict[str, Any]:
    columns = [{"type": "long", "random": "0,1000000"}, {"type": "string", "value": value}]
    return {"name": "streamreader", "parameter": {"column": columns, "sliceRecordCount": rows}}


def into_sqlite(path: Path, table: str = "t", **more: Any) -> dict[str, Any]:
    connection = [{"jdbcUrl": f"jdbc:sqlite:{path}", "table": [table]}]
    return {
        "name": "sqlite3writer",
        "parameter": {"column": ["id", "name"], "connection": connection, **more},
    }


def write_job(path: Path, reader: dict[str, Any], writer: dict[str, Any], **setting: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = [{"reader": reader, "writer": writer}]
    path.write_text(
        json.dumps({"job": {"setting": {"speed": {"channel": 1}, **setting}, "content": content}})
    )
    return str(path)
