"""The pictures of docs are those that their script draws from the present connectors."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pictures import pictures


@pytest.mark.parametrize(
    ("path", "picture"), [pytest.param(*each, id=each[0].stem) for each in pictures()]
)
def test_a_picture_is_what_its_script_draws(path: Path, picture: str) -> None:
    ElementTree.fromstring(picture)
    assert path.read_text(encoding="utf-8") == picture, "run python -m tests.pictures"
