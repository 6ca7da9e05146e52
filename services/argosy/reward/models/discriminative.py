"""Makes the scorer of `argosy.reward.kind=model`: the model here, or behind an endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.config import Config
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.dialogue import DialogueWriter, load_writer_tokenizer
from argosy.reward.models.scores import ScoreRule
from argosy.types.errors import ConfigError, InvalidInputError

if TYPE_CHECKING:
    from argosy.config.schema.reward_models import EndpointConfig, ScoringModelConfig
    from argosy.reward.models.endpoint import EndpointOptions
    from argosy.reward.models.local import ModelScorer
    from argosy.reward.models.network import ScoringNetwork
    from argosy.reward.models.remote import RemoteScorer
    from argosy.text.tokenizer import TextTokenizer

_LONGEST = 1 << 20
"""Of a model that doesn't say how many positions it has."""


def build(config: Config) -> ModelScorer | RemoteScorer:
    """Load the model, or prepare the calls of its server. Raises ConfigError if that can't be."""
    model = config.argosy.reward.model
    return _remote(model) if model.endpoint.url is not None else _local(model)


def endpoint_options(endpoint: EndpointConfig) -> EndpointOptions:
    """From the configuration of an endpoint with a url."""
    from argosy.reward.models.costs import Prices
    from argosy.reward.models.endpoint import EndpointOptions

    if endpoint.url is None:
        raise ConfigError("the endpoint has no url")
    return EndpointOptions(
        url=endpoint.url,
        api_key_env=endpoint.api_key_env,
        concurrency=endpoint.concurrency,
        requests_per_minute=endpoint.requests_per_minute,
        tokens_per_minute=endpoint.tokens_per_minute,
        timeout_s=endpoint.timeout_s,
        attempts=endpoint.attempts,
        prices=Prices(endpoint.prompt_price, endpoint.completion_price),
    )


def _remote(model: ScoringModelConfig) -> RemoteScorer:
    from argosy.reward.models.endpoint import Endpoint
    from argosy.reward.models.remote import RemoteScorer

    writer = None
    if model.api not in ("chat", "score"):
        writer = DialogueWriter(_tokenizer(model), model.max_length or _LONGEST, model.truncation)
    return RemoteScorer(
        Endpoint(endpoint_options(model.endpoint)),
        model.endpoint.model or model.path or "",
        model.api,
        writer,
        ScoreRule(model.label, model.activation),
    )


def _local(model: ScoringModelConfig) -> ModelScorer:
    if model.path is None:
        raise ConfigError("argosy.reward.model.path: a reward model needs a folder or hub name, or an endpoint.url")
    try:
        from argosy.modeling.loading import ModelSource
        from argosy.reward.models.local import ModelScorer, ScorerOptions
        from argosy.reward.models.network import load_network
    except ImportError as error:
        raise ConfigError(
            f"argosy.reward.kind=model can't load a model here ({error}): install argosy[reward-models], or set "
            "argosy.reward.model.endpoint.url"
        ) from error
    tokenizer = _tokenizer(model)
    source = ModelSource(model.path, model.dtype, model.device, model.trust_remote_code)
    try:
        network = load_network(source)
    except InvalidInputError as error:
        raise ConfigError(f"argosy.reward.model.path: {error.message}") from error
    rule = ScoreRule(model.label, model.activation)
    rule.check(network.label_count, model=model.path, names=network.label_names)
    _check_vocabulary(tokenizer, network)
    writer = DialogueWriter(tokenizer, _longest(model, network), model.truncation)
    limits = BatchLimits(model.max_batch_tokens, model.max_batch_rows, model.min_fill)
    return ModelScorer(network, writer, ScorerOptions(limits, rule, threads=model.threads, version=model.dtype))


def _tokenizer(model: ScoringModelConfig) -> TextTokenizer | None:
    if model.input_tokenizer is None:
        return None
    if model.path is None:
        raise ConfigError(
            "argosy.reward.model.path: names no folder with the reward model's tokenizer; set it, or "
            "input_tokenizer=null if the model reads the policy's own tokens"
        )
    return load_writer_tokenizer(
        model.path, chat_template=model.chat_template, trust_remote_code=model.trust_remote_code
    )


def _longest(model: ScoringModelConfig, network: ScoringNetwork) -> int:
    positions = network.max_positions
    if model.max_length is None:
        return positions or _LONGEST
    if positions is not None and model.max_length > positions:
        raise ConfigError(
            f"argosy.reward.model.max_length: got {model.max_length}, but model {model.path!r} has only {positions} "
            "positions"
        )
    return model.max_length


def _check_vocabulary(tokenizer: TextTokenizer | None, network: ScoringNetwork) -> None:
    if tokenizer is not None and tokenizer.vocab_size > network.vocab_size:
        raise ConfigError(
            f"argosy.reward.model.path: its tokenizer has {tokenizer.vocab_size} tokens, but the model only "
            f"{network.vocab_size}: they don't belong together"
        )
