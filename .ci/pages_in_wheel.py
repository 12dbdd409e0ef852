"""The documentation's pages in the wheel, for `spark-channel help TOPIC`; an installation in place has them in docs."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesInWheel(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        docs = Path(self.root) / "docs"
        for page in sorted(docs.rglob("*.md")):
            place = Path("spark_channel", "docs", page.relative_to(docs))
            build_data["force_include"][str(page)] = str(place)
