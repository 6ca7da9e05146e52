"""Who runs and who waits. Bounded: running samples by slots and by the keys and values that they may come to need,
waiting ones by count, a prefill by tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from argosy.rollout.engines.sampling.sample import Sample
from argosy.types.errors import OverloadedError


class Scheduler:
    """Rows of the running batch are slots: `running[i]` lies in slot i, without holes.

    Args:
        slot_count: Most running samples.
        max_waiting: Most waiting samples; more is OverloadedError.
        deterministic: Admit in (purpose, sample id) order, and one batch of `add` after another, so that who shares a
            batch depends on nothing but the requests. Priorities don't count then.
        kv_token_count: Tokens of keys and values that there is memory for; 0: only slots count. The cache has equal
            rows, so a sample fits if every running one could become as long as the longest of them may; then none has
            to be put out again for want of memory. One sample always fits.
    """

    def __init__(self, *, slot_count: int, max_waiting: int, deterministic: bool, kv_token_count: int = 0) -> None:
        self._slot_count = slot_count
        self._kv_token_count = kv_token_count
        self._max_waiting = max_waiting
        self._deterministic = deterministic
        self._cohort = 0
        self._running_cohort: int | None = None
        self.running: list[Sample] = []
        self.waiting: deque[tuple[int, Sample]] = deque()
        """With the number of the `add` that brought it."""

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def starts_afresh(self) -> bool:
        """Deterministic, and nothing runs: the next samples must not depend on what ran before."""
        return self._deterministic and not self.running

    def check_room(self, count: int) -> None:
        """Raise OverloadedError if `count` more samples don't fit."""
        room = self._max_waiting - len(self.waiting) + self._slot_count - len(self.running)
        if count > room:
            raise OverloadedError(
                f"{count} samples don't fit: {len(self.waiting)} of {self._max_waiting} places in the queue are taken",
                retry_after_s=1.0,
            )

    def add(self, samples: Iterable[Sample]) -> None:
        """Take samples into the queue, all of them or (OverloadedError) none."""
        ordered = list(samples)
        self.check_room(len(ordered))
        if self._deterministic:
            ordered.sort(key=lambda sample: sample.order)
        else:
            ordered.sort(key=_urgency)
        self._cohort += 1
        self.waiting.extend((self._cohort, sample) for sample in ordered)
        if not self._deterministic and len(self.waiting) > len(ordered) > 0:
            last = self.waiting[-1 - len(ordered)][1]
            if _urgency(ordered[0]) < _urgency(last):  # some of these go before some that were there: a stable sort
                self.waiting = deque(sorted(self.waiting, key=lambda pair: _urgency(pair[1])))

    def admit(self, token_budget: int, cost: Callable[[Sample], int]) -> list[Sample]:
        """Move samples from the queue to free slots while their prefill fits the budget.

        One that costs more than the whole budget stays `next` until pieces of its prefill have brought the cost down.
        """
        admitted: list[Sample] = []
        while (sample := self.next) is not None:
            tokens = cost(sample)
            if tokens > token_budget:
                break
            token_budget -= tokens
            cohort, _ = self.waiting.popleft()
            self._running_cohort = cohort
            sample.slot = len(self.running)
            self.running.append(sample)
            admitted.append(sample)
        return admitted

    @property
    def next(self) -> Sample | None:
        """The sample whose turn it is, if there is a slot and memory for it."""
        if not self.waiting or len(self.running) >= self._slot_count:
            return None
        cohort, sample = self.waiting[0]
        if self._deterministic and self._running_cohort not in (None, cohort):
            return None
        return sample if self._has_memory_for(sample) else None

    def _has_memory_for(self, sample: Sample) -> bool:
        if not self._kv_token_count or not self.running:
            return True
        longest = max(sample.most_tokens, *(running.most_tokens for running in self.running))
        return longest * (len(self.running) + 1) <= self._kv_token_count

    def release(self, sample: Sample) -> Sample | None:
        """Free a running sample's slot. The last row's sample, if another, takes it and is returned: copy its row."""
        last = self.running.pop()
        moved = None
        if last is not sample:
            self.running[sample.slot] = last
            last.slot, moved = sample.slot, last
        sample.slot = -1
        if not self.running:
            self._running_cohort = None
        return moved

    def preempt(self) -> Sequence[Sample]:
        """Put every running sample back at the head of the queue, in order: its keys and values are void."""
        samples = self.running
        cohort = self._running_cohort
        for sample in reversed(samples):
            sample.slot, sample.cached = -1, 0
            self.waiting.appendleft((cohort or 0, sample))
        self.running = []
        self._running_cohort = None
        return samples

    def remove_waiting(self, keys: set[str] | None) -> list[Sample]:
        """Take the named samples (all with None) out of the queue."""
        gone = [sample for _, sample in self.waiting if keys is None or sample.key in keys]
        self.waiting = deque(pair for pair in self.waiting if not (keys is None or pair[1].key in keys))
        return gone


def _urgency(sample: Sample) -> int:
    """Less goes first."""
    return -sample.request.priority
