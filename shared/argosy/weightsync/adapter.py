"""LoRA adapters as versions of their own: a few MB on top of weights that a receiver holds already.

The tensors are named as the modules that they adapt, MODULE.lora_A.weight [rank, in] and MODULE.lora_B.weight
[out, rank], in the adapter's own dtype (a cast would cost what the adapter has learnt). The version's digest covers
them, rank, alpha, modules and the digest of the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.types.records import AdapterSpec, TensorSpec
from argosy.weightsync.manifest import ShapedLike

if TYPE_CHECKING:
    from torch import Tensor

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"
MISSING_BASE = "adapter_base"
"""`metadata["missing"]` of the NotFoundError of a receiver that doesn't hold the base: send that first."""
NO_LONE_ADAPTER = "no_lone_adapter"
"""`metadata["state"]` of the StateError of a trainer whose adapter can't be told by one rank and alpha."""


def adapter_faults(
    adapter: AdapterSpec, tensors: Sequence[TensorSpec], expected: Mapping[str, ShapedLike]
) -> Iterator[str]:
    """What does not fit a model about an adapter; nothing, if it fits.

    Args:
        adapter: Of a manifest.
        tensors: Of the same.
        expected: The model's tensors, by the names that a trainer sends.
    """
    specs = {spec.name: spec for spec in tensors}
    if adapter.rank < 1:
        yield f"the adapter's rank is {adapter.rank}"
    if not adapter.target_modules or len(set(adapter.target_modules)) < len(adapter.target_modules):
        yield "the adapter has no modules, or one of them twice"
    for module in adapter.target_modules:
        held = expected.get(f"{module}.weight")
        if held is None or len(held.shape) != 2:
            yield f"{module}: this model has no such module with a matrix"
            continue
        rows, columns = held.shape
        wanted = {f"{module}{A_SUFFIX}": (adapter.rank, columns), f"{module}{B_SUFFIX}": (rows, adapter.rank)}
        for name, shape in wanted.items():
            if name not in specs:
                yield f"{name}: missing from the manifest"
            elif specs[name].shape != shape:
                yield f"{name}: shape {specs[name].shape} sent, {shape} fits"
    known = {f"{module}{suffix}" for module in adapter.target_modules for suffix in (A_SUFFIX, B_SUFFIX)}
    for name in sorted(specs.keys() - known):
        yield f"{name}: belongs to none of the adapter's modules"


def merge(adapter: AdapterSpec, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """W + alpha / rank · B·A of every module, [out, in], in W's dtype; new tensors, on W's device.

    Computed in the wider dtype of both and rounded once. Where W is what the trainer merges into, these are the bits
    that it would have sent merged; of a W that was cast on its way (float32 to bfloat16) some differ by a rounding.

    Args:
        adapter: Its spec.
        tensors: Its tensors.
        base: At least MODULE.weight of every module, without the adapter.
    """
    import torch

    found = {}
    with torch.inference_mode():
        for module in adapter.target_modules:
            weight = base[f"{module}.weight"]
            a, b = (tensors[module + suffix].to(weight.device) for suffix in (A_SUFFIX, B_SUFFIX))
            update = adapter.scaling * (b @ a)
            wide = torch.promote_types(weight.dtype, update.dtype)
            found[f"{module}.weight"] = (weight.to(wide) + update.to(wide)).to(weight.dtype)
    return found
