"""Saving beside training: what is waited for, what becomes of failures, and what a kill leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.recovery import CheckpointStore
from argosy.controller.stages.save import CheckpointSaves
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import StorageError
from argosy.types.records import Mutation


class SlowTrainer:
    """Copies at once, writes when it is let."""

    def __init__(self) -> None:
        self.step = 0
        self.may_write = asyncio.Event()
        self.failure: StorageError | None = None
        self.copies: list[int] = []

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        assert ctx.expected_step == self.step, "the update overtook the copy"
        self.copies.append(self.step)
        if not background:
            return await self.finish_save(path, deadline_s=1)
        return []

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        await self.may_write.wait()
        if self.failure is not None:
            raise self.failure
        (Path(path) / "model").write_text(str(self.copies[-1]))
        return ["model"]


class Context:
    """What of a RunContext saving uses."""

    run_id, term, deadline_s = "run", 1, 5.0

    def __init__(self) -> None:
        self.membership = MemoryMembership()

    def mutation(self, *parts: object, expected_step: int | None = None) -> Mutation:
        return Mutation("run", 1, "/".join(map(str, parts)), 5.0, expected_step)

    def trainer_step(self, name: str, step: int) -> int:
        return step


@pytest.fixture
async def trainer() -> SlowTrainer:
    return SlowTrainer()


async def saves_of(
    folder: Path, trainer: SlowTrainer, done: list[int] | None = None, *, background: bool = True
) -> CheckpointSaves:
    context: Any = Context()
    await context.membership.elect("run", candidate="controller-0")
    noted = [] if done is None else done
    return CheckpointSaves(
        context,
        CheckpointStore(folder, 1),
        {"actor": trainer},
        background=background,
        done=lambda step, path: noted.append(step),
    )


def folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


async def test_training_goes_on_and_the_checkpoint_is_that_of_its_step(tmp_path: Path, trainer: SlowTrainer) -> None:
    done: list[int] = []
    async with await saves_of(tmp_path, trainer, done) as saves:
        await asyncio.wait_for(saves.start(0, {"step": 0}), 1)
        trainer.step = 1  # trained on, while nothing is written
        assert not (tmp_path / "global_step_0").exists()
        trainer.may_write.set()
    assert done == [0]
    assert (tmp_path / "global_step_0" / "actor" / "model").read_text() == "0"
    assert CheckpointStore(tmp_path, 1).latest() is not None


async def test_the_next_save_waits_for_the_one_before(tmp_path: Path, trainer: SlowTrainer) -> None:
    async with await saves_of(tmp_path, trainer) as saves:
        await saves.start(0, {})
        trainer.step = 1
        second = asyncio.create_task(saves.start(1, {}))
        await asyncio.sleep(0.01)
        assert trainer.copies == [0], "two copies at once"
        trainer.may_write.set()
        await second
    assert folders_in(tmp_path) == ["global_step_1"], "keep 1"


async def test_in_the_foreground_the_checkpoint_exists_when_start_returns(tmp_path: Path, trainer: SlowTrainer) -> None:
    trainer.may_write.set()
    async with await saves_of(tmp_path, trainer, background=False) as saves:
        await saves.start(0, {})
        assert (tmp_path / "global_step_0" / "manifest.json").exists()


@pytest.mark.parametrize("found_by", ["step boundary", "next save", "end"])
async def test_e4_a_failed_save_is_raised_and_keeps_the_old_checkpoint(
    tmp_path: Path, trainer: SlowTrainer, found_by: str
) -> None:
    trainer.may_write.set()
    async with await saves_of(tmp_path, trainer) as saves:
        await saves.start(0, {})
    trainer.failure = StorageError("no space left")

    async def run() -> None:
        async with await saves_of(tmp_path, trainer) as saves:
            await saves.start(0, {})
            saves.raise_failure()  # not yet
            await asyncio.sleep(0.01)
            if found_by == "step boundary":
                saves.raise_failure()
            elif found_by == "next save":
                await saves.start(0, {})
            else:
                return
            pytest.fail("nobody was told")

    with pytest.raises(StorageError, match="no space left"):
        await run()
    latest = CheckpointStore(tmp_path, 1).latest()
    assert latest is not None
    assert latest.step == 0


async def test_a_run_that_fails_still_finishes_its_save(
    tmp_path: Path, trainer: SlowTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with await saves_of(tmp_path, trainer) as saves:
            await saves.start(0, {})
            trainer.may_write.set()
            raise ValueError("training broke")

    for failure in (None, StorageError("no space left")):
        trainer.failure = failure
        with pytest.raises(ValueError, match="training broke"):
            await run()
    assert (tmp_path / "global_step_0" / "manifest.json").exists()
    assert "no space left" in caplog.text


async def test_a_cancelled_run_gives_its_save_up(tmp_path: Path, trainer: SlowTrainer) -> None:
    """It may be led by another by then: nothing of it may become a checkpoint."""

    async def run() -> None:
        async with await saves_of(tmp_path, trainer) as saves:
            await saves.start(0, {})
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert CheckpointStore(tmp_path, 1).complete() == []
    trainer.may_write.set()
    async with await saves_of(tmp_path, trainer) as saves:
        trainer.step = 1
        await saves.start(1, {})
    assert folders_in(tmp_path) == ["global_step_1"], "the leftover is gone"
