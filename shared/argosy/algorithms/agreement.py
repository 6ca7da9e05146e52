"""How well the engine that sampled and the trainer agree on the probabilities of the sampled tokens.

Under equal weights the two differ only by arithmetic (dtype, order of sums). A growing difference means stale weights,
a wrong temperature or a template mismatch: the quiet faults of such systems. Names as in verl.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rollout_agreement(trainer: npt.NDArray[Any], rollout: npt.NDArray[Any]) -> dict[str, float]:
    """Compare log-probs [N] of the same trained tokens; empty for no tokens.

    training/rollout_probs_diff_{max,mean,std} of |π_trainer - π_rollout|, and the Pearson correlation of the two
    probabilities (left out where one of them is constant).
    """
    if not len(trainer):
        return {}
    ours, theirs = np.exp(trainer.astype(np.float64)), np.exp(rollout.astype(np.float64))
    difference = np.abs(ours - theirs)
    metrics = {
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std()),
    }
    if len(ours) > 1 and ours.std() > 0 and theirs.std() > 0:
        metrics["training/rollout_actor_probs_pearson_corr"] = float(np.corrcoef(ours, theirs)[0, 1])
    return metrics
