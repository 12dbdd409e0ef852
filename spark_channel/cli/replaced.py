"""`spark-channel replaced`: the files that overwrites of a folder replaced, listed and put back."""

from dataclasses import asdict

import typer
from rich.table import Table

from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.connectors.files.replaced import put_back, replaced_files
from spark_channel.progress.report import short

__all__ = ["list_replaced", "put_files_back"]

_NAMED = 3


def list_replaced(folder: str, prefix: str | None, *, as_json: bool) -> None:
    found = replaced_files(folder, prefix)
    if as_json:
        typer.echo(json_line([asdict(each) for each in found]))
        return
    table = Table("number", "files", "bytes", "kept until (UTC)", "such as")
    for each in found:
        until = "the next write" if each.is_due else each.until.partition("+")[0]
        names = "\n".join(cell(path) for path in each.paths[:_NAMED])
        table.add_row(
            str(each.number), str(len(each.paths)), f"{short(each.nbytes)}B", cell(until), names
        )
    print_table(table)
    say(
        "--put-back NUMBER makes these files visible again, and replaces those that are visible now."
    )


def put_files_back(folder: str, number: int, prefix: str | None) -> None:
    count = put_back(folder, number, prefix)
    say(f"{folder}: {count} {'file is' if count == 1 else 'files are'} visible again")
