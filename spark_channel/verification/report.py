"""The settings of a verification, and `VerifyReport`: what it found, as plain data, as text, and as a file of rows."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError
from spark_channel.plain_text import one_line, shortened
from spark_channel.progress.report import grouped, many, plain_end

__all__ = [
    "Difference",
    "Outcome",
    "RepairSettings",
    "TablesReport",
    "TextForm",
    "VerifiedTable",
    "VerifyReport",
    "VerifySettings",
]

Outcome = Literal["equal", "different", "unknown"]
_CODES: Mapping[str, int] = {"equal": 0, "unknown": 1, "different": 3}
_OUTCOMES: tuple[tuple[Outcome, str], ...] = (
    ("equal", "equal"),
    ("different", "different"),
    ("unknown", "not known"),
)
_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 10
_VALUE = 60
TextForm = Literal["exact", "nfc"]
_MOST_LOOKS = 10
_WRITTEN = ("upserted", "deleted")


@dataclass(frozen=True)
class VerifySettings:
    """How rows are compared.

    `key` and `exclude` are columns; `json` are those whose texts are compared as JSON. `confirm` is how often a
    differing row is looked at again, after 1 s, 4 s, 16 s, and then 64 s each time. `copied_only`: columns of the
    target that the source lacks are left out, since a job writes none of them.
    """

    key: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    json: Sequence[str] = ()
    text: TextForm = "exact"
    confirm: int = 3
    copied_only: bool = False
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)

    def __post_init__(self) -> None:
        for name in ("key", "exclude", "json"):
            if isinstance(columns := getattr(self, name), str):
                takes = f"a list of columns, such as {[columns]}"
                raise OptionError(
                    f"option {name!r} got {columns!r}; it takes {takes}",
                    option=name,
                    got=columns,
                    takes=takes,
                )
        if self.key is not None and not self.key:
            raise OptionError("option 'key' is empty; it takes columns", option="key")
        if self.text not in ("exact", "nfc"):
            takes = "exact or nfc"
            raise OptionError(
                f"option 'text' got {self.text!r}; it takes {takes}", option="text", takes=takes
            )
        _check_number("confirm", self.confirm, _MOST_LOOKS)


@dataclass(frozen=True)
class RepairSettings:
    """What may be written. More rows than `max_repairs`: none is. `delete`: extra rows of the target are removed."""

    max_repairs: int = 1_000
    delete: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        _check_number("max_repairs", self.max_repairs)


def _check_number(option: str, value: Any, most: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and value >= 0 and (most is None or value <= most):
        return
    takes = "a whole number from 0" + ("" if most is None else f" to {most}")
    raise OptionError(
        f"option {option!r} got {value!r}; it takes {takes}",
        option=option,
        got=str(value),
        takes=takes,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that differs. `kind` is "missing" (in the target), "extra" (in the target) or "different".

    `columns` are the names, in the source, of those whose values differ. `source` and `target` are the row's values by
    the side's own names; None = the side has no such row.
    """

    kind: str
    key: Mapping[str, Any]
    columns: Sequence[str]
    source: Mapping[str, Any] | None
    target: Mapping[str, Any] | None


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        outcome: "equal", "different", or "unknown": nothing differs for sure, and rows were changing until the end.
        source_rows: rows that were read of the source for the comparison; `target_rows`: of the target.
        equal: rows that are the same on both sides.
        missing: rows that the target lacks; `extra`: rows that it alone has; `different`: rows with other values.
        changing: keys whose rows changed on one side between the last two looks, so that nothing is known of them.
        settled: keys that differed at first and were the same when they were looked at again.
        columns: number of different rows by column, for the columns that differ.
        compared: how each column was compared, by its name in the source.
        excluded: columns that were left out.
        key: the columns that rows are matched by; empty = rows were compared as wholes.
        method: how the ranges were compared.
        looks: how often differing rows were looked at, the first time included; `pauses`: seconds between the looks.
        positions: at which state of its data each side was read.
        differences: the first 1 000 differing rows.
        histogram: the number of differing keys in each of 40 equal ranges of a key of whole numbers.
        key_range: the least and the largest key of the tables, or else of the rows that differ.
        repaired: what a repair wrote: rows `upserted`, rows `deleted`, and keys that differ `after` it.
        repairs: of a dry run, what would be written: `repair` is "upsert" or "delete", the others are the key.
        notes: whatever else limits what "equal" means.
    """

    source: str
    target: str
    outcome: Outcome = "equal"
    source_rows: int = 0
    target_rows: int = 0
    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    changing: int = 0
    settled: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    compared: dict[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    where: str = ""
    key: tuple[str, ...] = ()
    method: str = ""
    looks: int = 1
    pauses: float = 0.0
    positions: dict[str, str] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    histogram: tuple[int, ...] = ()
    key_range: tuple[int, int] | None = None
    repaired: dict[str, int] = field(default_factory=dict)
    repairs: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    job: str = ""
    started_at: str = ""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 equal, 3 different, 1 not known."""
        return _CODES[self.outcome]

    def to_plain(self) -> dict[str, Any]:
        """Plain data, with the differing rows."""
        return {"version": 1, **asdict(self)}

    def to_json(self) -> str:
        """The report as JSON in ASCII; values without a JSON form are texts."""
        return json.dumps(_finite(self.to_plain()), allow_nan=False, default=_plain)

    @staticmethod
    def check_name(path: str | Path) -> Path:
        """Check that a report's file has a known ending.

        Raises:
            OptionError: another one.
        """
        file = Path(path)
        if file.suffix not in (".json", ".parquet"):
            takes = "a file that ends with .json or .parquet"
            raise OptionError(
                f"option 'report' got {str(path)!r}; it takes {takes}",
                option="report",
                got=str(path),
                takes=takes,
            )
        return file

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; or, to a name that ends with .parquet, its `differences` as a table.

        Raises:
            OptionError: another ending, or the file cannot be written.
        """
        _save(path, self.to_json, self.table)

    def table(self) -> pa.Table:
        """The `differences` as a table: their kind, and key, columns and both rows as JSON texts."""

        def texts(values: Sequence[object]) -> pa.Array:
            return pa.array(
                [None if row is None else _json(row) for row in values],
                pa.string(),
            )

        differences = self.differences
        return pa.table(
            {
                "kind": pa.array([difference.kind for difference in differences], pa.string()),
                "key": texts([dict(difference.key) for difference in differences]),
                "columns": pa.array(
                    [list(difference.columns) for difference in differences], pa.list_(pa.string())
                ),
                "source": texts([difference.source for difference in differences]),
                "target": texts([difference.target for difference in differences]),
            }
        )

    def __str__(self) -> str:
        return "\n".join(one_line(line) for line in self._lines())

    def _lines(self) -> list[str]:
        counts = [f"{self.equal} equal", f"{self.missing} missing", f"{self.extra} extra"]
        counts.append(f"{self.different} different")
        if self.changing:
            counts.append(f"{self.changing} changing")
        ends = f"{plain_end(self.source)} -> {plain_end(self.target)}"
        lines = [
            f"{self.outcome}{' after the repair' if self.repaired else ''}: {ends}",
            f"rows{' before it' if self.repaired else ''}: {', '.join(counts)}",
            f"read: {self.source_rows} of the source, {self.target_rows} of the target, in {self.seconds:.1f} s",
            f"key: {', '.join(self.key) or 'none, whole rows'}; {self.method}",
        ]
        if self.looks > 1:
            settled = f"; {self.settled} that differed at first are equal" if self.settled else ""
            paused = f", with pauses of {self.pauses:g} s" if self.pauses else ""
            lines.append(f"differing rows were looked at {self.looks} times{paused}{settled}")
        lines += [f"{side} was read at {position}" for side, position in self.positions.items()]
        if self.where:
            lines.append(f"rows: those where {self.where}")
        if self.excluded:
            lines.append(f"not compared: {', '.join(self.excluded)}")
        if self.columns:
            by_column = ", ".join(f"{name} {count}" for name, count in self.columns.items())
            lines.append(f"differing values by column: {by_column}")
        if self.histogram and any(self.histogram) and self.key_range is not None:
            most = max(self.histogram)
            bars = "".join(_BARS[-(-count * 8 // most)] for count in self.histogram)
            least, largest = self.key_range
            lines.append(f"differences by key: {least} [{bars}] {largest}")
        lines += [_line(difference) for difference in self.differences[:_SHOWN]]
        if (unshown := self.missing + self.extra + self.different - _SHOWN) > 0:
            lines.append(f"... and {unshown} more")
        if self.repaired:
            actions = ", ".join(f"{count} {action}" for action, count in self.repaired.items())
            lines.append(f"repair: {actions}")
        for repair in self.repairs:
            key = {name: value for name, value in repair.items() if name != "repair"}
            lines.append(f"  would {repair['repair']} {_key(key)}")
        return [*lines, *(f"note: {note}" for note in self.notes)]


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """One of several tables. `report` is None where the tables could not be compared, and `why` says why."""

    name: str
    report: VerifyReport | None
    reason: str = ""

    @property
    def outcome(self) -> Outcome:
        return "unknown" if self.report is None else self.report.outcome


@dataclass(frozen=True, slots=True)
class TablesReport:
    """The results of several tables, in the order in which they were compared."""

    tables: tuple[VerifiedTable, ...]

    @property
    def exit_code(self) -> int:
        """3 if a table differs, else 1 if one is not known, else 0."""
        return max((_CODES[table.outcome] for table in self.tables), default=0)

    def to_json(self) -> str:
        """The reports as JSON in ASCII."""
        tables = [
            {
                "name": table.name,
                "outcome": table.outcome,
                "why": table.reason,
                "report": None if table.report is None else table.report.to_plain(),
            }
            for table in self.tables
        ]
        plain = {"version": 1, "exit_code": self.exit_code, "tables": tables}
        return json.dumps(_finite(plain), allow_nan=False, default=_plain)

    def save(self, path: str | Path) -> None:
        """As `VerifyReport.save`; the table of differences has a column `table` with the names. Raises as it does."""
        _save(path, self.to_json, self._table)

    def _table(self) -> pa.Table:
        compared = [table for table in self.tables if table.report is not None] or [
            VerifiedTable("", VerifyReport("", ""))
        ]
        parts = []
        for table in compared:
            assert table.report is not None
            rows = table.report.table()
            names = pa.array([table.name] * len(rows), pa.string())
            parts.append(rows.add_column(0, "table", names))
        return pa.concat_tables(parts)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = True) -> str:
        """All tables; without `verbose` one line for each that is equal."""
        parts = []
        for table in self.tables:
            if table.outcome == "equal" and table.report is not None and not verbose:
                parts.append(_equal_line(table.name, table.report))
                continue
            details = (
                f"  not compared: {one_line(table.reason)}"
                if table.report is None
                else _indented(table.report)
            )
            parts.append(f"{one_line(table.name)}\n{details}")
        counts = Counter(table.outcome for table in self.tables)
        totals = [f"{counts[name]} {label}" for name, label in _OUTCOMES if counts[name]]
        repaired = sum(
            table.outcome == "equal" and table.report is not None and _is_repaired(table.report)
            for table in self.tables
        )
        if repaired:  # the first count is of the equal ones
            totals[0] += f", {repaired} of them after a repair"
        return "\n".join([*parts, f"{many(len(self.tables), 'table')}: {', '.join(totals)}"])


def _is_repaired(report: VerifyReport) -> bool:
    return any(report.repaired.get(action) for action in _WRITTEN)


def _equal_line(name: str, report: VerifyReport) -> str:
    """A table whose rows are equal in one line, with what limits that."""
    by = f", by {', '.join(report.key)}" if report.key else ""
    left_out = [f"without {', '.join(report.excluded)}"] if report.excluded else []
    rows = f"{grouped(report.equal)} rows are equal{by}"
    if _is_repaired(report):
        whole = report.equal + report.missing + report.different
        actions = ", ".join(f"{report.repaired[action]} {action}" for action in _WRITTEN)
        rows = f"{grouped(whole)} rows are equal after the repair{by}: {actions}"
    return one_line("; ".join([f"{name}: {rows}", *left_out, *report.notes]))


def _indented(report: VerifyReport) -> str:
    return "\n".join(f"  {line}" for line in str(report).splitlines())


def _save(path: str | Path, text: Callable[[], str], table: Callable[[], pa.Table]) -> None:
    """Put a report in the place of the file at `path`; its ending says which form it has."""
    file = VerifyReport.check_name(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        if file.suffix == ".json":
            part.write_text(text() + "\n", encoding="utf-8")
        else:
            from pyarrow import parquet

            parquet.write_table(table(), part)
        part.replace(file)
    except OSError as error:
        raise OptionError(
            f"option 'report' got {str(path)!r}, which cannot be written: {error.strerror or error}",
            option="report",
            got=str(path),
        ) from error


def _line(difference: Difference) -> str:
    key = _key(difference.key)
    if difference.kind != "different":
        return f"  {difference.kind:<9} {key}"
    source, target = difference.source or {}, difference.target or {}
    other = {name.lower(): value for name, value in target.items()}
    changes = ", ".join(
        f"{name}: {' -> '.join(_beside(source.get(name), other.get(name.lower())))}"
        for name in difference.columns
    )
    return f"  different {key}  {changes}"


def _key(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _beside(before: object, after: object) -> tuple[str, str]:
    """Two values that differ: long ones from shortly before the first character in which they do."""
    texts = _whole(before), _whole(after)
    if max(map(len, texts)) > _VALUE:
        pairs = enumerate(zip(*texts, strict=False))
        alike = next((number for number, (a, b) in pairs if a != b), min(map(len, texts)))
        if alike > _VALUE // 2:
            begin = alike - _VALUE // 3
            texts = f"...{texts[0][begin:]}", f"...{texts[1][begin:]}"
    return shortened(texts[0], _VALUE), shortened(texts[1], _VALUE)


def _short(value: object) -> str:
    return shortened(_whole(value), _VALUE)


def _whole(value: object) -> str:
    # Python's form of these is long, and begins alike for all of them.
    is_plain = isinstance(value, date | time | timedelta | Decimal)
    return str(value) if is_plain else repr(value)


def _json(value: object) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain)


def _finite(value: object) -> object:
    """The value with texts for doubles that JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(member) for key, member in value.items()}
    return [_finite(member) for member in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
