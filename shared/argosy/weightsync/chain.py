"""Versions of weights in a folder that sender and receivers share: whole ones, and deltas from one to the next.

    <folder>/
        00000007-base-main-40-1f2e3d4c5b6a/     a link: everything of one version
            weights-00001.safetensors           tensors by name, as any reader of safetensors takes them
            version.json                        written last: manifest, files, checksums
        00000008-delta-main-41-…/               a link: what changed since the version that it names
            delta.safetensors                   records of `delta`, a tensor of bytes for each that changed
            version.json
        .partial-…                              being written, or left by a killed writer: no reader looks at it

A link is built under another name and moved to its place whole, so it is there or not (case E3). The number in front
counts the links written to the folder. A *chain* leads to a version: links from a base, or from a version that the
receiver holds in memory, each the delta of the one before. Every few versions there is a base beside the delta, so that
chains stay short and a damaged link costs those behind it no longer than to the next base.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from argosy.types.errors import CorruptDataError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TensorSpec, WeightsManifest
from argosy.weightsync.crc import crc32, to_hex

RECORD = "version.json"
BASE, DELTA = "base", "delta"
PARTIAL = ".partial-"
_FORMAT = 1
_NAMED_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """How a sender keeps a chain."""

    base_every: int = 8
    """A whole version after so many links: what a newcomer has to read at most. 1 writes only whole ones."""
    keep: int = 2
    """Newest versions that stay, beside the links that their chains need."""


@dataclass(frozen=True, slots=True)
class LinkFile:
    """One safetensors file of a link."""

    name: str
    size: int
    """Bytes: one cut short is seen without reading it."""
    tensors: Mapping[str, str]
    """Name → hex crc32 of its bytes in the file."""


@dataclass(frozen=True, slots=True)
class Link:
    """A version as it lies in the folder, whole or as a delta."""

    folder: Path
    sequence: int
    kind: str
    """BASE or DELTA."""
    manifest: WeightsManifest
    parent: PolicyVersion | None
    """DELTA: what it is applied to."""
    files: tuple[LinkFile, ...]

    @property
    def version(self) -> PolicyVersion:
        """That it leads to."""
        return self.manifest.version

    def complete(self) -> bool:
        """Whether every file is there with its size; reads none."""
        try:
            return all((self.folder / file.name).stat().st_size == file.size for file in self.files)
        except OSError:
            return False


Chain = tuple[Link, ...]
"""Links to apply one after the other; a BASE stands only in front."""


def link_name(sequence: int, kind: str, version: PolicyVersion) -> str:
    """The folder's name: readable, and unique by its number and digest."""
    return f"{sequence:08d}-{kind}-{quote(version.lineage, safe='')}-{version.step}-{version.digest[:_NAMED_DIGITS]}"


def read_links(folder: Path) -> list[Link]:
    """Every link with a readable record, in the order of writing. What is half-written or damaged is left out."""
    return [link for link, _ in _read_all(folder) if link is not None]


def damaged_links(folder: Path) -> list[str]:
    """Names of folders that look like links but aren't whole, with what is wrong, for a refusal to name."""
    found = [f"{name}: {fault}" for link, (name, fault) in _read_all(folder) if link is None]
    return found + [
        f"{link.folder.name}: a file is missing or cut" for link in read_links(folder) if not link.complete()
    ]


def chains_to(links: Sequence[Link], version: PolicyVersion, held: PolicyVersion | None = None) -> list[Chain]:
    """Every way to a version through links whose files are there, the cheapest first.

    Args:
        links: As `read_links` gives them.
        version: Where to.
        held: A version that the receiver has already: a chain may begin after it. It comes first.
    """
    whole = [link for link in links if link.complete()]
    bases = {link.version: link for link in whole if link.kind == BASE}  # of several the newest
    deltas = {link.version: link for link in whole if link.kind == DELTA}
    found: list[Chain] = []
    behind: Chain = ()
    current: PolicyVersion | None = version
    for _ in range(len(links) + 1):  # a ring of deltas can't be written, but could be made up
        if current is None:
            break
        if current == held:
            found.insert(0, behind)
        if current in bases:
            found.append((bases[current], *behind))
        step = deltas.get(current)
        behind, current = ((step, *behind), step.parent) if step is not None else (behind, None)
    return found


