"""Validation beside the step after (argosy.validation_overlap), over services that answer at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.control import RunControl
from argosy.controller.ledger import read_segment
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.records import Completion, GenerateRequest, Mutation, StepResult, UpdateConfig
from support.toy import write_rows
from unit.config.effects import recorded as harness
from unit.config.effects.recorded import Recorded, run_recorded

Patch = pytest.MonkeyPatch
LATE_S = 0.1
"""How long validation's answers take after the update has begun, where a test makes them wait for it."""


@pytest.fixture
def validated(small_job: Config, tmp_path: Path) -> Config:
    """Case D14's input: training with T=1 and n=4, a greedy answer to each of 3 held-out prompts around each step."""
    write_rows(tmp_path / "val.jsonl", [f"exam {i}" for i in range(3)])
    return small_job.with_values({
        "data.val_files": [str(tmp_path / "val.jsonl")],
        "trainer.val_before_train": True,
        "trainer.test_freq": 1,
        "trainer.total_training_steps": 3,
    })  # fmt: skip


def changed(job: Config, name: str, **values: Any) -> Config:
    named = {key.replace("__", "."): value for key, value in values.items()}
    return job.with_values({"trainer.default_local_dir": f"{job.run_folder}-{name}"} | named)


@dataclass
class Events:
    """What happened in a run, in its order, and the step of the weights that each held-out answer was made with."""

    seen: list[str] = field(default_factory=list)
    passes: list[set[int]] = field(default_factory=list)
    updates: list[asyncio.Event] = field(default_factory=lambda: [asyncio.Event() for _ in range(3)])
    """Which have begun."""

    def watch(self, patch: Patch, *, beside: bool = True, fails_at: int | None = None) -> None:
        """`beside`: Let each pass but the last wait for the update of the step after. `fails_at`: The pass that fails,
        when its step's checkpoint exists."""
        generate, update, total = harness._Rollout.generate, harness._Policy.update, 3

        async def slow_generate(
            this: Any, requests: Sequence[GenerateRequest], **settings: Any
        ) -> AsyncIterator[Completion]:
            held_out = requests[0].purpose == "val"
            begun = len(self.passes)
            self.seen.append(f"val {begun}" if held_out else "gen")
            if held_out:
                self.passes.append({this._manifest.version.step})
                if beside and this._manifest.version.step < total:
                    await self.updates[this._manifest.version.step].wait()
                    await asyncio.sleep(LATE_S)
                if fails_at == this._manifest.version.step:
                    await until_saved(this._recorded.folder)
                    raise InvalidInputError("the servers don't like the exam")
            async for completion in generate(this, requests, **settings):
                if held_out:
                    self.passes[begun].add(this._manifest.version.step)
                yield completion
            if held_out:
                self.seen.append(f"val {begun} ends")

        async def slow_update(this: Any, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
            self.seen.append("update")
            self.updates[this._step].set()
            if beside:
                await asyncio.sleep(3 * LATE_S)
            self.seen.append("update ends")
            return await update(this, batch, config, ctx)

        patch.setattr(harness._Rollout, "generate", slow_generate)
        patch.setattr(harness._Policy, "update", slow_update)


async def until_saved(folder: Path) -> None:
    """Until a run has its first checkpoint."""
    for _ in range(3000):
        if (folder / "latest_checkpointed_iteration.txt").exists():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing is saved while validation is under way")


def rows(recorded: Recorded | Path) -> list[dict[str, Any]]:
    folder = recorded if isinstance(recorded, Path) else recorded.folder
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def held_out_rows(recorded: Recorded | Path) -> list[dict[str, Any]]:
    return [row for row in rows(recorded) if "training/global_step" not in row]


def untimed(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without times and rates."""
    timed = ("timing", "perf/", "rollout/pools/", "sync/")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in found]


def books(recorded: Recorded, step: int) -> list[tuple[Any, ...]]:
    """Who was trained at a step and how, without times."""
    return sorted(
        (row["sample_id"], row["state"], row["reason"]) for row in read_segment(recorded.folder / "ledger", step)
    )


@pytest.mark.parametrize("deterministic", [False, True])
async def test_d14_a_pass_beside_training_is_of_its_own_step_and_moves_nothing(
    validated: Config, deterministic: bool
) -> None:
    made: dict[bool, Recorded] = {}
    found: dict[bool, Events] = {}
    for overlap in (False, True):
        found[overlap] = Events()
        with pytest.MonkeyPatch.context() as patch:
            found[overlap].watch(patch, beside=overlap)
            job = changed(
                validated, str(overlap), argosy__validation_overlap=overlap, argosy__deterministic=deterministic
            )  # fmt: skip
            made[overlap] = await run_recorded(job, patch)
    plain, beside = made[False], made[True]

    # Training asks for and trains the same, and its books say the same.
    assert beside.requests("train") == plain.requests("train")
    for recorded in (plain, beside):
        params = {(one.params.temperature, one.priority) for one in recorded.requests("train")}
        assert (params, recorded.calls("train")) == ({(1.0, 0)}, [16, 16, 16])
        exam = recorded.requests("val")
        assert ({one.params.temperature for one in exam}, recorded.calls("val")) == ({0.0}, [3, 3, 3, 3])
    trained = [untimed([row for row in rows(one) if "training/global_step" in row]) for one in (plain, beside)]
    assert trained[0] == trained[1]
    assert [books(beside, step) for step in (1, 2, 3)] == [books(plain, step) for step in (1, 2, 3)]

    # Each pass was answered by the weights of its step alone, and is reported for it, once.
    for events in found.values():
        assert events.passes == [{0}, {1}, {2}, {3}]
    assert [row["step"] for row in held_out_rows(beside)] == [0, 1, 2, 3]
    assert untimed(held_out_rows(beside)) == untimed(held_out_rows(plain))
    report = beside.report
    assert report is not None
    assert report.before is not None
    assert report.after is not None
    assert (report.before.step, report.after.step) == (0, 3)
    assert len(beside.exported) == 1

    # It ran beside the update, and not beside generation.
    seen = found[True].seen
    for number in range(3):
        began, ended = seen.index(f"val {number}"), seen.index(f"val {number} ends")
        assert seen[:began].count("update ends") == number, "it begins before the next update has ended"
        assert seen[:ended].count("update") == number + 1, "and ends before the one after begins"
        assert "gen" not in seen[began:ended], "a batch of the engine would be another"
    assert "update" not in found[False].seen[found[False].seen.index("val 1") : found[False].seen.index("val 1 ends")]

    # Training waited for less than the pass took.
    lasted = [row["timing_s/validation"] for row in held_out_rows(beside)]
    waited = beside.metrics("timing_s/testing")
    assert all(seconds >= LATE_S for seconds in lasted[:3])
    assert all(wait < seconds for wait, seconds in zip(waited[:2], lasted[:2], strict=True))


async def test_d14_a_pass_beside_a_stream_begins_at_once(validated: Config, monkeypatch: Patch) -> None:
    """And is of its own step's weights all the same."""
    events = Events()
    events.watch(monkeypatch)
    job = changed(validated, "streamed", argosy__validation_overlap=True, argosy__max_staleness=1)
    recorded = await run_recorded(job, monkeypatch)
    assert events.passes == [{0}, {1}, {2}, {3}]
    assert events.seen.index("val 0") < events.seen.index("update")
    assert [row["step"] for row in held_out_rows(recorded)] == [0, 1, 2, 3]


async def test_d14_a_pass_beside_training_that_fails_ends_the_run_and_is_redone(validated: Config) -> None:
    """What it was is in the checkpoint, and the run that goes on has each pass once."""
    job = changed(
        validated, "failing", argosy__validation_overlap=True, trainer__save_freq=1, trainer__val_before_train=False,
        argosy__trainer__background_save=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        Events().watch(patch, beside=False, fails_at=1)
        with pytest.raises(InvalidInputError, match="don't like the exam"):
            await run_recorded(job, patch)
    state = json.loads((job.run_folder / "global_step_1" / "controller.json").read_text())
    assert state["pending_validation"] == 1
    assert held_out_rows(job.run_folder) == []

    with pytest.MonkeyPatch.context() as patch:
        events = Events()
        events.watch(patch, beside=False)
        again = await run_recorded(job, patch)
    assert [row["step"] for row in held_out_rows(again)][-3:] == [1, 2, 3]
    assert len(held_out_rows(again)) == 3


async def test_d14_a_pass_that_was_reported_is_not_repeated(validated: Config) -> None:
    """The checkpoint says that it was unfinished; it was finished, and its row written, before the run was killed."""
    job = changed(
        validated, "killed", argosy__validation_overlap=True, trainer__save_freq=1, trainer__val_before_train=False
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        events = Events()
        events.watch(patch)
        await run_recorded(job, patch)
    assert json.loads((job.run_folder / "global_step_2" / "controller.json").read_text())["pending_validation"] == 2
    assert json.loads((job.run_folder / "global_step_3" / "controller.json").read_text())["pending_validation"] is None
    (job.run_folder / "global_step_3").rename(job.run_folder / "lost")
    (job.run_folder / "latest_checkpointed_iteration.txt").write_text("2\n")
    with pytest.MonkeyPatch.context() as patch:
        again = await run_recorded(job, patch)
    assert again.calls("val") == [3], "only after the last step"
    assert [row["step"] for row in held_out_rows(again)] == [1, 2, 3]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_d14_a_run_that_is_stopped_reports_its_pass_or_leaves_it_to_the_next(
    validated: Config, interrupted: bool
) -> None:
    job = changed(validated, "stopped", argosy__validation_overlap=True, trainer__val_before_train=False)

    class Stopped(RunControl):
        """Stops after step 1."""

        async def at_step_boundary(self, step: int) -> None:
            if interrupted:
                self.interrupt("ended")
            else:
                await self.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "RunControl", Stopped)
        events = Events()
        events.watch(patch, beside=False)
        if interrupted:  # its pass would not end for long
            validating = harness._Rollout.generate

            async def stuck(
                this: Any, requests: Sequence[GenerateRequest], **settings: Any
            ) -> AsyncIterator[Completion]:
                if requests[0].purpose == "val":
                    await asyncio.sleep(60)
                async for completion in validating(this, requests, **settings):
                    yield completion

            patch.setattr(harness._Rollout, "generate", stuck)
        stopped = await run_recorded(job, patch)
    assert [row["step"] for row in held_out_rows(stopped)] == ([] if interrupted else [1])
    state = json.loads((job.run_folder / "global_step_1" / "controller.json").read_text())
    assert state["pending_validation"] == (1 if interrupted else None)
    with pytest.MonkeyPatch.context() as patch:
        again = await run_recorded(job, patch)
    assert [row["step"] for row in held_out_rows(again)] == [1, 2, 3]
