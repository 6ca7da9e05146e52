"""One request in flight: what it has generated, where it lies, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.sampling.noise import noise_key
from argosy.rollout.engines.sampling.stops import StopStrings
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, FinishReason, GenerateRequest, TokenRun, VersionRun, versions_after


class Sample:
    """A request with its growing answer.

    `cached` counts the tokens whose keys and values are in the slot: always one less than there are tokens, since the
    last token is the next step's input.
    """

    __slots__ = (
        "cached",
        "cached_prompt_tokens",
        "deliver",
        "interval",
        "limit",
        "log_probs",
        "noise",
        "order",
        "request",
        "sent",
        "slot",
        "stop_ids",
        "stops",
        "token_ids",
        "versions",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        stop_ids: frozenset[int],
        stops: StopStrings | None,
        max_model_len: int,
        deliver: Deliver,
        interval: int = 0,
    ) -> None:
        self.request = request
        self.stop_ids = stop_ids
        self.stops = stops
        self.deliver = deliver
        self.interval = interval
        self.limit = min(request.params.max_tokens, max_model_len - len(request.prompt_ids))
        """Most tokens of output: max_tokens or what the context leaves."""
        self.noise = noise_key(request.params.seed, request.purpose, request.sample_id)
        self.order = (request.purpose, request.sample_id)
        self.token_ids: list[int] = list(request.generated.token_ids)
        self.log_probs: list[float] = list(request.generated.log_probs)
        self.versions: list[tuple[PolicyVersion, int]] = [
            (r.version, r.token_count) for r in request.generated.versions
        ]
        self.slot = -1
        self.cached = 0
        self.cached_prompt_tokens = 0
        self.sent = len(self.token_ids)

    @classmethod
    def of(cls, request: GenerateRequest, facts: ModelFacts, decode: Decode, deliver: Deliver, interval: int) -> Sample:
        """A request's, of a model with these facts: with its end ids unless they are ignored, and its stop strings."""
        params = request.params
        eos: frozenset[int] = frozenset() if params.ignore_eos else facts.eos_token_ids
        stops = None
        if params.stop:
            include = params.include_stop_str_in_output
            least = params.min_tokens - request.turn_start
            stops = StopStrings(params.stop, decode, include=include, min_tokens=least)
        return cls(
            request,
            stop_ids=eos.union(params.stop_token_ids),
            stops=stops,
            max_model_len=facts.context_len,
            deliver=deliver,
            interval=interval,
        )

    @property
    def key(self) -> str:
        """Unique among the requests in flight."""
        return self.request.key

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and answer that it may come to have."""
        return len(self.request.prompt_ids) + self.limit

    @property
    def next_input(self) -> int:
        """The token that the next decode step feeds."""
        return self.token_ids[-1] if self.token_ids else self.request.prompt_ids[-1]

    @property
    def prefix(self) -> tuple[int, ...]:
        """Every token whose keys and values must be in the slot before decode."""
        return (*self.request.prompt_ids, *self.token_ids)[:-1]

    def replay(self) -> FinishReason | None:
        """Run the stop rules over the present turn's tokens that came with the request; a reason if the sample is
        already at its end."""
        start = self.request.turn_start
        for index, token_id in enumerate(self.token_ids[start:], start):
            if (reason := self._reason(token_id, index + 1)) is not None:
                return reason
        return FinishReason.LENGTH if start and start >= self.limit else None

    def append(self, token_id: int, log_prob: float, version: PolicyVersion) -> FinishReason | None:
        """Take in a sampled token; a reason if it ends the sample."""
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        if self.versions and self.versions[-1][0] is version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))
        self.cached += 1
        return self._reason(token_id, len(self.token_ids))

    def _reason(self, token_id: int, count: int) -> FinishReason | None:
        stopped = token_id in self.stop_ids and count > self.request.params.min_tokens
        if self.stops is not None and self.stops.push(token_id):
            stopped = True
        if stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if count >= self.limit else None

    def send_progress(self) -> None:
        """Deliver the tokens since the last run, if the interval has passed."""
        if self.interval and len(self.token_ids) - self.sent >= self.interval:
            self.deliver(self._run(self.sent))
            self.sent = len(self.token_ids)

    def _run(self, start: int) -> TokenRun:
        return TokenRun(
            self.request.sample_id,
            self.request.purpose,
            start,
            tuple(self.token_ids[start:]),
            tuple(self.log_probs[start:]),
            versions_after(self.version_runs(), start),
        )

    def version_runs(self) -> tuple[VersionRun, ...]:
        """Run lengths over the tokens; equal neighbours are merged."""
        runs: list[VersionRun] = []
        for version, count in self.versions:
            if runs and runs[-1].version == version:
                runs[-1] = VersionRun(version, runs[-1].token_count + count)
            else:
                runs.append(VersionRun(version, count))
        return tuple(runs)

    def complete(self, reason: FinishReason, decode: Callable[[Sequence[int]], str], error: str = "") -> None:
        """Deliver the completion."""
        text = decode(self.token_ids)
        if self.stops is not None and self.stops.found:
            text = decode(self.token_ids[: self.request.turn_start]) + self.stops.text
        self.deliver(
            Completion(
                sample_id=self.request.sample_id,
                token_ids=tuple(self.token_ids),
                log_probs=tuple(self.log_probs),
                versions=self.version_runs(),
                finish_reason=reason,
                text=text,
                error=error,
                purpose=self.request.purpose,
                cached_prompt_tokens=self.cached_prompt_tokens,
            )
        )
