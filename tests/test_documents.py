"""The documents: links lead somewhere, commands can be given as written, and the README names them all."""

import re
import shlex
from pathlib import Path

import pytest

from rose.cli.main import COMMANDS, app

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("demo/*.md")]


def anchors(document: Path) -> set[str]:
    """The names that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(REPOSITORY)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(REPOSITORY)))
def test_commands_can_be_given_as_written(document: Path) -> None:
    text = document.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(?:\$ |.*\| )?(?:\.venv/bin/)?rose ([a-z].*)$", text, re.MULTILINE):
        arguments = shlex.split(line.removesuffix("&"), comments=True)
        if arguments[0] in COMMANDS and "[" not in line:  # one with brackets is a synopsis
            app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_readme_names_every_command() -> None:
    named = re.findall(r"^\| `rose (\w+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert set(named) == set(COMMANDS)
