"""How much work each rollout server gets: by what it was seen to do, so that all of them are done at one time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from argosy.types.records import Completion, GenerateRequest

NEW_WEIGHT = 0.5
"""Of the newest rate in a server's mean rate."""
LEAST_SHARE = 0.1
"""No server counts for less than this part of the fastest: a slow moment must not keep it out for good."""
LEAST_TOKENS = 64
"""Shorter shares say more about the start of a call than about the server."""


@dataclass(slots=True)
class Share:
    """What one server did of one round."""

    member: str
    train: bool
    started: float
    """Seconds of the event loop's clock, as all times here."""
    given: Mapping[str, int]
    """Request key → tokens that it came with, from another server."""
    ended: float = 0.0
    """When the last completion came."""
    tokens: int = 0
    samples: int = 0

    def take(self, completion: Completion, key: str, now: float) -> None:
        """Count what came."""
        self.ended = now
        self.samples += 1
        self.tokens += len(completion.token_ids) - self.given.get(key, 0)

    @property
    def busy_s(self) -> float:
        """From the dispatch to the last completion."""
        return max(self.ended - self.started, 1e-6)


class Capacities:
    """Rates of the rollout servers, learnt from their answers; before that, their numbers of slots."""

    def __init__(self, pools: Mapping[str, str]) -> None:
        self._pools = pools
        self._slots: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._done: dict[str, tuple[int, int, float]] = {}
        """Member → samples, tokens and seconds of training since the last `metrics`."""
        self._ones: dict[str, tuple[int, float]] = {}
        """Member → training samples that it has, sent one by one, and since when it has been busy with any."""

    def knows(self, member: str) -> bool:
        """Whether its slots are known."""
        return member in self._slots

    def set_slots(self, member: str, slots: int) -> None:
        """Take its number of slots from its status."""
        self._slots[member] = float(max(slots, 1))

    def slots(self, member: str) -> int:
        """Its number of slots; 1 while it isn't known."""
        return int(self._slots.get(member, 1))

    def forget(self, member: str) -> None:
        """Another server will come under this id: what was measured says nothing of it."""
        self._slots.pop(member, None)
        self._rates.pop(member, None)

    def begin_one(self, member: str, now: float) -> None:
        """A server gets one training sample more."""
        count, since = self._ones.get(member, (0, now))
        self._ones[member] = (count + 1, since if count else now)

    def end_one(self, member: str, now: float, token_count: int, *, finished: bool) -> None:
        """It is done with one, or lost; the tokens are those that it made."""
        self._take_time(member, now, token_count, int(finished))
        self._ones[member] = (self._ones[member][0] - 1, now)

    def _take_time(self, member: str, now: float, tokens: int = 0, samples: int = 0) -> None:
        """Add the time in which a server was busy with single samples, and what came of it."""
        count, since = self._ones[member]
        done = self._done.get(member, (0, 0, 0.0))
        self._done[member] = (done[0] + samples, done[1] + tokens, done[2] + (now - since if count else 0.0))
        self._ones[member] = (count, now)

    def begin(self, member: str, requests: Sequence[GenerateRequest], now: float) -> Share:
        """A server gets these."""
        given = {request.key: len(request.generated.token_ids) for request in requests if request.generated.token_ids}
        return Share(member, requests[0].purpose == "train", now, given)

    def end(self, share: Share) -> None:
        """It is done with them, or lost."""
        if share.train:
            samples, tokens, seconds = self._done.get(share.member, (0, 0, 0.0))
            self._done[share.member] = (samples + share.samples, tokens + share.tokens, seconds + share.busy_s)
        if share.tokens >= LEAST_TOKENS:
            rate = share.tokens / share.busy_s
            self._rates[share.member] = NEW_WEIGHT * rate + (1 - NEW_WEIGHT) * self._rates.get(share.member, rate)

    def weights(self, members: Iterable[str]) -> dict[str, float]:
        """Relative speeds, all above 0. A server that wasn't measured yet counts as the measured ones do per slot."""
        members = list(members)
        slots = {member: self._slots.get(member, 1.0) for member in members}
        measured = [member for member in members if member in self._rates]
        if not measured:
            return slots
        per_slot = sum(self._rates[member] for member in measured) / sum(slots[member] for member in measured)
        speeds = {member: self._rates.get(member, per_slot * slots[member]) for member in members}
        least = LEAST_SHARE * max(speeds.values())
        return {member: max(speed, least) for member, speed in speeds.items()}

    def metrics(self, usable: Iterable[str]) -> dict[str, float]:
        """What each pool did for training since the last call, under `rollout/pools/NAME/…`."""
        found: dict[str, float] = {}
        usable = set(usable)
        for pool in sorted({*self._pools.values(), *map(self._pool, usable | self._done.keys())}):
            done = [self._done[member] for member in self._done if self._pool(member) == pool]
            prefix = f"rollout/pools/{pool}"
            found[f"{prefix}/servers"] = float(sum(self._pool(member) == pool for member in usable))
            found[f"{prefix}/samples"] = float(sum(samples for samples, _, _ in done))
            found[f"{prefix}/generated_tokens"] = float(sum(tokens for _, tokens, _ in done))
            found[f"{prefix}/tokens_per_s"] = sum(tokens / seconds for _, tokens, seconds in done if seconds)
        self._done.clear()
        return found

    def _pool(self, member: str) -> str:
        return self._pools.get(member, "default")
