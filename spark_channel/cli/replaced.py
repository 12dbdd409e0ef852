"""`spark-channel replaced`: the files that overwrites of a folder replaced, listed and put back."""

from dataclasses import asdict

import typer
from rich.table import Table

from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.connectors.files.replaced_files import put_back, replaced_files
from spark_channel.progress.report import short

__all__ = ["list_replaced", "put_files_back"]

_NAMED = 3


def list_replaced(folder: str, prefix: str | None, *, as_json: bool) -> None:
    replacements = replaced_files(folder, prefix)
    if as_json:
        typer.echo(json_line([asdict(replacement) for replacement in replacements]))
        return
    table = Table("number", "files", "bytes", "kept until (UTC)", "such as")
    for replacement in replacements:
        until = "the next write" if replacement.is_due else replacement.until.partition("+")[0]
        names = "\n".join(cell(path) for path in replacement.paths[:_NAMED])
        table.add_row(
            str(replacement.number),
            str(len(replacement.paths)),
            f"{short(replacement.nbytes)}B",
            cell(until),
            names,
        )
    print_table(table)
    say(
        "--put-back NUMBER makes these files visible again, and replaces those that are visible now."
    )


def put_files_back(folder: str, number: int, prefix: str | None) -> None:
    count = put_back(folder, number, prefix)
    say(f"{folder}: {count} {'file is' if count == 1 else 'files are'} visible again")
