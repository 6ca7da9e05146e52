"""The parity gate: after a sync, every engine's log-probs of its own tokens are the trainer's, or the run stops.

A checksum shows that the bytes arrived. This shows that the engine computes with them: a prepacked or tied head that
was left behind, a cache of the old weights, another temperature or another rotary scaling passes every checksum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.stages.fleet import AWAY
from argosy.controller.stages.prompt import PRIORITIES
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import CorruptDataError, OverloadedError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Prompt, SamplingParams

log = logging.getLogger(__name__)

Gaps = npt.NDArray[np.float64]

PROMPT_COUNT = 2
SAMPLE_COUNT = 4
"""Of each prompt."""
TOKEN_COUNT = 4
"""Of each sample: 32 in all give a mean, and take four steps of the engine."""
PURPOSE = "warmup"
HOLDER = "parity"
"""As whom the gate holds a server's places."""
MODEL_FREE_ENGINES = frozenset({"simulated"})
"""Engines whose log-probs are not of the model, so that there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Largest differences of a token's log-prob (nats) between engine and trainer that are rounding."""

    largest: float
    mean: float


FLOAT32 = Bound(1e-4, 2e-5)
"""Both sides in float32; other orders of summation stay below 5e-5 in every engine tried."""
BFLOAT16 = Bound(1.0, 0.2)
"""One side or both in bfloat16: a real model was seen to differ by up to 0.36 in a token and 0.07 on average. Such a
bound finds weights that are missing, not a small fault: float32 on both sides does."""


class ParityGate:
    """Asks each engine for a few tokens, and the trainer for their log-probs.

    Args:
        ctx: The run.
        rollout: Whose usable members are checked.
        prompts: Some of the run's own; the first PROMPT_COUNT are used.
    """

    def __init__(self, ctx: RunContext, rollout: RolloutStage, prompts: Sequence[Prompt]) -> None:
        self._ctx = ctx
        self._rollout = rollout
        self._requests = canary_requests(ctx.config, prompts)
        self._places = rollout.singles.places
        self._held: set[str] = set()
        """Members that a check will let go."""
        self._checking: asyncio.Task[dict[str, float]] | None = None

    @property
    def may_overlap(self) -> bool:
        """Whether a check may run beside the next generation: not where the order of work is fixed, nor where trainer
        and engine take turns on one device."""
        return not (self._ctx.config.argosy.deterministic or self._ctx.config.argosy.colocated)

    def expect(self) -> None:
        """A sync begins, and a check comes after it: let no server get samples before it has answered the canary.

        The step after waits for the check. Behind a server full of long samples it would take as long as they do, and
        the trainer would stand still for what was to run beside it.
        """
        if self._ctx.config.argosy.parity.enabled and self._requests:
            self._held |= set(self._rollout.members())
            for member in self._held:
                self._places.hold(member, HOLDER)

    def begin(self, step: int) -> None:
        """Start a check of the weights just synced; `settle` has its result."""
        self._checking = asyncio.create_task(self.check(step), name="parity")

    async def settle(self) -> dict[str, float]:
        """What the check that was begun found, once; raises as `check` does. Empty when none was begun."""
        if self._checking is None:
            return {}
        checking, self._checking = self._checking, None
        return await checking

    def cancel(self) -> None:
        """Forget a check that nobody will ask for: the run ends."""
        if self._checking is not None:
            self._checking.cancel()

    async def check(self, step: int) -> dict[str, float]:
        """Metrics parity/log_prob_diff_{max,mean} over all members (nats); empty when the gate is off.

        A member that can't answer is left to the next generation, which knows what to do about it. A member that turns
        out to be unlike the trainer stops the run: CorruptDataError names it. Where trainer and engines take turns on
        one device, all sample before the trainer computes, and sleep while it does.
        """
        if not self._ctx.config.argosy.parity.enabled or not self._requests:
            return {}
        members = self._rollout.in_use()
        for away in self._held - set(members):  # one that is lost too: it may be born again, and is needed then
            self._places.release(away, HOLDER)
        self._held.clear()
        answers = await asyncio.gather(*(self._sample(member, step) for member in members))
        sampled = {member: found for member, found in zip(members, answers, strict=True) if found}
        if not sampled:
            return {}
        await self._rollout.stand_aside(step)
        differences = [await self._compare(member, completions) for member, completions in sampled.items()]
        await self._rollout.come_back(step)
        gaps = np.concatenate(differences)
        return {"parity/log_prob_diff_max": float(gaps.max()), "parity/log_prob_diff_mean": float(gaps.mean())}

    async def _sample(self, member: str, step: int) -> list[Completion]:
        """The canary's completions; empty where there is nothing to compare."""
        try:
            server = self._ctx.services.rollouts[member]
            status = await server.status()
            if status.capabilities.get("engine") in MODEL_FREE_ENGINES:
                return []
            # Other noise each step, so that other tokens are compared; a resumed run repeats it.
            requests = [replace(one, sample_id=replace(one.sample_id, attempt=step)) for one in self._requests]
            found = [one async for one in server.generate(requests, deadline_s=self._ctx.deadline_s)]
        except (*AWAY, OverloadedError) as error:
            log.warning("%s can't be compared with the trainer after step %d: %s", member, step, error)
            return []
        finally:
            self._places.release(member, HOLDER)
        return [one for one in found if one.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and one.token_ids]

    async def _compare(self, member: str, completions: Sequence[Completion]) -> Gaps:
        """|engine − trainer| of each canary token, [T] nats. CorruptDataError beyond the bound."""
        prompts = {one.sample_id.group: one.prompt_ids for one in self._requests}
        rows = sorted(completions, key=lambda one: one.sample_id)
        batch = TrajectoryBatch.build(
            [row.sample_id for row in rows],
            [prompts[row.sample_id.group] for row in rows],
            [row.token_ids for row in rows],
            [[1] * len(row.token_ids) for row in rows],
        )
        answer = await self._ctx.services.policy.compute_log_probs(
            batch, ["log_probs"], temperature=self._requests[0].params.temperature, deadline_s=self._ctx.deadline_s
        )
        trainer = dict(zip(answer.sample_ids, answer.ragged("log_probs"), strict=True))
        ours = np.concatenate([np.asarray(trainer[row.sample_id], np.float64) for row in rows])
        gaps: Gaps = np.abs(np.concatenate([np.asarray(row.log_probs, np.float64) for row in rows]) - ours)
        pool = self._ctx.services.pools.get(member)
        judge(member, gaps, bound_of(self._ctx.config if pool is None else self._ctx.config.for_pool(pool)))
        return gaps


