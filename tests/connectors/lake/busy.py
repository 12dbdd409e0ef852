"""`files.busy` for a lakehouse table, whose path is options as JSON, `format` among them."""

import json
from typing import Any

import pyarrow as pa

from spark_channel.connectors import Writer, load_reader, load_writer
from tests.connectors.files.busy import Busy

__all__ = ["BusyTable", "rows_in"]


def rows_in(options: dict[str, Any]) -> pa.Table:
    place = {name: value for name, value in options.items() if name != "format"}
    reader, _ = load_reader({"reader": options["format"], **place})
    schema = reader.schema()
    return pa.Table.from_batches(
        [rows for split in reader.split(2) for rows in reader.read(split)], schema
    )


class BusyTable(Busy):
    def writer(self) -> Writer:
        options = json.loads(self.path)
        return load_writer({"writer": options.pop("format"), **options})[0]

    def rows(self) -> pa.Table:
        return rows_in(json.loads(self.path))
