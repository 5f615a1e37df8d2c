"""docs/architecture.md is a map of the tree: what it names exists, and every room is on it."""

import re
from pathlib import Path

import rose

ROOT = Path(rose.__file__).parent
PAGE = re.sub(r"(?s)```.*?```", "", (ROOT.parent / "docs" / "architecture.md").read_text())
NAMES = re.findall(r"`([^`]+)`", PAGE)
ROOMS = {path.stem for path in ROOT.iterdir() if not path.name.startswith("_")}


def test_every_path_on_the_page_exists() -> None:
    paths = [name for name in NAMES if name.split("/")[0] in ROOMS and "<" not in name]
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()] == []


def test_every_room_and_every_part_of_the_engine_is_on_the_page() -> None:
    parts = {path.stem for path in (ROOT / "engine").rglob("*.py") if path.name != "__init__.py"}
    assert (ROOMS | parts) - set(re.findall(r"\w+", " ".join(NAMES))) == set()
