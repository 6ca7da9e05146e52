"""Weights manifests: made by a sender, checked by a receiver before the first byte."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from argosy.types.errors import InvalidInputError, WeightsRefusedError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec, TensorSpec, WeightsManifest
from argosy.weightsync.crc import to_hex

if TYPE_CHECKING:
    import torch

DTYPE_WIDTHS = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}
"""Bytes per element of the dtypes that a manifest may name."""

_CHECKSUM = re.compile(r"^[0-9a-f]{8}$")
_LISTED_FAULTS = 20
"""Faults spelled out in a refusal; the rest are counted, so that a message stays readable and small."""


class ShapedLike(Protocol):
    """What a receiver says about one of its tensors: TensorShape or TensorSpec."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        ...

    @property
    def dtype(self) -> str:
        """torch's name without the prefix."""
        ...


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape and dtype of a tensor that a receiver holds."""

    shape: tuple[int, ...]
    dtype: str


def manifest_digest(tensors: Iterable[TensorSpec], adapter: AdapterSpec | None = None) -> str:
    """sha256 (hex) over the tensors that send bytes, sorted by name; lineage and step are left out.

    So equal weights have equal digests, whatever version they belong to, and whether or not a tied name is listed. That
    of an adapter covers its base's digest and how it is applied.

    >>> a, b = TensorSpec("a", (1,), "int8", "00000000"), TensorSpec("b", (1,), "int8", "00000000", tied_to="a")
    >>> manifest_digest([a]) == manifest_digest([b, a])
    True
    """
    digest = hashlib.sha256()
    if adapter is not None:
        modules = ",".join(sorted(adapter.target_modules))
        digest.update(f"adapter\0{adapter.base.digest}\0{adapter.rank}\0{adapter.alpha!r}\0{modules}\n".encode())
    for spec in sorted((spec for spec in tensors if not spec.tied_to), key=lambda spec: spec.name):
        digest.update(f"{spec.name}\0{','.join(map(str, spec.shape))}\0{spec.dtype}\0{spec.checksum}\n".encode())
    return digest.hexdigest()


def make_manifest(
    lineage: str, step: int, specs: Iterable[TensorSpec], adapter: AdapterSpec | None = None
) -> WeightsManifest:
    """A manifest of given specs, named by their digest. InvalidInputError on an empty lineage or a step below 0."""
    if not lineage or step < 0:
        raise InvalidInputError(f"a version needs a lineage and a step from 0, got {lineage!r} and {step}")
    tensors = tuple(specs)
    return WeightsManifest(PolicyVersion(lineage, step, manifest_digest(tensors, adapter)), tensors, adapter)


def build_manifest(
    lineage: str, step: int, tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str] | None = None
) -> WeightsManifest:
    """Describe tensors (any device, any strides) as a version.

    Args:
        lineage: See PolicyVersion.
        step: See PolicyVersion.
        tensors: By name; sending order is the mapping's order.
        tied: Redundant name → owner name. The redundant tensor may be in `tensors` or not; it is listed with `tied_to`
            and sends no bytes.

    Raises:
        InvalidInputError: a dtype can't be sent, an owner is absent, or a "tied" tensor differs from its owner.
    """
    from argosy.weightsync.tensors import bytes_of, dtype_name

    ties = check_ties(tensors, tied or {})
    owners = {
        name: TensorSpec(name, tuple(tensor.shape), dtype_name(tensor), to_hex(zlib.crc32(bytes_of(tensor).data)))
        for name, tensor in tensors.items()
        if name not in ties
    }
    return make_manifest(lineage, step, with_ties(owners, ties))


def with_ties(owners: Mapping[str, TensorSpec], tied: Mapping[str, str]) -> list[TensorSpec]:
    """The owners' specs, then one for each tied name."""
    aliases = [
        TensorSpec(name, owners[owner].shape, owners[owner].dtype, owners[owner].checksum, tied_to=owner)
        for name, owner in tied.items()
    ]
    return [*owners.values(), *aliases]


