"""`spark-channel claims`: what a target keeps of earlier writes, listed and forgotten."""

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table

from spark_channel.cli.arguments import Output
from spark_channel.cli.endpoints import parse_options, parse_place
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
    kept_claims = _by_name(_writer(target, options or []).kept_claims())
    newest, older = kept_claims[-limit:], max(0, len(kept_claims) - limit)
    if output == "json":
        typer.echo(json_line([_plain(claim) for claim in newest]))
        return
    table = Table("claim", "versions", "state", "published (UTC)", "run")
    for claim in newest:
        table.add_row(
            cell(_id(claim)),
            cell(_ranges(claim)) if claim.versions else "-",
            "published" if claim.is_published else "a run writes" if claim.is_held else "open",
            cell(claim.at.partition("+")[0] or (claim.is_published and "not known") or "-"),
            cell(claim.run or "-"),
        )
    print_table(table)
    if older:
        say(f"{grouped(older)} more, which are older: --limit shows them")


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
    claim_names = [ClaimName.from_text(text) for text in names or ()]
    before = None if older_than is None else _before(older_than)
    writer = _writer(target, options or [])
    selected = chosen(writer.kept_claims(claim_names), claim_names, before)
    _check(claim_names, selected)
    forgotten = selected if dry_run else writer.forget_claims(selected)
    if output == "json":
        typer.echo(json_line([_plain(claim) for claim in _by_name(forgotten)]))
    else:
        _say_forgotten(forgotten, dry_run=dry_run)
    if changed := len(selected) - len(forgotten):
        say(
            f"{many(changed, 'record')} changed meanwhile and stayed: list the claims, and forget them again",
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


def _check(names: Sequence[ClaimName], selected: Sequence[KeptClaim]) -> None:
    """
    Raises:
        OptionError: a claim that is named is not there, or a run that may live holds it.
    """
    for claim in selected:
        if claim.is_held:
            raise OptionError(
                f"claim {_id(claim)!r} is held by run {claim.run!r}, which may still write; nothing was forgotten. End "
                "that run, or wait for it",
                option="CLAIM",
                got=_id(claim),
            )
    existing = {(claim.kind, claim.name) for claim in selected}
    for name in names:
        if (name.kind, name.name) not in existing:
            raise OptionError(
                f"claim '{name.kind}:{name.name}' is not kept by the target, with the versions that were asked for; "
                "nothing was forgotten. `spark-channel claims list` shows what is",
                option="CLAIM",
                got=f"{name.kind}:{name.name}",
            )


def _say_forgotten(forgotten: Sequence[KeptClaim], *, dry_run: bool) -> None:
    word = "would forget" if dry_run else "forgot"
    if not forgotten:
        say(f"{word} nothing: no claim is as old")
        return
    rows = _by_name(forgotten)
    for claim in rows[:_SHOWN_RANGES]:
        say(f"{word} {_id(claim)}{_count(claim)}")
    if len(rows) > _SHOWN_RANGES:
        say(f"{word} {many(len(rows) - _SHOWN_RANGES, 'more claim')}")
    if not dry_run:
        say(
            "no row changed; a run with one of these names writes its rows again, and they are there twice then"
        )


def _by_name(records: Sequence[KeptClaim]) -> list[KeptClaim]:
    """The records, with all published versions of one transaction id in one; the newest last."""
    groups: dict[tuple[str, str], list[KeptClaim]] = defaultdict(list)
    rows = []
    for claim in records:
        if claim.kind == "txn" and claim.is_published:
            groups[claim.kind, claim.name].append(claim)
        else:
            rows.append(claim)
    for (kind, name), members in groups.items():
        newest = max(members, key=lambda claim: claim.at)
        versions = joined(pair for member in members for pair in member.versions)
        rows.append(KeptClaim(kind, name, versions, at=newest.at, run=newest.run))
    return sorted(rows, key=lambda claim: claim.at)


def _id(claim: KeptClaim) -> str:
    return (
        claim.id if claim.count <= 1 or len(claim.versions) == 1 else f"{claim.kind}:{claim.name}"
    )


def _count(claim: KeptClaim) -> str:
    return f" ({many(claim.count, 'version')})" if claim.count > 1 else ""


def _ranges(claim: KeptClaim) -> str:
    texts = [f"{first}" if first == last else f"{first}..{last}" for first, last in claim.versions]
    hidden = len(texts) - _SHOWN_RANGES
    if hidden > 0:
        texts = [f"{grouped(hidden)} more ranges", *texts[-_SHOWN_RANGES:]]
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
