"""Puts what lives beside docs/ on the site, the notebooks and README.md as the home page: a hook of mkdocs.

It runs before mkdocs-jupyter.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


@event_priority(100)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    home = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    home = home.replace("[Changelog](CHANGELOG.md). ", "")  # no page of the site
    files.append(File.generated(config, "index.md", content=home))
    return files
