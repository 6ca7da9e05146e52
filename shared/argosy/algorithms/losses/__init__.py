"""Policy losses by name (`actor.policy_loss.loss_mode`). A new one is a file beside `vanilla.py` and a line here."""

from argosy.algorithms.losses.base import PolicyLoss, PolicyLossInputs, PolicyLossResult
from argosy.algorithms.losses.vanilla import vanilla_loss
from argosy.types.errors import InvalidInputError

LOSSES: dict[str, PolicyLoss] = {
    "vanilla": vanilla_loss,
}
"""loss_mode → per-token loss."""


def get_loss(mode: str) -> PolicyLoss:
    """The loss of that name. Raises InvalidInputError, which lists the known ones."""
    if mode not in LOSSES:
        raise InvalidInputError(f"unknown policy_loss.loss_mode {mode!r}; known: {', '.join(LOSSES)}")
    return LOSSES[mode]


__all__ = ["LOSSES", "PolicyLoss", "PolicyLossInputs", "PolicyLossResult", "get_loss"]
