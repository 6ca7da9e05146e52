"""One request in flight of the simulated engine: what it will say is known, and steps uncover it."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.sampling.stops import StopStrings
from argosy.rollout.engines.simulated.language import Language
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, FinishReason, GenerateRequest, TokenRun, VersionRun, versions_after


class Sample:
    """A request, its tokens so far, and the rest of them under the weights in use.

    Args:
        request: Checked.
        limit: Most tokens of output.
        eos_token_ids: The model's.
        deliver: Takes its events.
        interval: Tokens between two runs that are told; 0 tells none.
    """

    def __init__(
        self, request: GenerateRequest, limit: int, eos_token_ids: frozenset[int], deliver: Deliver, interval: int
    ) -> None:
        self.request = request
        self.key = request.key
        self.count = len(request.generated.token_ids)
        """Tokens uncovered so far."""
        self.started_at = 0
        """The engine's step at which `count` was `base`."""
        self.base = self.count
        self.cached_prompt_tokens = 0
        self.reason: FinishReason | None = None
        """Why it ends at the end of what is written; None before `write`."""
        self._limit = limit
        self._stop_ids = (frozenset() if request.params.ignore_eos else eos_token_ids).union(
            request.params.stop_token_ids
        )
        self._deliver = deliver
        self._interval = interval
        self._token_ids = list(request.generated.token_ids)
        self._log_probs = list(request.generated.log_probs)
        self._versions = [(run.version, run.token_count) for run in request.generated.versions]
        self._sent = self.count
        self._text: str | None = None

    def write(self, language: Language, version: PolicyVersion, decode: Decode) -> None:
        """Let the rest be what `version` says; tokens that are uncovered already stay."""
        self._uncover_version()
        del self._token_ids[self.count :], self._log_probs[self.count :]
        self._versions = [*self._versions, (version, 0)]
        self.base = self.count
        self.reason, self._text = None, None
        self._cut(decode)
        if self.reason is None and self.count < self._limit:
            text = language.write(self.request, version, self.count, self._limit)
            self._token_ids += text.token_ids
            self._log_probs += text.log_probs
            self._cut(decode)
        if self.reason is None:
            self.reason = FinishReason.LENGTH

    @property
    def total(self) -> int:
        """Tokens at the end of the sample, as far as the weights in use say."""
        return len(self._token_ids)

    @property
    def next_stop(self) -> int:
        """Tokens at which something has to be told next."""
        return min(self.total, self._sent + self._interval) if self._interval else self.total

    def at_step(self, step: int) -> None:
        """Uncover what has been sampled by the engine's `step`."""
        self.count = min(self.base + step - self.started_at, self.total)

    def send_progress(self) -> None:
        """Deliver the tokens since the last run, if the interval has passed."""
        if self._interval and self.count - self._sent >= self._interval:
            start, self._sent = self._sent, self.count
            self._deliver(
                TokenRun(
                    self.request.sample_id,
                    self.request.purpose,
                    start,
                    tuple(self._token_ids[start : self.count]),
                    tuple(self._log_probs[start : self.count]),
                    versions_after(self._version_runs(), start),
                )
            )

    def complete(self, reason: FinishReason, decode: Decode, error: str = "") -> None:
        """Deliver the completion, of the tokens uncovered so far."""
        token_ids = tuple(self._token_ids[: self.count])
        cut = self._text is not None and reason is FinishReason.STOP
        self._deliver(
            Completion(
                sample_id=self.request.sample_id,
                token_ids=token_ids,
                log_probs=tuple(self._log_probs[: self.count]),
                versions=self._version_runs(),
                finish_reason=reason,
                text=str(self._text) if cut else decode(token_ids),
                error=error,
                purpose=self.request.purpose,
                cached_prompt_tokens=self.cached_prompt_tokens,
            )
        )

    def _cut(self, decode: Decode) -> None:
        """End the written tokens at the first that stops the sample."""
        params, start = self.request.params, self.request.turn_start
        end = self._first_stop_id(max(params.min_tokens, start))
        strings = None
        if params.stop:
            strings = StopStrings(
                params.stop, decode, include=params.include_stop_str_in_output, min_tokens=params.min_tokens - start
            )
            for index, token in enumerate(self._token_ids[start:end], start):
                if strings.push(token):
                    end = index + 1
                    break
        if end is not None:
            end = max(end, self.count)  # tokens that came with the request stay, as in every engine
            del self._token_ids[end:], self._log_probs[end:]
            self.reason = FinishReason.STOP
            if strings is not None and strings.found:
                self._text = decode(self._token_ids[:start]) + strings.text

    def _first_stop_id(self, least: int) -> int | None:
        """Tokens up to and with the first stop id among those after `least`; None without one."""
        stops: Sequence[int] = [
            index for index, token in enumerate(self._token_ids) if index >= least and token in self._stop_ids
        ]
        return stops[0] + 1 if stops else None

    def _uncover_version(self) -> None:
        """Fix the length of the last version's run."""
        told = sum(count for _, count in self._versions[:-1])
        if self._versions and self.count > told:
            self._versions[-1] = (self._versions[-1][0], self.count - told)

    def _version_runs(self) -> tuple[VersionRun, ...]:
        """Run lengths over the uncovered tokens; equal neighbours are merged."""
        runs: list[VersionRun] = []
        left = self.count
        for index, (version, length) in enumerate(self._versions):
            count = left if index == len(self._versions) - 1 else min(length, left)
            left -= count
            if runs and runs[-1].version == version:
                runs[-1] = VersionRun(version, runs[-1].token_count + count)
            elif count:
                runs.append(VersionRun(version, count))
        return tuple(runs)
