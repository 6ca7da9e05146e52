"""Makes the scorer of `argosy.reward.kind=judge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.config import Config
from argosy.reward.models.discriminative import endpoint_options
from argosy.reward.models.judge.judge import JudgeOptions, JudgeScorer
from argosy.reward.models.judge.prompt import JudgePrompt, PromptOptions
from argosy.reward.models.judge.speakers import ChatSpeaker, RolloutSpeaker, Speaker, Speech
from argosy.reward.models.judge.verdict import Scale
from argosy.types.errors import ConfigError, InvalidInputError

if TYPE_CHECKING:
    from argosy.config.schema.reward_models import JudgeConfig


def build(config: Config) -> JudgeScorer:
    """Compile the prompt and prepare the calls. Raises ConfigError if that can't be."""
    judge = config.argosy.reward.judge
    scale = Scale(judge.lowest, judge.highest)
    prompt = JudgePrompt(PromptOptions(judge.prompt, judge.system, judge.rubric, judge.max_prompt_characters), scale)
    options = JudgeOptions(
        scale=scale,
        normalise=judge.normalise,
        judgements=judge.judgements,
        attempts=judge.attempts,
        memory_size=judge.memory_size,
    )
    return JudgeScorer(_speaker(judge, config), prompt, options)


def _speaker(judge: JudgeConfig, config: Config) -> Speaker:
    speech = Speech(judge.temperature, judge.top_p, judge.max_tokens)
    endpoint = judge.endpoint
    if endpoint.url is not None:
        from argosy.reward.models.endpoint import Endpoint

        return ChatSpeaker(Endpoint(endpoint_options(endpoint)), endpoint.model or "", speech)
    if not judge.rollouts or judge.tokenizer_path is None:
        raise ConfigError(
            "argosy.reward.judge: nobody is asked: set endpoint.url and endpoint.model, or rollouts and tokenizer_path"
        )
    from argosy.reward.models.costs import Prices
    from argosy.reward.models.limits import RateLimit
    from argosy.reward.models.rollouts import LazyRollout
    from argosy.text.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(judge.tokenizer_path)
    except InvalidInputError as error:
        raise ConfigError(f"argosy.reward.judge.tokenizer_path: {error.message}") from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"argosy.reward.judge.tokenizer_path: {judge.tokenizer_path} has no chat template")
    limit = config.argosy.rpc.max_message_bytes
    return RolloutSpeaker(
        [LazyRollout(address, max_message_bytes=limit) for address in judge.rollouts],
        tokenizer,
        speech,
        concurrency=endpoint.concurrency,
        limits=(RateLimit(endpoint.requests_per_minute), RateLimit(endpoint.tokens_per_minute)),
        timeout_s=endpoint.timeout_s,
        prices=Prices(endpoint.prompt_price, endpoint.completion_price),
    )
