"""`manifest.json`: what a converted checkpoint was made from, what was done to each tensor, and what it must look like.

It is checked when the checkpoint is opened: sizes, headers and names against the files. The hashes of the data take a
reading of everything, and are checked by `rose inspect --hashes`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from rose.errors import CheckpointError
from rose.numerics.loss import Loss
from rose.weights.safetensors_header import TensorInfo

MANIFEST_NAME = "manifest.json"
# Of this file's own form. A reader refuses what is newer than it knows.
MANIFEST_VERSION = 1
_MARK = "rose_manifest"


class _Source(TypedDict):
    name: str
    sha256: str


class _Formats(TypedDict):
    experts: str
    dense: str


class _File(TypedDict):
    bytes: int
    header_sha256: str


class _Loss(TypedDict):
    exact_blocks: int
    inexact_blocks: int
    max_abs_error: float
    max_relative_error: float
    rms_relative_error: float


class _Account(TypedDict):
    transform: str
    targets: dict[str, str]
    loss: _Loss | None


class _Form(TypedDict):
    """What of a manifest is read, here and where it is shown."""

    source: _Source
    layout: str
    formats: _Formats
    files: dict[str, _File]
    ledger: list[_Account]


@dataclass(frozen=True, slots=True)
class Account:
    """What a rule did. sources: the SHA-256 of each tensor read. targets: of each tensor written.

    loss: what the change of format cost; None where nothing changed.
    """

    transform: str
    sources: Mapping[str, str]
    targets: Mapping[str, str]
    loss: Loss | None

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return {**asdict(self), "loss": None if self.loss is None else self.loss.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Account":
        """What `to_json` wrote."""
        loss = values["loss"]
        return cls(
            values["transform"], values["sources"], values["targets"], None if loss is None else Loss.from_json(loss)
        )


def make_manifest(
    *,
    source: Mapping[str, Any],
    layout: str,
    formats: Mapping[str, str],
    headers: Mapping[str, bytes],
    sizes: Mapping[str, int],
    accounts: list[Account],
    version: str,
) -> dict[str, Any]:
    """The object to write.

    source: `name`, `layout` and `formats` of what was converted; a hash over the hashes of its tensors is added.
    headers, sizes: of each file, the first bytes and the length. version: of rose.
    """
    hashes = {name: digest for account in accounts for name, digest in account.sources.items()}
    total = Loss()
    for account in accounts:
        total += account.loss or Loss()
    return {
        _MARK: MANIFEST_VERSION,
        "rose_version": version,
        "source": {**source, "sha256": _hash_of_hashes(hashes)},
        "layout": layout,
        "formats": dict(formats),
        "files": {
            name: {"bytes": sizes[name], "header_sha256": hashlib.sha256(header).hexdigest()}
            for name, header in headers.items()
        },
        "exact_blocks": total.exact_blocks,
        "inexact_blocks": total.inexact_blocks,
        "ledger": [account.to_json() for account in accounts],
    }


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if there is none, or one of another program. Raises CheckpointError."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(manifest, dict) or _MARK not in manifest:
        return None
    if manifest[_MARK] != MANIFEST_VERSION:
        raise CheckpointError(f"{path} is of version {manifest[_MARK]!r}, this rose reads {MANIFEST_VERSION}")
    return manifest


def check_manifest(
    folder: Path, manifest: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> None:
    """Compare a manifest with the files beside it, without reading tensors. Raises CheckpointError."""
    path = folder / MANIFEST_NAME
    try:
        msgspec.convert(manifest, _Form)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for half a surrogate
        raise CheckpointError(f"{path} is damaged: {error}") from error
    expected = {name for account in manifest["ledger"] for name in account["targets"]}
    facts = {folder / name: (entry["bytes"], entry["header_sha256"]) for name, entry in manifest["files"].items()}
    try:
        _check_files(path, facts, tensors)
    except OSError as error:  # a name too long, for one
        raise CheckpointError(f"{path} names a file that cannot be read: {error}") from error
    if manifest.get("layout") == "rose":
        _check_formats(path, manifest.get("formats"), config.get("quantization_config"))
    for name in sorted(tensors.keys() ^ expected):
        where = f"in {tensors[name].file} but not in {path}" if name in tensors else f"in {path} but in no file"
        raise CheckpointError(f"{name} is {where}")


def _check_files(path: Path, facts: Mapping[Path, tuple[Any, Any]], tensors: Mapping[str, TensorInfo]) -> None:
    """facts: what the manifest at `path` says of each file, its length and the hash of its header."""
    for file in sorted({info.file for info in tensors.values()} - facts.keys()):
        raise CheckpointError(f"{path} does not name {file.name}")
    for file, (num_bytes, digest) in facts.items():
        if not file.is_file():
            raise CheckpointError(f"{path} names {file.name}, which is missing")
        if file.stat().st_size != num_bytes:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, {path} says {num_bytes}")
        if _hash_header(file) != digest:
            raise CheckpointError(f"{file}: its header is not the one that {path} has the hash of")


def _check_formats(path: Path, formats: Any, said: Any) -> None:
    if not isinstance(formats, dict) or not isinstance(said, dict):
        raise CheckpointError(f"{path} is of rose's layout, but it or config.json does not say which formats are used")
    if any(said.get(weights) != name for weights, name in formats.items()):
        raise CheckpointError(f"{path} says that the formats are {formats}, config.json says {said}")


def _hash_header(file: Path) -> str:
    with file.open("rb") as data:
        length = data.read(8)
        # No more than there is: what is no safetensors file may seem to ask for all memory.
        num_bytes = min(int.from_bytes(length, "little"), file.stat().st_size)
        return hashlib.sha256(length + data.read(num_bytes)).hexdigest()


def _hash_of_hashes(hashes: Mapping[str, str]) -> str:
    """Of names and hashes in order of name, so that it does not depend on how tensors lay in files."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
