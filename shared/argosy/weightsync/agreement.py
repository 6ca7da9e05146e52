"""Proof, after a sync, that both sides hold the same weights: by digest, and by the log-probs that they give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from argosy.types.errors import CorruptDataError
from argosy.types.records import WeightsManifest


def verify_agreement(sent: WeightsManifest, held: WeightsManifest) -> None:
    """Check that the receiver holds what the sender sent; CorruptDataError names the tensors that differ."""
    if sent.version == held.version:
        return
    left = {spec.name: spec for spec in sent.tensors if not spec.tied_to}
    right = {spec.name: spec for spec in held.tensors if not spec.tied_to}
    names = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    raise CorruptDataError(
        f"after the sync the sender holds {sent.version.short} and the receiver {held.version.short}; "
        + (f"tensors that differ: {listed}" if names else "the tensors are equal, the names of the version are not"),
        sent=sent.version.short,
        held=held.version.short,
    )


def verify_canary(
    sender: Sequence[float] | npt.NDArray[np.float32],
    receiver: Sequence[float] | npt.NDArray[np.float32],
    *,
    tolerance: float = 1e-3,
) -> float:
    """Compare both sides' log-probs of the same tokens, [T] nats each; returns the largest difference.

    A checksum shows that the bytes arrived; this shows that the engine really computes with them (a stale tied head or
    a prepacked copy passes every checksum). fp32 engines agree to 5e-5, bf16 ones only to about 0.3.

    Raises:
        CorruptDataError: a difference over `tolerance`, a NaN, or different lengths.
    """
    left, right = np.asarray(sender, np.float64), np.asarray(receiver, np.float64)
    if left.shape != right.shape:
        raise CorruptDataError(f"the canary has {left.shape} log-probs at the sender, {right.shape} at the receiver")
    worst = float(np.max(np.abs(left - right), initial=0.0))
    if not worst <= tolerance:
        raise CorruptDataError(
            f"after the sync the canary's log-probs differ by {worst:.3g}, over the tolerance {tolerance:.3g}: "
            "the receiver does not compute with the weights that it reports",
            difference=str(worst),
        )
    return worst
