"""Files whose content did not come along: empty ones, and what Git leaves of a large file in a clone without Git LFS.

The pointer's form: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from pathlib import Path

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def missing_content(path: Path) -> str | None:
    """Why a file cannot be what its name says, if its first bytes tell; else None. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(len(_LFS_POINTER))
    if not first:
        return "it is empty"
    if first == _LFS_POINTER:
        return "it is a Git LFS pointer, not the file: run `git lfs pull` in its folder"
    return None
