"""`argosy.reward.server`, `.http`, `.nemo_gym` and `.verifiers`: rewards from somebody else's server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RewardServerConfig:
    """The server behind kind=http, nemo_gym or verifiers."""

    url: str | None = None
    """Where it is: http://127.0.0.1:8000 up to where paths begin; of a verifiers environment tcp://127.0.0.1:5000."""
    api_key_env: str | None = None
    """Environment variable of the reward service that holds a key, sent as `Authorization: Bearer …`; null sends none.
    The key itself is never written anywhere. Not for verifiers."""
    concurrency: int = 8
    """Calls at once."""
    requests_per_minute: float = 0
    """Most calls a minute, repeats included; 0 is no limit. Not for verifiers."""
    timeout_s: float = 60.0
    """Seconds that one attempt may take."""
    attempts: int = 4
    """Most attempts of one call: after lost connections, timeouts and the statuses 408, 425, 429 and 5xx, with growing
    pauses, at least what Retry-After asks. Not for verifiers, whose rollouts can't be called off."""
    repeat_forbidden: bool = False
    """A sample must never be sent twice, since scoring it costs or counts: one attempt, and no second try by the
    controller."""
    data_sources: tuple[str, ...] = ("*",)
    """What it scores, as in argosy.reward.services.NAME.data_sources."""


@dataclass(frozen=True)
class HttpRewardConfig:
    """A plain HTTP endpoint: POST JSON, JSON comes back (argosy.reward.kind=http)."""

    path: str = "/score"
    """Path of the endpoint on the server."""
    batch: bool = True
    """true: a call has a list of samples and is answered by a list, in the same order; false: one call per sample."""
    max_batch_size: int = 64
    """Most samples in one call."""
    request: Mapping[str, str] = field(default_factory=dict)
    """Name in the sample's JSON object → what it holds: sample_id, data_source, prompt, response, ground_truth,
    extra_info, extra_info.KEY, messages, prompt_ids, response_ids or valid_response. Empty: the first six under these
    names."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the call's object, the same in each, such as {model: grader-2}."""
    items_key: str = "items"
    """With batch: where in the call the list of samples is."""
    results_key: str = "results"
    """With batch: where in the answer the list of results is, such as data.results."""
    score_key: str = "score"
    """Where in a result the score is, such as output.reward. Other numbers, texts and booleans beside it become parts.
    null there: the server abstains."""


@dataclass(frozen=True)
class NemoGymConfig:
    """A NeMo Gym resources server: POST /verify (argosy.reward.kind=nemo_gym)."""

    path: str = "/verify"
    """Path of the endpoint on the server."""
    seed_session: bool = False
    """Call /seed_session before each /verify, with its cookies: for environments that keep a state per task."""
    ground_truth_key: str = "expected_answer"
    """Where the server looks for the ground truth: a member of the request; "" leaves it out. Members of the row's
    extra_info.nemo_gym (verifier_metadata, question …) are put beside it, and win."""


@dataclass(frozen=True)
class VerifiersConfig:
    """An environment server of the verifiers library (argosy.reward.kind=verifiers)."""

    task: str | None = None
    """The row's `task`, which servers before 0.1.14 want; later ones refuse it (and read info.env_id of the row, where
    one server has several environments). null: none is sent."""
