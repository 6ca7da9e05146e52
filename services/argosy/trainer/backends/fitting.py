"""Whether a saved state belongs to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.types.errors import InvalidInputError

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
            f"the checkpoint's {part} is of another model: {'; '.join(faults[:_LISTED_FAULTS])}{more}", part=part
        )
