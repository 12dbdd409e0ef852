"""The rooms of the large connectors: files, and folders as one each, on floors by what they import."""

import ast
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.test_import_cycles import ROOT, imports, modules

Rooms = dict[str, set[str]]


def rooms_of(package: str, known: Mapping[str, Collection[str]]) -> Rooms:
    """What each room of a package imports of its other rooms, types included."""
    rooms: Rooms = {}
    for name, imported in known.items():
        if not name.startswith(f"{package}."):
            continue
        room = _room(package, name)
        others = {_room(package, other) for other in imported if other.startswith(f"{package}.")}
        rooms.setdefault(room, set()).update(others - {room})
    return rooms


def _room(package: str, module: str) -> str:
    return module.removeprefix(f"{package}.").split(".")[0]


def floors(rooms: Rooms, without: Collection[tuple[str, str]] = ()) -> int:
    """How many floors rooms have, each above those that it imports.

    Args:
        without: arrows that are left out, each (from, to).

    Raises:
        CycleError: rooms import each other.
    """
    below = {
        room: {other for other in others if (room, other) not in without}
        for room, others in rooms.items()
    }
    height: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        height[room] = 1 + max((height[other] for other in below[room]), default=0)
    return max(height.values())


@pytest.mark.parametrize(
    ("name", "most_rooms", "most_floors", "upwards"),
    [
        ("sql", 14, 6, [("read", "feed")]),  # a reader makes its feed, which reads by it
        ("postgresql", 12, 9, []),
        ("mysql", 8, 6, []),
    ],
)
def test_rooms_are_few_and_on_few_floors(
    name: str, most_rooms: int, most_floors: int, upwards: list[tuple[str, str]]
) -> None:
    package = f"spark_channel.connectors.{name}"
    known = imports(modules(ROOT, "spark_channel"), ast.walk)
    rooms = rooms_of(package, known)
    assert len(rooms) <= most_rooms, sorted(rooms)
    assert floors(rooms, upwards) <= most_floors
    for room, other in upwards:
        arrows = {
            (module, imported)
            for module in known
            if module.startswith(f"{package}.{room}.")
            for imported in known[module]
            if imported.startswith(f"{package}.{other}.")
        }
        assert 0 < len(arrows) <= 4, arrows


def test_a_folder_is_one_room(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / "read").mkdir(parents=True)
    (shop / "__init__.py").touch()
    (shop / "read" / "__init__.py").touch()
    (shop / "words.py").touch()
    (shop / "read" / "splits.py").write_text("from shop import words")
    (shop / "read" / "reader.py").write_text("from shop.read import splits")
    (shop / "write.py").write_text("from shop.read.reader import Reader")
    rooms = rooms_of("shop", imports(modules(tmp_path, "shop"), ast.walk))
    assert rooms == {"words": set(), "read": {"words"}, "write": {"read"}}
    assert floors(rooms) == 3
    assert floors(rooms, [("write", "read")]) == 2
