"""What each rollout engine can do, as far as a configuration may ask for it: more is refused before anything starts.

The engines say the same of themselves (`argosy.rollout.engines.base.Capabilities`), and the contract suite compares the
two. It is told here as well because the controller checks configurations, and has none of the engines' packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from argosy.config.schema import Config, RolloutConfig, ValKwargs
from argosy.config.validate.rules import one_of

_ROLLOUT = "actor_rollout_ref.rollout"
_NAME = f"{_ROLLOUT}.name"
AUTO = "auto"
"""As argosy.weight_sync.transport: a transport that all have."""
_ALWAYS = frozenset({
    "top_k", "top_p", "min_p", "min_tokens", "stop_token_ids", "stop", "include_stop_str_in_output", "ignore_eos",
})  # fmt: skip


@dataclass(frozen=True)
class EngineLimits:
    """One engine's."""

    sampling: frozenset[str]
    """Fields of SamplingParams that it honours besides max_tokens and temperature."""
    deterministic: bool = True
    """Bit for bit repeatable."""
    computes: bool = True
    """It computes with the model's weights, so that parity with the trainer can be checked."""
    sleep_levels: tuple[int, ...] = (1, 2)
    """Values of argosy.sleep_level that it can have somewhere; on CPUs vLLM has 1 alone. Empty: it can't sleep."""
    transports: frozenset[str] = frozenset({"stream", "collective", "shared_memory", "disk"})
    """Values of argosy.weight_sync.transport by which it takes weights."""
    advice: str = "actor_rollout_ref.rollout.name=hf has it"


LIMITS: dict[str, EngineLimits] = {
    "hf": EngineLimits(_ALWAYS | {"repetition_penalty", "seed"}),
    "vllm": EngineLimits(_ALWAYS | {"repetition_penalty", "seed"}, deterministic=False),
    "sglang": EngineLimits(_ALWAYS, deterministic=False, sleep_levels=()),
    "simulated": EngineLimits(_ALWAYS | {"seed"}, computes=False),
}
"""By the name in actor_rollout_ref.rollout.name."""


def check_engine(config: Config) -> Iterator[str]:
    """What the configuration asks of its engine and the engine can't do."""
    name = config.actor_rollout_ref.rollout.name
    limits = LIMITS.get(name)
    if limits is None:
        return  # told by check_fields
    for key, (field, value) in _asked(config).items():
        if field not in limits.sampling:
            yield f"{key}: got {value!r}, which the engine {name} doesn't have; {limits.advice}"
    if config.argosy.deterministic and not limits.deterministic:
        yield (
            f"argosy.deterministic: got true with {_NAME}={name}, whose samples depend on what else runs; "
            f"set {_NAME}=hf"
        )
    if config.argosy.colocated and config.argosy.sleep_level not in limits.sleep_levels:
        yield (
            f"argosy.sleep_level: got {config.argosy.sleep_level} with argosy.colocated=true and {_NAME}={name}, which "
            + (f"can sleep at {one_of(map(str, limits.sleep_levels))}" if limits.sleep_levels else "can't sleep")
        )
    transport = config.argosy.weight_sync.transport
    if transport not in (AUTO, *limits.transports):
        yield (
            f"argosy.weight_sync.transport: got {transport!r} with {_NAME}={name}, which takes weights by "
            f"{one_of(sorted(limits.transports))}; or set {AUTO}"
        )
    if config.argosy.parity.enabled and not limits.computes:
        yield (
            f"argosy.parity.enabled: got true with {_NAME}={name}, whose log-probs are not those of a model; "
            "set argosy.parity.enabled=false"
        )


def check_sglang_filters(config: Config) -> Iterator[str]:
    """SGLang's log-probs are renormalised over a limited number of tokens: filters must stay below it."""
    limit = config.argosy.rollout.sglang.filter_tokens
    if config.actor_rollout_ref.rollout.name != "sglang" or not limit:
        return
    asked = _asked(config)
    for section in (_ROLLOUT, f"{_ROLLOUT}.val_kwargs"):
        keys = [key for key in (f"{section}.top_k", f"{section}.top_p") if key in asked]
        if section == _ROLLOUT and "argosy.rollout.min_p" in asked:
            keys.append("argosy.rollout.min_p")
        top_k = asked[f"{section}.top_k"][1] if f"{section}.top_k" in asked else None
        if keys and not (isinstance(top_k, int) and top_k <= limit):
            key = keys[-1]
            yield (
                f"{key}: got {asked[key][1]!r} with argosy.rollout.sglang.filter_tokens={limit}: log-probs are "
                f"renormalised over at most so many tokens; set {section}.top_k to at most {limit}, or filter_tokens=0"
            )


def _asked(config: Config) -> dict[str, tuple[str, object]]:
    """Key → (field of SamplingParams, its value), of what is not off."""
    rollout, service = config.actor_rollout_ref.rollout, config.argosy.rollout
    found: dict[str, tuple[str, object]] = {}
    sections: tuple[tuple[str, RolloutConfig | ValKwargs], ...] = (
        (_ROLLOUT, rollout),
        (f"{_ROLLOUT}.val_kwargs", rollout.val_kwargs),
    )
    for section, params in sections:
        if not params.do_sample:
            continue
        if params.top_k > 0:
            found[f"{section}.top_k"] = ("top_k", params.top_k)
        if params.top_p < 1:
            found[f"{section}.top_p"] = ("top_p", params.top_p)
    for key, field, value, off in (
        (f"{_ROLLOUT}.repetition_penalty", "repetition_penalty", rollout.repetition_penalty, 1),
        (f"{_ROLLOUT}.ignore_eos", "ignore_eos", rollout.ignore_eos, False),
        ("argosy.rollout.min_p", "min_p", service.min_p, 0),
        ("argosy.rollout.min_response_length", "min_tokens", service.min_response_length, 0),
        ("argosy.rollout.stop", "stop", service.stop, ()),
        ("argosy.rollout.stop_token_ids", "stop_token_ids", service.stop_token_ids, ()),
    ):
        if value != off:
            found[key] = (field, value)
    return found
