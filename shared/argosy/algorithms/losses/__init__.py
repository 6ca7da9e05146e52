"""Policy losses by name (`actor.policy_loss.loss_mode`). A new one is a file beside `vanilla.py`, a line in LOSSES, and
one in the catalog; one in OPTIONS if it has numbers of its own; one in WHOLE_BATCH if it must see the whole mini-batch.
"""

from collections.abc import Callable

from argosy.algorithms.losses.base import PolicyLoss, PolicyLossInputs, PolicyLossResult
from argosy.algorithms.losses.bypass_mode import BypassOptions, bypass_column, bypass_loss, needs_bypass_column
from argosy.algorithms.losses.cispo import cispo_loss
from argosy.algorithms.losses.clip_cov import ClipCovOptions, clip_cov_column, clip_cov_loss
from argosy.algorithms.losses.dppo import dppo_kl_loss, dppo_tv_loss
from argosy.algorithms.losses.dro import DroOptions, dro_loss
from argosy.algorithms.losses.geo_mean import geo_mean_loss
from argosy.algorithms.losses.gpg import gpg_loss
from argosy.algorithms.losses.gspo import gspo_loss
from argosy.algorithms.losses.kl_cov import KlCovOptions, kl_cov_column, kl_cov_loss
from argosy.algorithms.losses.mini_batch import Floats, MiniBatch
from argosy.algorithms.losses.options import NoOptions, Options, read_options
from argosy.algorithms.losses.sapo import SapoOptions, sapo_loss
from argosy.algorithms.losses.vanilla import vanilla_loss
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig

LOSSES: dict[str, PolicyLoss] = {
    "vanilla": vanilla_loss,
    "gspo": gspo_loss,
    "sapo": sapo_loss,
    "gpg": gpg_loss,
    "clip_cov": clip_cov_loss,
    "kl_cov": kl_cov_loss,
    "geo_mean": geo_mean_loss,
    "cispo": cispo_loss,
    "dppo_tv": dppo_tv_loss,
    "dppo_kl": dppo_kl_loss,
    "dro": dro_loss,
    "bypass_mode": bypass_loss,
}
"""loss_mode → per-token loss."""

OPTIONS: dict[str, type[Options]] = {
    "sapo": SapoOptions,
    "clip_cov": ClipCovOptions,
    "kl_cov": KlCovOptions,
    "dro": DroOptions,
    "bypass_mode": BypassOptions,
}
"""loss_mode → what `LossConfig.options` may hold; nothing for the others."""

WHOLE_BATCH: dict[str, Callable[[MiniBatch, LossConfig], Floats]] = {
    "clip_cov": clip_cov_column,
    "kl_cov": kl_cov_column,
    "bypass_mode": bypass_column,
}
"""loss_mode → the column [N] that it needs from the whole mini-batch."""


def get_loss(mode: str) -> PolicyLoss:
    """The loss of that name. Raises InvalidInputError, which lists the known ones."""
    if mode not in LOSSES:
        raise InvalidInputError(f"unknown policy_loss.loss_mode {mode!r}; known: {', '.join(LOSSES)}")
    return LOSSES[mode]


def check_options(loss: LossConfig) -> None:
    """Raise InvalidInputError on an option that the loss doesn't know, or a senseless value."""
    get_loss(loss.loss_mode)
    read_options(OPTIONS.get(loss.loss_mode, NoOptions), loss)


def needs_mini_batch(loss: LossConfig) -> bool:
    """Whether the loss needs the column of WHOLE_BATCH."""
    if loss.loss_mode == "bypass_mode":
        return needs_bypass_column(loss)
    return loss.loss_mode in WHOLE_BATCH


__all__ = [
    "LOSSES",
    "OPTIONS",
    "WHOLE_BATCH",
    "MiniBatch",
    "PolicyLoss",
    "PolicyLossInputs",
    "PolicyLossResult",
    "check_options",
    "get_loss",
    "needs_mini_batch",
]
