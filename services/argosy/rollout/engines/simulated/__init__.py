"""The simulated engine (`rollout.name=simulated`): the timing and the answers of an engine without a model.

For tests of scale and of failures: thousands of samples a second pass through a whole fleet on one core, and every run
of it is the same. Weights are received and checked as by any engine, but only their version counts.

    options.py    what can be set
    lengths.py    how long answers are: the probability that a sample ends at each position
    language.py   tokens and log-probs as a pure function of (seed, purpose, sample id, position, weight version)
    latency.py    how long a step takes
    sample.py     one request in flight
    failures.py   failures on demand
    engine.py     the loop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.rollout.engines.events import Decode
    from argosy.rollout.engines.simulated.engine import SimulatedEngine
    from argosy.rollout.engines.simulated.options import SimulatedOptions

__all__ = ["make", "options_of"]


def make(config: Config, decode: Decode, *, start_stale: bool = True) -> SimulatedEngine:
    """The engine that a configuration asks for (`argosy.rollout.simulated.*`)."""
    from argosy.rollout.engines.simulated.engine import SimulatedEngine

    return SimulatedEngine(options_of(config, start_stale=start_stale), decode)


def options_of(config: Config, *, start_stale: bool = True) -> SimulatedOptions:
    """The engine's settings in a run's configuration."""
    from argosy.rollout.engines.simulated.options import SimulatedOptions

    service = config.argosy.rollout
    chosen = service.simulated
    return SimulatedOptions(
        model_path=config.actor_rollout_ref.model.path,
        slot_count=service.slot_count,
        max_waiting=service.max_waiting,
        max_model_len=config.actor_rollout_ref.rollout.max_model_len
        or config.data.max_prompt_length + config.data.max_response_length,
        decode_ms=chosen.decode_ms,
        decode_ms_per_sample=chosen.decode_ms_per_sample,
        prefill_us_per_token=chosen.prefill_us_per_token,
        length=chosen.length,
        length_mean=chosen.length_mean,
        length_spread=chosen.length_spread,
        failure=chosen.failure,
        failure_after=chosen.failure_after,
        start_stale=start_stale,
    )
