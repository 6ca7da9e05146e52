"""`argosy.reward.model` and `argosy.reward.judge`: rewards by models."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EndpointConfig:
    """Somebody's HTTP server with a model."""

    url: str | None = None
    """Up to where paths begin: http://127.0.0.1:8000 for a scoring model, https://host/v1 for a judge. null: none."""
    model: str | None = None
    """The server's name for the model."""
    api_key_env: str | None = None
    """Environment variable of the reward service that holds the key; null sends none. The key itself is never written
    anywhere."""
    concurrency: int = 8
    """Calls at once."""
    requests_per_minute: float = 0
    """Most calls a minute, repeats included; 0 is no limit."""
    tokens_per_minute: float = 0
    """Most tokens a minute, of prompts and answers; 0 is no limit."""
    timeout_s: float = 60.0
    """Seconds that one attempt may take."""
    attempts: int = 4
    """Most attempts of one call: after lost connections, timeouts and the statuses 408, 425, 429 and 5xx, with growing
    pauses, at least what Retry-After asks."""
    prompt_price: float = 0.0
    """Money per million prompt tokens, for reward/cost."""
    completion_price: float = 0.0
    """Money per million answer tokens."""


@dataclass(frozen=True)
class ScoringModelConfig:
    """A discriminative reward model (argosy.reward.kind=model)."""

    path: str | None = None
    """Folder or hub name of a sequence classifier, a token classifier, or a critic as the trainer exports it. With an
    endpoint: where its tokenizer is."""
    input_tokenizer: str | None = "messages"
    """null: the model reads the policy's token ids as they are (same tokenizer, same chat template). Anything else: the
    conversation is written anew by the reward model's tokenizer and chat template. (verl names the policy's tokenizer
    here; there is no need to, since conversations come as messages.)"""
    chat_template: str | None = None
    """Jinja source, or a file with it, in place of the chat template of the reward model's tokenizer."""
    trust_remote_code: bool = False
    """Let the model's folder run its own Python."""
    dtype: str = "float32"
    """"float32", "bfloat16", "float16" or "float64" of the transformer; a linear head is always at least float32."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads; 0 leaves it to torch."""
    max_length: int | None = None
    """Most tokens of conversation and answer; null: the positions that the model has."""
    truncation: str = "left"
    """What happens to longer ones: "left" drops their start, "right" their end (as verl does), "fail" makes the sample
    failed. The part `truncated` says which were cut."""
    max_batch_tokens: int = 16384
    """Most tokens of one forward pass, padding included."""
    max_batch_rows: int | None = None
    """Most sequences of one forward pass; null: as many as max_batch_tokens allows."""
    min_fill: float = 0.75
    """Each sequence fills at least this share of its pass's width: bounds the padding."""
    label: int | None = None
    """Which label's value is the score, from 0; null: the model's only one."""
    activation: str = "none"
    """"none": the raw value; "sigmoid" of it; "softmax": its share among all labels."""
    api: str = "classify"
    """How an endpoint is asked: "classify" (vLLM), "score" (vLLM), "pooling" (vLLM), "embeddings" (SGLang, OpenAI
    style), "sglang" (SGLang's own /classify), "chat" (vLLM, with the server's chat template)."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    """A server that holds the model; url null: the reward service loads it itself."""


@dataclass(frozen=True)
class JudgeConfig:
    """A language model that is asked for a number (argosy.reward.kind=judge)."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    """An OpenAI-compatible server: POST URL/chat/completions. Concurrency, rates, timeout and prices also hold for
    rollout services."""
    rollouts: tuple[str, ...] = ()
    """host:port of rollout services of ours that hold the judge's weights (`argosy serve rollout` with
    argosy.rollout.start_ready=true), in place of an endpoint."""
    tokenizer_path: str | None = None
    """With rollouts: folder of the judge's tokenizer."""
    prompt: str | None = None
    """Jinja template of the user's message, or a file with it: question, messages, response (always fenced),
    raw_response, ground_truth, rubric, data_source, extra_info, lowest, highest. null: a plain one
    (docs/rewards-models.md)."""
    system: str | None = None
    """Likewise of the system message; "" sends none."""
    rubric: str = ""
    """What counts, for the template; a row's extra_info.rubric comes before it."""
    lowest: float = 0.0
    """Least verdict that is asked for; one below is unreadable."""
    highest: float = 10.0
    """Greatest verdict."""
    normalise: bool = True
    """Scores from 0 (lowest) to 1 (highest); false: the verdict itself."""
    judgements: int = 1
    """Verdicts of each sample; their mean is the score. At least half must be readable."""
    attempts: int = 3
    """Askings for one verdict until it is readable; after that the sample is failed (unreadable_judgement), never 0."""
    temperature: float = 0.0
    """Of the judge's replies; 0 is greedy."""
    top_p: float = 1.0
    """Of the judge's replies."""
    max_tokens: int = 1024
    """Of one reply."""
    max_prompt_characters: int = 200000
    """A longer prompt isn't sent: the sample is failed (bad_request)."""
    memory_size: int = 65536
    """Outcomes that are remembered, so that the same sample with the same content costs nothing again; 0: none."""
