"""The SGLang engine (`rollout.name=sglang`): an adapter to SGLang's own server, which it starts, watches and ends.

The server is a child process on loopback with a random port and a random key, which every call has to bring, and dies
with the service. What it does differently from our rules is corrected here, never ignored:

  * its log-probs are of the temperature-scaled distribution, not renormalised after top-k, top-p and min-p: requests
    with a filter ask for the distribution really sampled from (`return_sampling_mask`), within
    `argosy.rollout.sglang.filter_tokens`;
  * its `ignore_eos` also switches stop ids off: then the adapter looks for them itself;
  * without its tokenizer, which is never loaded, it has neither stop strings nor `min_new_tokens`: stop strings are
    looked for here (the same rules as in every engine), and stop ids are kept away by a logit bias in a first request
    of min_tokens tokens;
  * it has no noise keyed by sample on CPUs: `sample_seeds` is false, and argosy.deterministic is refused;
  * repetition_penalty counts other tokens than ours: refused;
  * with top-k and top-p together, its top-p counts probabilities before top-k: the log-probs are of what it samples.

Weights go to it as one safetensors file in memory and its `update_weights_from_disk`: no pickle, no second process
group that could hang, and every tensor-parallel rank reads for itself. Samples in flight are retracted before,
and their keys and values are computed anew under the new weights.

    options.py    what can be set
    stub.py       a torchvision without content, which SGLang's imports need
    command.py    the server's command line and environment
    launch.py     the child's first program: bind its life to the service's, then become the server
    server.py     the child process
    client.py     the few HTTP calls
    admission.py  who may have a request there
    payload.py    our sampling parameters as the server's
    answer.py     what the server streams
    weights.py    the file through which it gets weights
    facts.py      what the engine can do, and what it knows of its model
    job.py        a sample in flight
    engine.py     the engine
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.rollout.engines.events import Decode
    from argosy.rollout.engines.sglang.engine import SglangEngine
    from argosy.rollout.engines.sglang.options import SglangOptions

__all__ = ["make", "options_of"]


def make(config: Config, decode: Decode, *, start_stale: bool = True) -> SglangEngine:
    """The engine that a configuration asks for (`argosy.rollout.sglang.*`).

    Raises:
        ConfigError: this interpreter has no SGLang.
    """
    from argosy.rollout.engines.sglang.command import require_sglang
    from argosy.rollout.engines.sglang.engine import SglangEngine

    require_sglang()
    return SglangEngine(options_of(config, start_stale=start_stale), decode)


def options_of(config: Config, *, start_stale: bool = True) -> SglangOptions:
    """The engine's settings in a run's configuration."""
    from argosy.rollout.engines.sglang.options import SglangOptions

    service = config.argosy.rollout
    return SglangOptions(
        model_path=config.actor_rollout_ref.model.path,
        dtype=service.dtype,
        device=service.device,
        threads=config.argosy.threads_of("rollout"),
        slot_count=service.slot_count,
        max_model_len=config.actor_rollout_ref.rollout.max_model_len
        or config.data.max_prompt_length + config.data.max_response_length,
        prefill_token_budget=service.prefill_token_budget,
        max_waiting=service.max_waiting,
        health_timeout_s=service.stall_timeout_s,
        kv_tokens=service.sglang.kv_tokens,
        filter_tokens=service.sglang.filter_tokens,
        arguments=service.sglang.arguments,
        start_timeout_s=config.argosy.startup_timeout_s,
        seed=config.argosy.seed,
        start_stale=start_stale,
        trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
    )
