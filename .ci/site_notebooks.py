"""Puts the notebooks, which live beside docs/, on the site: a hook of mkdocs, run before mkdocs-jupyter."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@event_priority(100)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        files.append(File(name, str(NOTEBOOKS.parent), config.site_dir, config.use_directory_urls))
    return files
