"""How a user's function is called: with which fields of a sample, by which names, for one sample or a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.reward.sdk import MARK, PARAMETERS, RewardSpec
from argosy.types.errors import ConfigError

Sample = Mapping[str, Any]
"""What a worker gets for one sample, with the keys of PARAMETERS' values that the plan asks for."""

VERL = {
    "data_source": "data_source",
    "solution_str": "response_text",
    "ground_truth": "ground_truth",
    "extra_info": "extra_info",
}
VERL_BATCH = {f"{name}s": key for name, key in VERL.items()}
"""verl's signatures: of `compute_score`, and of one for its batch reward manager."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How to call one function."""

    arguments: Mapping[str, str]
    """Parameter → the sample's field."""
    spec: RewardSpec
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def traits(self) -> dict[str, Any]:
        """What the service must know of it, as plain JSON values."""
        spec = self.spec
        return {
            "batch": spec.batch,
            "fields": sorted(set(self.arguments.values())),
            "data_sources": list(spec.data_sources),
            "max_batch_size": spec.max_batch_size,
            "repeat_forbidden": spec.repeat_forbidden,
            "name": spec.name,
            "version": spec.version,
        }

    @property
    def wants_ids(self) -> bool:
        """Whether it may return a score for each token."""
        return "response_ids" in self.arguments.values()

    def for_one(self, sample: Sample) -> dict[str, Any]:
        """Keyword arguments for a sample."""
        return {name: sample[key] for name, key in self.arguments.items()} | dict(self.kwargs)

    def for_batch(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Keyword arguments for a batch: a list each."""
        given = {name: [sample[key] for sample in samples] for name, key in self.arguments.items()}
        return given | dict(self.kwargs)


def plan_call(function: Callable[..., Any], kwargs: Mapping[str, Any], label: str, *, batch: bool = False) -> CallPlan:
    """Read the function's mark and signature. Raises ConfigError if it can't be called with what there is.

    `batch`: an unmarked function takes lists, whatever its signature says.
    """
    spec = getattr(function, MARK, None)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a compiled function that doesn't tell
        return CallPlan(VERL_BATCH if batch else VERL, RewardSpec(batch=batch), kwargs)
    if isinstance(spec, RewardSpec):
        return _plan_marked(signature, spec, kwargs, label)
    is_batch = batch or {"solution_strs", "data_sources"} <= signature.parameters.keys()
    arguments = VERL_BATCH if is_batch else VERL
    clash = sorted(arguments.keys() & kwargs.keys())
    if clash:
        raise ConfigError(f"custom_reward_function.reward_kwargs: {', '.join(clash)} is given by Argosy; drop it")
    _bind(signature, [*arguments, *kwargs], label)
    return CallPlan(arguments, RewardSpec(batch=is_batch), kwargs)


def _plan_marked(signature: inspect.Signature, spec: RewardSpec, kwargs: Mapping[str, Any], label: str) -> CallPlan:
    known = dict(PARAMETERS)
    if spec.batch:
        known |= {f"{name}s": key for name, key in PARAMETERS.items() if not name.endswith("s")}
    arguments = {name: known[name] for name in signature.parameters if name in known and name not in kwargs}
    unknown = [
        name
        for name, parameter in signature.parameters.items()
        if name not in known and name not in kwargs and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
    ]  # fmt: skip
    if unknown:
        raise ConfigError(
            f"custom_reward_function: {label} has the parameter {unknown[0]!r}, which no sample has. There are "
            f"{', '.join(known)}; another needs a default or a value in custom_reward_function.reward_kwargs"
        )
    _bind(signature, [*arguments, *kwargs], label)
    return CallPlan(arguments, spec, kwargs)


def _bind(signature: inspect.Signature, names: list[str], label: str) -> None:
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        function = label.partition(" of ")[0]
        raise ConfigError(
            f"custom_reward_function: {label} can't be called: {error}. It has the signature "
            f"{function}{signature} and must accept the keyword arguments {', '.join(names)}"
        ) from error
