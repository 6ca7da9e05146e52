"""What the adapter to vLLM does when vLLM fails or hangs, over a stand-in for AsyncLLM. The real one runs in the
contract suite (marked `engine`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.vllm import engine as module
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.launch import Launched
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.rollout.engines.vllm.weights import WorkerWeights
from argosy.types.errors import UnavailableError
from argosy.types.ids import PolicyVersion

V1 = PolicyVersion("main", 1, "1" * 64)


class Llm:
    """As much of AsyncLLM as these tests need."""

    errored = False

    def __init__(self) -> None:
        self.engine_core = SimpleNamespace(
            outputs_queue=SimpleQueue[Any](), pause_scheduler_async=self.pause_scheduler_async
        )
        self.goes = True
        self.fails_at = ""
        self.unfit = ""
        self.turns = iter([True])
        self.calls: list[str] = []
        self.ended = 0

    async def pause_scheduler_async(self, **options: Any) -> None:
        self.goes = False

    async def resume_generation(self) -> None:
        self.goes = True

    async def update_weight_version(self, name: str) -> None:
        pass

    async def reset_prefix_cache(self, **options: Any) -> None:
        pass

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(method)
        if method == self.fails_at:
            raise RuntimeError("a worker fails")
        if method == "argosy_advance":
            return [next(self.turns)]
        return [self.unfit if method == "argosy_prepare" else None]

    def shutdown(self) -> None:
        self.ended += 1


Make = Callable[..., tuple[VllmEngine, Llm]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    folder = save_tiny_model(tmp_path / "model")

    async def ready(*args: object) -> bool:
        return True

    for name in ("require_vllm", "prepare_environment"):
        monkeypatch.setattr(module, name, lambda *args: None)
    monkeypatch.setattr(module, "make_ready", ready)

    def start(may_go: threading.Event | None = None, **options: Any) -> tuple[VllmEngine, Llm]:
        llm = Llm()

        def launch(*args: object) -> Launched:
            if may_go is not None:
                may_go.wait(20)
            return Launched(llm, on_cpu=True)

        monkeypatch.setattr(module, "launch", launch)
        return VllmEngine(VllmOptions(str(folder), start_stale=True, **options), lambda ids: ""), llm

    return start


async def test_a_sleep_that_fails_is_none(make: Make) -> None:
    engine, llm = make()
    await engine.start()
    llm.fails_at = "argosy_release_cache"
    with pytest.raises(RuntimeError, match="a worker fails"):
        await engine.sleep(1)
    assert llm.goes
    llm.fails_at = ""
    await engine.sleep(1)
    assert not llm.goes
    await engine.wake()
    assert llm.goes
    await engine.close()


async def test_a_start_that_is_cancelled_leaves_nothing_running(make: Make) -> None:
    may_go = threading.Event()
    engine, llm = make(may_go)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    may_go.set()
    async with asyncio.timeout(10):
        while not llm.ended:  # noqa: ASYNC110 - a thread's doing
            await asyncio.sleep(0.01)


async def test_a_swap_that_hangs_ends_the_engine(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: WorkerWeights, llm: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WorkerWeights, "put_in", hangs)
    engine, _ = make(swap_timeout_s=0.05)
    await engine.start()
    facts = engine.facts
    names = facts.shapes.keys() - facts.tied.keys()
    tensors = {name: torch.zeros(tuple(facts.shapes[name].shape)) for name in names}
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="has not put new weights in"):
            await engine.swap_weights(tensors, V1)
    assert isinstance(engine.failed.result(0), UnavailableError)
    assert engine.version is None
    with pytest.raises(UnavailableError, match="has failed"):
        await engine.submit([], lambda event: None, 0)
    await engine.close()


async def prepared(llm: Llm, weights: WorkerWeights) -> list[str]:
    """What the workers are told, in order, for an update."""
    llm.calls.clear()
    await weights.prepare(llm, lambda: True)
    await weights.put_in(llm)
    return llm.calls


async def test_weights_are_made_ready_in_turns_and_then_change_places(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, llm = make()
    await engine.start()
    loaded: list[object] = []

    async def in_place(self: WorkerWeights, llm: object) -> None:
        loaded.append(llm)

    monkeypatch.setattr(WorkerWeights, "_load_in_place", in_place)
    weights = engine._weights
    await weights.lay_out({name: torch.zeros(tuple(shape.shape)) for name, shape in engine.facts.shapes.items()})
    llm.turns = iter([False, False, True])
    assert await prepared(llm, weights) == ["argosy_prepare", *["argosy_advance"] * 3, "argosy_swap_in"]
    assert not loaded
    llm.unfit = "too little memory"
    assert await prepared(llm, weights) == ["argosy_prepare", "argosy_drop_replaced"]
    assert len(loaded) == 1
    llm.unfit, llm.fails_at, llm.turns = "", "argosy_advance", iter([True])
    assert await prepared(llm, weights) == ["argosy_prepare", "argosy_advance", "argosy_drop_replaced"]
    assert len(loaded) == 2
    await engine.close()