def check_ties(tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> dict[str, str]:
    """The ties, checked against the sender's own tensors: a "tied" head with other values would be lost in silence."""
    import torch

    for name, owner in tied.items():
        if owner not in tensors or owner in tied:
            raise InvalidInputError(f"tensor {name!r} is tied to {owner!r}, which is not an owner among the tensors")
        if name not in tensors:
            continue
        redundant, kept = tensors[name], tensors[owner]
        if redundant.data_ptr() != kept.data_ptr() and not torch.equal(redundant, kept):
            raise InvalidInputError(f"tensor {name!r} is said to be tied to {owner!r} but holds other values")
    return dict(tied)


def check_manifest(
    manifest: WeightsManifest,
    expected: Mapping[str, ShapedLike],
    tied: Mapping[str, str] | None = None,
    casts: Collection[tuple[str, str]] = (),
) -> None:
    """Check that a manifest fits a receiver's model, before the first byte. One of an adapter has to fit its modules.

    Args:
        manifest: The sender's.
        expected: The receiver's tensors by name, tied names included or not.
        tied: The receiver's redundant name → owner name. The manifest may omit a redundant name, list it as tied, or
            carry it with bytes of its own, which must then equal its owner's (by checksum).
        casts: Accepted (sent dtype, held dtype) pairs beyond equality, such as ("float32", "bfloat16").

    Raises:
        WeightsRefusedError: lists every unknown, missing, misshapen or wrong-dtype tensor and every broken tie.
    """
    ties = dict(tied or {})
    faults = _structure_faults(manifest)
    specs = {spec.name: spec for spec in manifest.tensors}
    if manifest.adapter is not None:
        from argosy.weightsync.adapter import adapter_faults

        faults += adapter_faults(manifest.adapter, manifest.tensors, expected)
        expected, ties, specs = {}, {}, {}
    for name in sorted(specs.keys() - expected.keys() - ties.keys()):
        faults.append(f"{name}: unknown to this model")
    for name in sorted(expected.keys() - ties.keys() - specs.keys()):
        faults.append(f"{name}: missing from the manifest")
    for name in [name for name in expected if name in specs]:
        faults.extend(_fit_faults(specs[name], expected[name], casts))
    for name, owner in ties.items():
        faults.extend(_tie_faults(name, owner, specs))
    if faults:
        raise _refusal(manifest, faults)


def _structure_faults(manifest: WeightsManifest) -> list[str]:
    """What is wrong with the manifest in itself, whatever the model."""
    specs = {spec.name: spec for spec in manifest.tensors}
    counts = Counter(spec.name for spec in manifest.tensors)
    faults = [f"{name}: listed {count} times" for name, count in counts.items() if count > 1]
    for spec in manifest.tensors:
        owner = specs.get(spec.tied_to) if spec.tied_to else None
        if spec.dtype not in DTYPE_WIDTHS:
            faults.append(f"{spec.name}: dtype {spec.dtype!r} is not one of {sorted(DTYPE_WIDTHS)}")
        if any(extent < 0 for extent in spec.shape):
            faults.append(f"{spec.name}: shape {spec.shape} has a negative extent")
        if not _CHECKSUM.match(spec.checksum):
            faults.append(f"{spec.name}: checksum {spec.checksum!r} is not eight hex digits")
        if spec.tied_to and (owner is None or owner.tied_to):
            faults.append(f"{spec.name}: tied to {spec.tied_to!r}, which sends no bytes in this manifest")
        elif owner is not None and not _same_weights(spec, owner):
            faults.append(f"{spec.name}: tied to {spec.tied_to!r} but of another shape, dtype or checksum")
    digest = manifest_digest(manifest.tensors, manifest.adapter)
    if manifest.version.digest != digest:
        faults.append(
            f"the version's digest {manifest.version.digest[:12]!r} is not that of its tensors ({digest[:12]})"
        )
    return faults


def _same_weights(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.shape, a.dtype, a.checksum) == (b.shape, b.dtype, b.checksum)


def _fit_faults(spec: TensorSpec, held: ShapedLike, casts: Collection[tuple[str, str]]) -> list[str]:
    faults = []
    if tuple(spec.shape) != tuple(held.shape):
        faults.append(f"{spec.name}: shape {tuple(spec.shape)} sent, {tuple(held.shape)} held")
    if spec.dtype != held.dtype and (spec.dtype, held.dtype) not in casts:
        faults.append(f"{spec.name}: dtype {spec.dtype} sent, {held.dtype} held, and no such cast is accepted")
    return faults


def _tie_faults(name: str, owner: str, specs: Mapping[str, TensorSpec]) -> list[str]:
    """A redundant tensor that differs from its owner would be dropped in silence, or the owner would (case D2)."""
    if name not in specs or owner not in specs or _same_weights(specs[name], specs[owner]):
        return []
    return [f"{name}: tied to {owner!r} in this model but sent with other values (checksum, shape or dtype differ)"]


def _refusal(manifest: WeightsManifest, faults: list[str]) -> WeightsRefusedError:
    more = f"; and {len(faults) - _LISTED_FAULTS} more" if len(faults) > _LISTED_FAULTS else ""
    return WeightsRefusedError(
        f"weights {manifest.version.short} do not fit this model, the old version goes on: "
        + "; ".join(faults[:_LISTED_FAULTS])
        + more,
        fault_count=str(len(faults)),
        version=manifest.version.short,
    )
