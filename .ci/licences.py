"""What the package depends on, with all extras for users: a table of licences, and the same as pinned requirements.

python .ci/licences.py TABLE REQUIREMENTS
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAMED_ELSEWHERE = {"hdfs-native": "Apache-2.0"}
"""By the bill of materials in the wheel of a package whose metadata names none."""
NOT_FOR_USERS = {"dev", "docs", "demo", "notebook"}


def licence(found: Distribution) -> str:
    """As the package says it: an expression, classifiers, or the first line of a text."""
    about = found.metadata
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier", [])
        if each.startswith("License ::")
    ]
    text = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    name = canonicalize_name(about["Name"])
    return re.split(r"[\n|]", text.strip())[0][:80] or NAMED_ELSEWHERE.get(name, "")


def needed(root: str) -> dict[str, Distribution]:
    """The packages that `root` asks for, and those that they ask for."""
    every = set(distribution(root).metadata.get_all("Provides-Extra", [])) - NOT_FOR_USERS
    waiting, seen, found = [(root, extra) for extra in ("", *sorted(every))], set(), {}
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = found[canonicalize_name(name)] = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed: run `make ready`")
        for text in package.requires or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                waiting += [(wanted.name, more) for more in ("", *wanted.extras)]
    del found[canonicalize_name(root)]
    return dict(sorted(found.items()))


table, requirements = map(Path, sys.argv[1:])
packages = needed("spark-channel")
lines = [f"| {name} | {each.version} | {licence(each)} |" for name, each in packages.items()]
table.write_text("\n".join(["| package | version | licence |", "|---|---|---|", *lines, ""]))
requirements.write_text("".join(f"{name}=={each.version}\n" for name, each in packages.items()))
if silent := [name for name, each in packages.items() if not licence(each)]:
    sys.exit(f"no licence is named by: {', '.join(silent)}")
sys.stdout.write(f"{len(packages)} packages: {table}\n")
