"""Writes findings/README.md, from the heads of the scripts there: `python -m tests.findings_page`."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FINDINGS", "Finding", "findings", "page"]

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = ROOT / "findings"
FIELDS = ("Guess", "Happens", "Version", "Copes", "Source")
"""The lines of a head, in this order; the last one may be missing."""

HEAD = """# Findings

What other programs do that one would not guess, and where spark-channel copes with it. Each script installs pinned
public packages in a temporary folder, runs them without spark-channel, and fails if they behave differently now. They
need Linux, `python3` with pip, and some of them `mvn` and `java`.

`make findings` runs all of them, `findings/NAME.sh` one. Tests run none.
`python -m tests.findings_page` writes this page from their heads.

| Program | Finding | One would guess | What happens | Where the code copes |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Finding:
    """The head of a script: what its lines say, by name."""

    path: Path
    lines: tuple[str, ...]

    @property
    def fields(self) -> dict[str, str]:
        """The head's fields; a line that begins with three blanks continues the one before.

        Raises:
            ValueError: a line that is neither.
        """
        found: dict[str, str] = {}
        name = ""
        for line in self.lines:
            if match := re.fullmatch(r"# (\w+): (\S.*)", line):
                name = match[1]
                found[name] = match[2]
            elif name and (match := re.fullmatch(r"#   (\S.*)", line)):
                found[name] += f" {match[1]}"
            else:
                raise ValueError(f"{self.path.name}: {line!r} is no line of a head")
        return found

    @property
    def modules(self) -> list[str]:
        return self.fields["Copes"].split(", ")

    @property
    def row(self) -> str:
        fields = self.fields
        copes = ", ".join(
            f"[{Path(module).parent.name}/{Path(module).name}](../{module})"
            for module in self.modules
        )
        cells = (
            fields["Version"],
            f"[{self.path.stem}]({self.path.name})",
            fields["Guess"],
            fields["Happens"]
            + (f" ([source]({fields['Source'].split(',')[0]}))" if "Source" in fields else ""),
            copes,
        )
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def findings() -> list[Finding]:
    """All scripts, by name."""
    return [Finding(path, _head(path)) for path in sorted(FINDINGS.glob("*.sh"))]


def _head(path: Path) -> tuple[str, ...]:
    """The comment behind the first line."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return tuple(lines[:end])


def page() -> str:
    rows = sorted(findings(), key=lambda each: (each.fields["Version"].lower(), each.path.stem))
    return HEAD + "".join(each.row for each in rows)


if __name__ == "__main__":
    (FINDINGS / "README.md").write_text(page(), encoding="utf-8")
