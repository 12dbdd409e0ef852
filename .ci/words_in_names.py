"""How many names that code assigns say nothing of the value: `found`, `each`, `made`. Fails above BOUND percent.

python .ci/words_in_names.py [FOLDER]

It counts parameters (without self and cls) and all that is assigned: by `=`, `:=`, `for`, `with`, `except`, in a
comprehension, as a class's field. A leading underscore does not matter. `for column in columns` says what `each` hides.
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

BOUND = 1.5

STOPGAP = re.compile(
    "asked|done|each|found|given|held|kept|known|left|listed|made|more|opened|own|place|rest|said|seen|shown|taken|there"
    "|wanted|what|why"
)
ROOT = Path(__file__).parents[1]


def assigned(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            names.append(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.append(node.name)
    return [name.strip("_") for name in names]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(folder: Path) -> int:
    total = 0
    stopgaps: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        names = assigned(ast.parse(file.read_text(encoding="utf-8")))
        hollow = [name for name in names if STOPGAP.fullmatch(name)]
        total += len(names)
        stopgaps.update(hollow)
        files[str(file.relative_to(ROOT))] += len(hollow)
    share = 100 * stopgaps.total() / total
    say(
        f"{stopgaps.total()} of {total} assigned names say nothing of the value: {share:.2f} % (at most {BOUND} %)"
    )
    if share <= BOUND:
        return 0
    say("most: " + ", ".join(f"{name} {count}" for name, count in stopgaps.most_common(8)))
    for path, count in files.most_common(12):
        say(f"{count:5} {path}")
    return 1


if __name__ == "__main__":
    sys.exit(main(ROOT / (sys.argv[1] if len(sys.argv) > 1 else "spark_channel")))
