"""Whether a saved state belongs to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.types.errors import InvalidInputError

_LORA_A = ".lora_A.default.weight"
"""Ending of the name of an adapter's first factor, of shape [rank, inputs]."""
_LISTED_FAULTS = 8
"""Tensors named in a refusal; the rest are counted."""


def check_fit(part: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, naming the tensors (case H5).

    Args:
        part: "model" or "optimizer".
        expected: Shape of each tensor.
        found: The saved tensors.
    """
    faults = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    faults += [f"{name} is unknown to this model" for name in sorted(found.keys() - expected.keys())]
    faults += [
        f"{name} has shape {tuple(found[name].shape)}, this model's has {shape}"
        for name, shape in expected.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    if faults:
        more = f" and {len(faults) - _LISTED_FAULTS} more" if len(faults) > _LISTED_FAULTS else ""
        raise InvalidInputError(
            f"the checkpoint's {part} is of another model: {'; '.join(faults[:_LISTED_FAULTS])}{more}"
            + _other_rank({name: tuple(tensor.shape) for name, tensor in found.items()}, expected),
            part=part,
        )


def _other_rank(saved: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """The key to blame where both differ by the rank of LoRA; else nothing."""
    before, now = (
        max((shape[0] for name, shape in shapes.items() if name.endswith(_LORA_A)), default=0)
        for shapes in (saved, expected)
    )
    if before == now:
        return ""
    return (
        f". It was saved with actor_rollout_ref.model.lora_rank={before}, this run has {now}: set it back, or start a "
        "new run with another trainer.experiment_name"
    )
