"""The optimizer over float32 master weights: global-norm clip, skipped steps, and how much really moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from argosy.trainer.optimizer_kinds import kind_of, make_optimizer
from argosy.trainer.options import OptimizerOptions
from argosy.trainer.sharded import global_norm, local, total_over_ranks
from argosy.types.errors import InternalError

COUNTERS = ("skipped_steps", "consecutive_skips")
"""What is counted over a run and saved with it."""
PROBE_ELEMENTS = 4096
"""Elements per tensor that are watched for change: enough for a share with two digits, and nearly free."""
STATE_KEYS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state of each parameter."""

_NORM_EPSILON = 1e-6
"""PyTorch's, in the divisor of clipping."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one optimizer step did."""

    grad_norm: float
    """Global L2 norm before clipping; NaN or inf as it was."""
    changed_share: float
    """Share of (watched) weights whose stored value differs after the step; 0 if skipped."""
    skipped: bool


class MasterOptimizer:
    """AdamW (or what `optimizer_kinds` has in its place) on named parameters.

    A gradient norm that isn't finite skips the step: one bad micro-batch must not poison moments and weights for ever.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: OptimizerOptions) -> None:
        self._parameters = dict(parameters)
        self._options = options
        self._kind = kind_of(options)
        self._adam = make_optimizer(self._kind, self._parameters, options)
        self.skipped_steps = 0
        """Since the start of the run."""
        self.consecutive_skips = 0
        self._keeps_gradients = False

    def reserve(self) -> None:
        """Take the memory of gradients and moments now, and keep that of the gradients from step to step.

        Made one by one between activations that come and go, they would leave gaps in the heap that later activations
        don't fit into. Where the state isn't that of PyTorch's AdamW, only gradients are made. Repeating does no harm.
        """
        if self._keeps_gradients:
            return
        self._keeps_gradients = True
        self._gradients()
        if not self._kind.full_precision or self._options.override.get("amsgrad"):
            return
        for parameter in self._parameters.values():
            if not self._adam.state.get(parameter):
                self._adam.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    **{key: torch.zeros_like(parameter.detach()) for key in ("exp_avg", "exp_avg_sq")},
                }

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        """PyTorch's, for hooks around its steps."""
        return self._adam

    def step(self, rate: float) -> StepOutcome:
        """Clip, step at learning rate `rate`, and drop the gradients.

        Raises InternalError once more than `max_skipped_steps` steps in a row had to be skipped.
        """
        gradients = self._gradients()
        norm = self._norm(gradients)
        if not bool(torch.isfinite(norm)):
            self.zero_grad()
            self._count_skip(float(norm))
            return StepOutcome(float(norm), 0.0, skipped=True)
        self.consecutive_skips = 0
        if self._options.grad_clip > 0:
            _clip([local(gradient) for gradient in gradients], self._options.grad_clip, norm)
        for group in self._adam.param_groups:
            if isinstance(group["lr"], Tensor):  # part of a compiled step: another object would compile it again
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        before = [_watched(parameter).clone() for parameter in self._parameters.values()]
        self._adam.step()
        self.zero_grad()
        return StepOutcome(float(norm), self._changed_share(before), skipped=False)

    def zero_grad(self) -> None:
        """Drop all gradients; after `reserve` they are set to 0 in their place."""
        self._adam.zero_grad(set_to_none=not self._keeps_gradients)

    def _gradients(self) -> list[Tensor]:
        """All gradients; a parameter that no row reached has a gradient of 0 and not none (momentum still acts)."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """Of all ranks' gradients, a scalar that is equal on every rank. `gradients` are in the parameters' order."""
        return global_norm(gradients)

    def _count_skip(self, norm: float) -> None:
        self.skipped_steps += 1
        self.consecutive_skips += 1
        if self.consecutive_skips > self._options.max_skipped_steps:
            raise InternalError(
                f"the gradient norm was {norm} in {self.consecutive_skips} optimizer steps running; the weights are "
                "as before them. Lower the learning rate or look at the rewards and log-probs of the last steps"
            )

    def _changed_share(self, before: list[Tensor]) -> float:
        pairs = list(zip(before, self._parameters.values(), strict=True))
        changed = sum(int((old != _watched(parameter)).sum()) for old, parameter in pairs)
        watched = sum(old.numel() for old in before)
        changed_count, count = total_over_ranks([changed, watched], list(self._parameters.values()))
        return changed_count / max(count, 1)

    @property
    def counters(self) -> dict[str, int]:
        """COUNTERS by name, for a checkpoint."""
        return {name: getattr(self, name) for name in COUNTERS}

    def load_counters(self, counters: Mapping[str, int]) -> None:
        """Restore what `counters` gave; one that is absent is 0."""
        for name in COUNTERS:
            setattr(self, name, counters.get(name, 0))

    def state_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state as "{key}/{parameter name}"; empty before the first step."""
        found = {}
        for name, parameter in self._parameters.items():
            for key, value in self._kind.pack(self._adam.state.get(parameter, {})).items():
                found[f"{key}/{name}"] = value
        return found

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_tensors` gave; names and shapes must have been checked against `expected_state`."""
        self._adam.state.clear()
        if not tensors:
            return
        by_name: dict[str, dict[str, Tensor]] = {name: {} for name in self._parameters}
        for key, tensor in tensors.items():
            state_key, _, name = key.partition("/")
            by_name[name][state_key] = tensor.to(self._parameters[name].device, copy=True)
        for name, parameter in self._parameters.items():
            self._adam.state[parameter] = self._kind.unpack(by_name[name])

    def expected_state(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a full state."""
        if not self._kind.full_precision:
            return self._state_of_a_step()
        keys = (*STATE_KEYS, "max_exp_avg_sq") if self._options.override.get("amsgrad") else STATE_KEYS
        return {
            f"{key}/{name}": () if key == "step" else tuple(parameter.shape)
            for name, parameter in self._parameters.items()
            for key in keys
        }

    def _state_of_a_step(self) -> dict[str, tuple[int, ...]]:
        """What a step on parameters of the same shapes leaves: the library alone knows which moments have 8 bits."""
        blank = {name: nn.Parameter(torch.zeros_like(parameter)) for name, parameter in self._parameters.items()}
        other = MasterOptimizer(blank, self._options)
        other.step(0.0)
        return {name: tuple(tensor.shape) for name, tensor in other.state_tensors().items()}


def _clip(gradients: list[Tensor], bound: float, norm: Tensor) -> None:
    """Scale in place by bound / norm where the norm is above the bound; as `clip_grads_with_norm_` of pieces."""
    factor = torch.clamp(bound / (norm + _NORM_EPSILON), max=1.0)
    torch._foreach_mul_(gradients, factor.to(gradients[0].device))


def _watched(parameter: nn.Parameter) -> Tensor:
    """Up to about PROBE_ELEMENTS evenly spaced elements of this rank's piece."""
    flat = local(parameter.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // PROBE_ELEMENTS)]