def prune(folder: Path, keep: int) -> list[str]:
    """Remove links that neither one of the `keep` newest versions nor a chain to one needs; the names of those removed.

    Kept are for each version the chain from its nearest base, so at most `keep` versions and one chain's length of
    older ones stay. Leftovers of killed writers go too.
    """
    links = read_links(folder)
    newest = list(dict.fromkeys(link.version for link in reversed(links)))[:keep]
    needed = {link.folder for link in links if link.version in newest}
    for version in newest:
        needed |= {link.folder for link in next(iter(chains_to(links, version)), ())}
    removed = [path for path in _folders(folder) if path not in needed and _is_link(path)]
    for path in [*removed, *folder.glob(f"{PARTIAL}*")]:
        remove(path)
    return [path.name for path in removed]


def remove(path: Path) -> None:
    """Remove a link: its record first, so that nobody takes what is left of it for whole."""
    (path / RECORD).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def next_sequence(folder: Path) -> int:
    """One more than the highest number in use, damaged links included."""
    return max((int(path.name.partition("-")[0]) for path in _folders(folder) if _is_link(path)), default=0) + 1


def write_record(link: Link) -> bytes:
    """The content of a link's RECORD."""
    body = {
        "format": _FORMAT,
        "sequence": link.sequence,
        "kind": link.kind,
        "version": _version_to_json(link.version),
        "parent": None if link.parent is None else _version_to_json(link.parent),
        "tensors": [[t.name, [*t.shape], t.dtype, t.checksum, t.tied_to] for t in link.manifest.tensors],
        "files": [{"name": f.name, "size": f.size, "tensors": dict(f.tensors)} for f in link.files],
    }
    return json.dumps({"checksum": _checksum(body), "link": body}).encode()


def _read_all(folder: Path) -> Iterator[tuple[Link | None, tuple[str, str]]]:
    for path in sorted(_folders(folder)):
        if _is_link(path):
            try:
                yield _read_record(path), (path.name, "")
            except (OSError, ValueError, KeyError, TypeError, AttributeError, CorruptDataError) as error:
                yield None, (path.name, f"its {RECORD} can't be read ({error})")


def _read_record(path: Path) -> Link:
    whole = json.loads((path / RECORD).read_bytes())
    body = whole["link"]
    if whole["checksum"] != _checksum(body):
        raise CorruptDataError("its checksum is wrong")
    if body["format"] != _FORMAT:
        raise CorruptDataError(f"format {body['format']} is not {_FORMAT}")
    specs = tuple(TensorSpec(name, tuple(shape), *rest) for name, shape, *rest in body["tensors"])
    files = tuple(LinkFile(file["name"], file["size"], file["tensors"]) for file in body["files"])
    if any("/" in file.name or file.name.startswith(".") for file in files):
        raise CorruptDataError("it names files outside of its folder")
    manifest = WeightsManifest(_version_from_json(body["version"]), specs)
    parent = None if body["parent"] is None else _version_from_json(body["parent"])
    return Link(path, body["sequence"], body["kind"], manifest, parent, files)


def _folders(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_link(path: Path) -> bool:
    number, _, rest = path.name.partition("-")
    return number.isdecimal() and rest.startswith((f"{BASE}-", f"{DELTA}-"))


def _version_to_json(version: PolicyVersion) -> list[Any]:
    return [version.lineage, version.step, version.digest]


def _version_from_json(fields: Sequence[Any]) -> PolicyVersion:
    lineage, step, digest = fields
    return PolicyVersion(str(lineage), int(step), str(digest))


def _checksum(body: Mapping[str, Any]) -> str:
    return to_hex(crc32(json.dumps(body, sort_keys=True).encode()))
