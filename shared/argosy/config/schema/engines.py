"""`argosy.rollout.simulated.*` and `argosy.rollout.sglang.*`: what only one rollout engine has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SimulatedConfig:
    """The simulated engine: timing and answers without a model, for tests of scale and of failures."""

    decode_ms: float = 0.0
    """Milliseconds of a decode step, whatever the batch; 0 takes no time."""
    decode_ms_per_sample: float = 0.0
    """Milliseconds that each running sample adds to a step."""
    prefill_us_per_token: float = 0.0
    """Microseconds that each prompt token which is not cached adds to the step that admits it."""
    length: str = "geometric"
    """How long answers are: "geometric", "fixed", "uniform" or "lognormal"."""
    length_mean: float = 64.0
    """Their mean in tokens, the end token included. Above data.max_response_length they are cut."""
    length_spread: float = 16.0
    """In tokens: half the width of "uniform", the standard deviation of "lognormal"; the others have none."""
    failure: str = "none"
    """What goes wrong: "none"; "kill" (the process is killed), "freeze" (it is stopped), "fail" (the engine reports
    that it can't go on), "hang" (it takes samples in and never answers), "error" (each further sample fails)."""
    failure_after: int = 0
    """Samples that are finished before it."""


@dataclass(frozen=True)
class SglangConfig:
    """The SGLang server that the rollout service starts and ends."""

    kv_tokens: int = 0
    """Tokens of keys and values that it holds; 0: argosy.rollout.slot_count × max_model_len on a CPU, and what
    SGLang finds room for on a GPU."""
    filter_tokens: int = 0
    """Most tokens that top_k, top_p and min_p may leave at a position: log-probs are renormalised over these. 0: the
    whole vocabulary, which is always enough; less saves memory, and needs a top_k of at most this beside other
    filters."""
    arguments: tuple[str, ...] = ()
    """More arguments for the server, as its command line takes them, such as [--tp-size,"2"]."""
