"""Starts vLLM's processes and makes them ready for requests."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.vllm.arguments import check_known, engine_arguments, runs_eager
from argosy.rollout.engines.vllm.counts import Usage, logger_for
from argosy.rollout.engines.vllm.environment import compile_nothing
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.rollout.engines.vllm.parameters import prompt_of, to_vllm
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, SamplingParams

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A vLLM that runs."""

    llm: Any
    """AsyncLLM."""
    on_cpu: bool
    """What it is built for."""


def launch(options: VllmOptions, facts: ModelFacts, usage: Usage) -> Launched:
    """Load the model; blocks for ten seconds to minutes.

    Raises:
        InvalidInputError: vLLM can't load it, or an option doesn't fit this vLLM.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    on_cpu = bool(current_platform.is_cpu())
    built_for = "cpu" if on_cpu else str(current_platform.device_type)
    if options.device not in ("auto", built_for):
        raise InvalidInputError(
            f"argosy.rollout.device={options.device}, but this vLLM is built for {built_for}: set auto"
        )
    if runs_eager(options, on_cpu=on_cpu):
        compile_nothing()
    arguments = engine_arguments(options, facts.context_len, on_cpu=on_cpu)
    check_known(arguments)
    # Named to the workers as text; this process has to know the weight transfer that it registers, too.
    import argosy.rollout.engines.vllm.worker  # noqa: F401

    try:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[logger_for(usage)])
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise InvalidInputError(f"vLLM can't load model {options.model_path!r}: {error}") from error
    # Each request names the end ids that count for it. vLLM would add the model's own to those that min_tokens bans,
    # also where ignore_eos says that they end nothing.
    llm.input_processor.generation_config_fields = {}
    return Launched(llm, on_cpu)


async def make_ready(llm: Any, options: VllmOptions, facts: ModelFacts, lora_request: Any) -> bool:
    """Key the noise by sample and draw a few tokens each way, so that nothing is compiled or allocated under the first
    real request; whether the noise is keyed.

    Raises:
        InvalidInputError: vLLM has loaded the model but can't run it.
    """
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        keyed = all(await llm.collective_rpc("argosy_key_noise"))
        await _draw_some(llm, facts, lora_request)
    except (EngineDeadError, EngineGenerateError) as error:
        raise InvalidInputError(
            f"vLLM has loaded model {options.model_path!r} but can't run it: {error} The lines above say why"
        ) from error
    if not keyed:
        _LOG.warning("this vLLM's sampler takes no noise keyed by sample: samples are not repeatable")
    return keyed


async def _draw_some(llm: Any, facts: ModelFacts, lora_request: Any) -> None:
    ways = (
        SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=2, top_k=2, top_p=0.9, min_p=0.01, repetition_penalty=1.1, ignore_eos=True),
    )
    limit = min(2, facts.context_len - 1)
    for k, params in enumerate(ways):
        request = GenerateRequest(SampleId(0, 0, k), (0,), params, purpose="warmup")
        chosen = to_vllm(request, stop_ids=(), limit=limit, vocab_size=facts.vocab_size)
        async for _ in llm.generate(prompt_of(request.prompt_ids), chosen, f"warmup#{k}", lora_request=lora_request):
            pass
    await llm.reset_prefix_cache()
