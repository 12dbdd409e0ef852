"""`spark-channel claims`: what a target keeps of earlier writes, listed and forgotten."""

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table

from spark_channel.cli.arguments import Output
from spark_channel.cli.places import parse_options, parse_place
from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.clock import utc_now, utc_text
from spark_channel.connectors import Writer
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim, chosen, joined
from spark_channel.connectors.base.registry import load_writer
from spark_channel.errors import OptionError
from spark_channel.progress.report import grouped, many

__all__ = ["claims"]

claims = typer.Typer(help="List what a target keeps of earlier writes, and forget some of it.")

_Target = Annotated[
    str, typer.Argument(help="The target, as TARGET of `copy`.", show_default=False)
]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        metavar="writer.NAME=VALUE",
        help="An option of the target, such as writer.dbtable=orders; may be given several times.",
    ),
]
_AGE = re.compile(r"(\d+)([dh])")
_SHOWN_RANGES = 5


@claims.command("list")
def list_claims(
    target: _Target,
    options: _Options = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows, the newest.")] = 100,
    output: Output = "text",
) -> None:
    """List the transaction ids, streams and jobs that the target keeps; a rerun of a published one adds nothing."""
    found = _by_name(_writer(target, options or []).kept_claims())
    shown, more = found[-limit:], max(0, len(found) - limit)
    if output == "json":
        typer.echo(json_line([_plain(each) for each in shown]))
        return
    table = Table("claim", "versions", "state", "published (UTC)", "run")
    for each in shown:
        table.add_row(
            cell(_id(each)),
            cell(_ranges(each)) if each.versions else "-",
            "published" if each.is_published else "a run writes" if each.is_held else "open",
            cell(each.at.partition("+")[0] or (each.is_published and "not known") or "-"),
            cell(each.run or "-"),
        )
    print_table(table)
    if more:
        say(f"{grouped(more)} more, which are older: --limit shows them")


@claims.command()
def forget(
    target: _Target,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLAIM...",
            help="Claims as `list` shows them: txn:NAME, txn:NAME:7, txn:NAME:1..500, stream:NAME or job:NAME.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Transaction ids and jobs that were published longer ago, such as 90d or 12h; streams stay.",
        ),
    ] = None,
    options: _Options = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be forgotten, and change nothing.")
    ] = False,
    output: Output = "text",
) -> None:
    """Forget claims: a run with one of these transaction ids adds its rows again.

    No row of the target changes. What a run that may live still holds is refused.
    """
    if bool(names) == (older_than is not None):
        raise typer.BadParameter(
            "give either claims, as `claims list` shows them, or --older-than AGE"
        )
    asked = [ClaimName.from_text(each) for each in names or ()]
    before = None if older_than is None else _before(older_than)
    writer = _writer(target, options or [])
    wanted = chosen(writer.kept_claims(asked), asked, before)
    _check(asked, wanted)
    done = wanted if dry_run else writer.forget_claims(wanted)
    if output == "json":
        typer.echo(json_line([_plain(each) for each in _by_name(done)]))
    else:
        _say_forgotten(done, dry_run=dry_run)
    if left := len(wanted) - len(done):
        say(
            f"{many(left, 'record')} changed meanwhile and stayed: list the claims, and forget them again",
            error=True,
        )
        raise typer.Exit(1)


def _writer(target: str, options: Sequence[str]) -> Writer:
    end = parse_place("writer", target, parse_options(options)["writer"])
    return load_writer({**end.options, "writer": end.name})[0]


def _before(age: str) -> str:
    match = _AGE.fullmatch(age)
    if match is None:
        takes = "a number of days or hours, such as 90d or 12h"
        raise OptionError(
            f"option '--older-than' got {age!r}; it takes {takes}",
            option="--older-than",
            got=age,
            takes=takes,
        )
    hours = int(match[1]) * (24 if match[2] == "d" else 1)
    try:
        return utc_text(utc_now() - timedelta(hours=hours))
    except OverflowError:
        return ""  # nothing is as old


def _check(asked: Sequence[ClaimName], wanted: Sequence[KeptClaim]) -> None:
    """
    Raises:
        OptionError: a claim that is named is not there, or a run that may live holds it.
    """
    for claim in wanted:
        if claim.is_held:
            raise OptionError(
                f"claim {_id(claim)!r} is held by run {claim.run!r}, which may still write; nothing was forgotten. End "
                "that run, or wait for it",
                option="CLAIM",
                got=_id(claim),
            )
    there = {(each.kind, each.name) for each in wanted}
    for name in asked:
        if (name.kind, name.name) not in there:
            raise OptionError(
                f"claim '{name.kind}:{name.name}' is not kept by the target, with the versions that were asked for; "
                "nothing was forgotten. `spark-channel claims list` shows what is",
                option="CLAIM",
                got=f"{name.kind}:{name.name}",
            )


def _say_forgotten(done: Sequence[KeptClaim], *, dry_run: bool) -> None:
    word = "would forget" if dry_run else "forgot"
    if not done:
        say(f"{word} nothing: no claim is as old")
        return
    rows = _by_name(done)
    for each in rows[:_SHOWN_RANGES]:
        say(f"{word} {_id(each)}{_count(each)}")
    if len(rows) > _SHOWN_RANGES:
        say(f"{word} {many(len(rows) - _SHOWN_RANGES, 'more claim')}")
    if not dry_run:
        say(
            "no row changed; a run with one of these names writes its rows again, and they are there twice then"
        )


def _by_name(found: Sequence[KeptClaim]) -> list[KeptClaim]:
    """The records, with all published versions of one transaction id in one; the newest last."""
    groups: dict[tuple[str, str], list[KeptClaim]] = defaultdict(list)
    rows = []
    for each in found:
        if each.kind == "txn" and each.is_published:
            groups[each.kind, each.name].append(each)
        else:
            rows.append(each)
    for (kind, name), members in groups.items():
        newest = max(members, key=lambda each: each.at)
        versions = joined(pair for each in members for pair in each.versions)
        rows.append(KeptClaim(kind, name, versions, at=newest.at, run=newest.run))
    return sorted(rows, key=lambda each: each.at)


def _id(claim: KeptClaim) -> str:
    return (
        claim.id if claim.count <= 1 or len(claim.versions) == 1 else f"{claim.kind}:{claim.name}"
    )


def _count(claim: KeptClaim) -> str:
    return f" ({many(claim.count, 'version')})" if claim.count > 1 else ""


def _ranges(claim: KeptClaim) -> str:
    texts = [f"{first}" if first == last else f"{first}..{last}" for first, last in claim.versions]
    more = len(texts) - _SHOWN_RANGES
    if more > 0:
        texts = [f"{grouped(more)} more ranges", *texts[-_SHOWN_RANGES:]]
    return ", ".join(texts)


def _plain(claim: KeptClaim) -> dict[str, object]:
    return {
        "claim": _id(claim),
        "kind": claim.kind,
        "name": claim.name,
        "versions": [list(pair) for pair in claim.versions],
        "published": claim.is_published,
        "held": claim.is_held,
        "published_at": claim.at or None,
        "run": claim.run or None,
    }
