"""Recorded steps given back to the loop, in place of what generates and scores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.ledger.entry import DISPATCHED, DRAWN, SCORED
from argosy.controller.producing import NoMoreSteps, Produced, StepRecord
from argosy.controller.recording.store import Record
from argosy.telemetry.traces import span, traceparent
from argosy.types.errors import StateError
from argosy.types.ids import GroupId
from argosy.types.records import Prompt, ScoreResult


class ReplayProducer:
    """Implements `argosy.controller.producing.StepProducer` from a record. The books get the samples as if they were
    new."""

    def __init__(self, ctx: RunContext, record: Record) -> None:
        self._ctx = ctx
        self._record = record
        self._sampler_state: Mapping[str, Any] = {}
        self._reward_state: Mapping[str, Any] = {}
        self._left: frozenset[GroupId] | None = None

    async def run(self) -> None:
        """Nothing goes on beside the trainer."""

    def synced(self, step: int) -> None:
        """Recorded samples are as old as they are."""

    async def produce(self, step: int) -> Produced | NoMoreSteps:
        """Read a step. Raises CorruptDataError if its file is damaged, ConfigError if there is none."""
        started = time.perf_counter()
        with span("step.replay", step=step):
            trace = traceparent()
            found = await asyncio.to_thread(self._record.read, step)
            self._enter(found.record)
        self._sampler_state, self._reward_state = found.sampler_state, found.reward_state
        timing = {"gen": 0.0, "reward": 0.0, "replay": time.perf_counter() - started}
        return Produced(found.record, found.sampler_state, found.reward_state, timing, started, trace, found.metrics)

    def open_groups(self) -> frozenset[GroupId]:
        """What an asynchronous run had under way at the checkpoint from which this one goes on, and what the record
        did not train so far; nothing else is open between two steps."""
        if self._left is None:
            self._left = frozenset(entry.sample.group for entry in self._ctx.ledger.in_flight())
        return self._left

    def sampler_state(self) -> Mapping[str, Any]:
        """As it was recorded with the last step: a later run with data of its own goes on from there."""
        return self._sampler_state

    def reward_state(self) -> dict[str, Any]:
        """As it was recorded with the last step."""
        return dict(self._reward_state)

    def restore_rewards(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._reward_state = state

    def state(self) -> Mapping[str, Any]:
        """Nothing is under way between two steps."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """What an asynchronous run had under way isn't done again: the record has the steps that it came to be in.
        Until then it stays open in the books."""

    def _enter(self, record: StepRecord) -> None:
        index = {prompt.group: prompt.index for prompt in record.prompts}
        ledger = self._ctx.ledger
        # A sample that is open already, since a checkpoint had it, goes on from the state in which it was.
        states = {entry.sample: entry.state for entry in ledger.in_flight()}
        self._left = frozenset(sample.group for sample in states) - index.keys()
        samples = sorted(record.completions)
        ledger.dropped(
            sorted(sample for sample in states.keys() - record.completions.keys() if sample.group in index),
            "the replayed step has its group without it",
        )
        ledger.drawn([(sample, index[sample.group]) for sample in samples if sample not in states])
        asked = [sample for sample in samples if states.get(sample, DRAWN) in (DRAWN, DISPATCHED)]
        ledger.dispatched(asked, "replay")
        ledger.completed([record.completions[sample] for sample in asked])
        judged = sorted(sample for sample in record.outcomes if states.get(sample) != SCORED)
        ledger.scored([ScoreResult(sample, record.outcomes[sample]) for sample in judged])


class RecordedOrder(PromptSampler):
    """The data order of a replayed run, in which nothing is drawn: the steps' numbers say where to go on."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._saved: dict[str, Any] = {}

    @property
    def batch_size(self) -> int:
        """Prompts per step."""
        return self._record.head.train_batch_size

    @property
    def steps_per_epoch(self) -> int:
        """All of the record."""
        return max(1, len(self._record.steps))

    @property
    def data_epoch(self) -> int:
        """There is one."""
        return 0

    def of_each_kind(self) -> list[Prompt]:
        """None: what is replayed was judged."""
        return []

    def first_prompts(self, count: int) -> list[Prompt]:
        """None: there is no engine that could be compared with the trainer."""
        return []

    def next_batch(self) -> list[Prompt]:
        """StateError."""
        raise StateError("a replayed run draws no prompts")

    def prompt(self, group: GroupId) -> Prompt:
        """StateError."""
        raise StateError(f"a replayed run has no prompts to draw, such as {group}")

    def state(self) -> dict[str, Any]:
        """What was restored; each step brings that of the run it was recorded from."""
        return self._saved

    def restore(self, state: Mapping[str, Any]) -> None:
        """Any state will do."""
        self._saved = dict(state)


def open_replay(config: Config) -> Record | None:
    """The record that a configuration trains from; None for a run with rollouts of its own. Raises as Record does."""
    path = config.argosy.replay.path
    return None if path is None else Record(Path(path).expanduser())