def judge(member: str, gaps: Gaps, bound: Bound) -> None:
    """Raise CorruptDataError when the differences [T] of one engine are more than rounding, or not numbers."""
    largest, mean = float(gaps.max()), float(gaps.mean())
    if largest <= bound.largest and mean <= bound.mean:
        return
    raise CorruptDataError(
        f"{member} does not compute what the trainer computes: the log-probs of {gaps.size} canary tokens differ by "
        f"{largest:.3g} at most and {mean:.3g} on average, allowed are {bound.largest:g} and {bound.mean:g}. Look for "
        "weights that did not arrive whole in the engine, another precision, or a model setting that one side lacks; "
        "argosy.parity.max_diff and mean_diff set the bounds, argosy.parity.enabled=false goes on without the check",
        member=member,
        largest=str(largest),
        mean=str(mean),
    )


def bound_of(config: Config) -> Bound:
    """From the precisions of both sides, unless argosy.parity sets it."""
    exact = config.argosy.rollout.dtype == config.actor_rollout_ref.actor.fsdp_config.dtype == "float32"
    bound, own = FLOAT32 if exact else BFLOAT16, config.argosy.parity
    return Bound(
        bound.largest if own.max_diff is None else own.max_diff,
        bound.mean if own.mean_diff is None else own.mean_diff,
    )


def canary_requests(config: Config, prompts: Sequence[Prompt]) -> list[GenerateRequest]:
    """From the policy's full distribution, so that the trainer's log-probs are of the same one in every engine."""
    rollout = config.actor_rollout_ref.rollout
    longest = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    requests = []
    for place, prompt in enumerate(prompts[:PROMPT_COUNT]):
        room = min(TOKEN_COUNT, longest - len(prompt.token_ids))
        if room < 1:
            continue
        params = SamplingParams(
            max_tokens=room,
            temperature=rollout.temperature if rollout.temperature > 0 else 1.0,
            seed=config.argosy.seed,
            ignore_eos=True,
        )
        requests += [
            GenerateRequest(SampleId(0, place, k), prompt.token_ids, params, PURPOSE, priority=PRIORITIES[PURPOSE])
            for k in range(SAMPLE_COUNT)
        ]
    return requests
