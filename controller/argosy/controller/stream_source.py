"""Prompts of the data set through the rollout fleet, one group after the other: the usual source of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from argosy.algorithms.catalog import estimator_needs
from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.groups import Admission, FinishedGroup, Ticket, oldest_step
from argosy.controller.stages.answering import Answerer
from argosy.controller.stages.prompt import greedy_requests, make_requests, training_params
from argosy.controller.stages.reward import MAX_CONCURRENT_CALLS, RewardStage
from argosy.controller.stream_codec import (
    completion_from_json,
    completion_to_json,
    generated_from_json,
    generated_to_json,
)
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, Generated, GenerateRequest, Prompt, ScoreResult

OTHER_SIZE = "it was under way when the run was resumed with another number of samples per prompt"
SLOWEST = "over-sampled: the others of its group were done first"


@dataclass(slots=True)
class _Open:
    """A group under way."""

    ticket: Ticket
    prompt: Prompt
    requests: Sequence[GenerateRequest]
    """Of the samples that are still to be made; those of a resumed group have their tokens with them."""
    done: dict[SampleId, Completion] = field(default_factory=dict)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """All that runs for it."""


class PromptGroups:
    """Implements `argosy.controller.groups.GroupSource`.

    Args:
        ctx: The run.
        sampler: Which prompts come next.
        answerer: Who answers them.
        so_far: The tokens that a request's sample has right now; None: unfinished samples begin anew after a restart
            (the turns of an agent can't be told from tokens).
        data_epochs: The source ends before this data epoch; None: never.
    """

    def __init__(
        self,
        ctx: RunContext,
        sampler: PromptSampler,
        answerer: Answerer,
        so_far: Callable[[GenerateRequest], Generated] | None,
        data_epochs: int | None = None,
    ) -> None:
        self._ctx = ctx
        self._sampler = sampler
        self._answerer = answerer
        self._so_far = so_far
        self._data_epochs = data_epochs
        rollout = ctx.config.actor_rollout_ref.rollout
        self._n, self._longest = rollout.n, rollout.max_model_len
        self._extra = ctx.config.argosy.stream.extra_samples
        self._greedy = "baseline" in estimator_needs(ctx.config.algorithm.adv_estimator)
        self._params = training_params(ctx.config)
        self._scoring = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._open: dict[int, _Open] = {}

    async def run(self, admission: Admission) -> None:
        """See the Protocol."""
        async with asyncio.TaskGroup() as tasks:
            for resumed in list(self._open.values()):
                self._start(tasks, admission, resumed)
            while True:
                ticket = await admission.admit()
                if self._data_epochs is not None and self._sampler.next_data_epoch >= self._data_epochs:
                    admission.give_up(ticket)
                    return
                prompt = self._sampler.next_prompt()
                group = _Open(ticket, prompt, self._requests(prompt))
                self._ctx.ledger.drawn([(request.sample_id, prompt.index) for request in group.requests])
                self._open[ticket.number] = group
                self._start(tasks, admission, group)
                await asyncio.sleep(0)  # new weights let thousands in at once: let others run between them

    def _start(self, tasks: asyncio.TaskGroup, admission: Admission, group: _Open) -> None:
        group.tasks.append(tasks.create_task(self._group(admission, group), name=f"group {group.prompt.group}"))

    def _requests(self, prompt: Prompt) -> list[GenerateRequest]:
        requests = make_requests([prompt], self._n + self._extra, self._params, "train", self._longest)
        if self._greedy:
            requests += greedy_requests([prompt], self._n, self._params, self._longest)
        return sorted(requests, key=lambda request: request.sample_id)

    async def _group(self, admission: Admission, group: _Open) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        await self._generate(group)
        generated = clock()
        async with asyncio.TaskGroup() as tasks:
            rewards = RewardStage(self._ctx, [group.prompt], len(group.done), tasks, slots=self._scoring)
            for _, completion in sorted(group.done.items()):
                await rewards.add(completion)
        self._ctx.ledger.completed(list(group.done.values()))
        self._ctx.ledger.scored([ScoreResult(sample, outcome) for sample, outcome in rewards.outcomes.items()])
        ticket = group.ticket
        finished = FinishedGroup(
            prompt=group.prompt,
            completions=dict(sorted(group.done.items())),
            outcomes=rewards.outcomes,
            admitted_step=ticket.admitted_step,
            oldest_step=oldest_step(group.done, ticket.admitted_step),
            generate_s=generated - started,
            score_s=clock() - generated,
        )
        del self._open[ticket.number]
        admission.finish(ticket, finished)

    async def _generate(self, group: _Open) -> None:
        """All samples of a group, or as many as it needs: then the slowest are given up."""
        wanted = self._n + self._greedy
        answers = self._answerer.of([group.prompt])

        async def one(request: GenerateRequest) -> None:
            completion = await answers.generate_one(request)
            if len(group.done) < wanted:
                group.done[request.sample_id] = completion
            if len(group.done) == wanted:
                self._give_up_rest(group)

        if len(group.done) >= wanted:  # it was resumed whole, only its scores are missing
            self._give_up_rest(group)
            return
        async with asyncio.TaskGroup() as tasks:
            group.tasks += [tasks.create_task(one(request)) for request in group.requests]

    def _give_up_rest(self, group: _Open) -> None:
        rest = [request.sample_id for request in group.requests if request.sample_id not in group.done]
        if rest:
            self._ctx.ledger.dropped(rest, SLOWEST)
            self._ctx.count("stream/stopped_samples", len(rest))
            group.requests = [request for request in group.requests if request.sample_id in group.done]
            me = asyncio.current_task()
            for task in group.tasks[1:]:
                if task is not me:
                    task.cancel()

    def stop(self, ticket: Ticket, reason: str) -> None:
        """See the Protocol."""
        group = self._open.pop(ticket.number, None)
        if group is None:
            return
        samples = {request.sample_id for request in group.requests} | group.done.keys()
        self._ctx.ledger.dropped(sorted(samples), reason)
        for task in group.tasks:  # its samples' too, now: none of them may still find a server
            task.cancel()

    def open_groups(self) -> frozenset[GroupId]:
        """See the Protocol."""
        return frozenset(group.prompt.group for group in self._open.values())

    def sampler_state(self) -> Mapping[str, Any]:
        """See the Protocol."""
        return self._sampler.state()

    def state(self) -> Mapping[str, Any]:
        """See the Protocol: of each sample either its completion or the tokens so far."""
        return {"groups": [self._group_state(group) for _, group in sorted(self._open.items())]}

    def _group_state(self, group: _Open) -> dict[str, Any]:
        unfinished = [request for request in group.requests if request.sample_id not in group.done]
        have = {str(r.sample_id): r.generated if self._so_far is None else self._so_far(r) for r in unfinished}
        return {
            "group": str(group.prompt.group),
            "admitted_step": group.ticket.admitted_step,
            "finished": [completion_to_json(row) for _, row in sorted(group.done.items())],
            "unfinished": {name: generated_to_json(one) for name, one in have.items()},
        }

    def restore(self, state: Mapping[str, Any], resume: Callable[[GroupId, int], Ticket]) -> None:
        """See the Protocol."""
        for saved in state["groups"]:
            done = {row.sample_id: row for row in map(completion_from_json, saved["finished"])}
            have = {SampleId.parse(name): generated_from_json(one) for name, one in saved["unfinished"].items()}
            prompt = self._sampler.prompt(GroupId.parse(saved["group"]))
            wanted = {request.sample_id: request for request in self._requests(prompt)}
            if not done.keys() | have.keys() <= wanted.keys() or len(done) + len(have) < self._n + self._greedy:
                self._ctx.ledger.dropped(sorted(done.keys() | have.keys()), OTHER_SIZE)
                continue
            ticket = resume(prompt.group, saved["admitted_step"])
            requests = [replace(wanted[sample], generated=tokens) for sample, tokens in sorted(have.items())]
            self._open[ticket.number] = _Open(ticket, prompt, requests, done)
