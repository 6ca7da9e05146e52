"""`argosy.*` of the run and of the services that compute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.config import Config
from argosy.controller.stages.prompt import training_params
from argosy.controller.stages.update import update_config
from argosy.rollout.engines.hf.native.compiler import load_library
from argosy.types.errors import InvalidInputError, OverloadedError
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, SamplingParams, TokenRun
from support.training import grouped_batch, mutation
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import Core, Cores, build, model_of, problems, prompts

Patch = pytest.MonkeyPatch


async def test_run_id(job: Config, monkeypatch: Patch) -> None:
    recorded = await run_recorded(job.with_values({"argosy.run_id": "mine"}), monkeypatch)
    assert {mutation.run_id for mutation in recorded.mutations} == {"mine"}
    assert recorded.report is not None
    assert recorded.report.run_id == "mine"


async def test_seed(job: Config, monkeypatch: Patch) -> None:
    """Of sampling, of shuffling in the update, and of the data order where data.seed is null."""
    changed = job.with_values({"argosy.seed": 7, "trainer.default_local_dir": f"{job.run_folder}-2"})
    assert (training_params(job).seed, training_params(changed).seed) == (0, 7)
    assert (update_config(job).seed, update_config(changed).seed) == (0, 7)
    orders = [(await run_recorded(config, monkeypatch)).requests("train") for config in (job, changed)]
    assert [one.prompt_ids for one in orders[0]] != [one.prompt_ids for one in orders[1]]
    few = {"data.train_max_samples": 4}
    rows = [[one.index for one in prompts(config.with_values(few)).in_order()] for config in (job, changed)]
    assert rows[0] != rows[1]


async def test_deterministic(job: Config, cores: Cores) -> None:
    """The engine admits samples in the order of their ids, whatever order they come in; and float32 is demanded."""
    for value in (False, True):
        changed = job.with_values({"argosy.deterministic": value, "argosy.rollout.slot_count": 1})
        core = cores("rollout", changed)
        requests = [GenerateRequest(SampleId(0, 0, k), (5, 6, 7), SamplingParams(2, seed=1)) for k in (3, 1, 2)]
        found = [completion.sample_id.k async for completion in core.generate(requests, deadline_s=60)]
        assert found == ([1, 2, 3] if value else [3, 1, 2])
    assert "holds bit for bit in float32 only" in problems(
        job.with_values({"argosy.deterministic": True, "argosy.rollout.dtype": "bfloat16"})
    )


async def test_max_staleness(job: Config, monkeypatch: Patch) -> None:
    """0: samples are asked for when the step before is trained; 2: beside it, and older ones are trained."""
    steps = {"trainer.total_training_steps": 3}
    calls = {}
    for most in (0, 2):
        changed = job.with_values(
            {"argosy.max_staleness": most, "trainer.default_local_dir": f"{job.run_folder}-{most}"}
        )
        recorded = await run_recorded(changed.with_values(steps), monkeypatch)
        calls[most] = recorded.metrics("staleness/max")
    assert calls == {0: [0.0, 0.0, 0.0], 2: [0.0, 1.0, 2.0]}
    assert "argosy.max_staleness: got 65" in problems(job.with_values({"argosy.max_staleness": 65}))


async def test_export_hf(job: Config, monkeypatch: Patch) -> None:
    exported = await run_recorded(job, monkeypatch)
    changed = job.with_values({"argosy.export_hf": False, "trainer.default_local_dir": f"{job.run_folder}-2"})
    recorded = await run_recorded(changed, monkeypatch)
    assert (exported.exported, recorded.exported) == ([str(job.run_folder / "hf")], [])


async def test_slot_count(job: Config, cores: Cores) -> None:
    """Samples beyond it wait."""
    core = cores("rollout", job.with_values({"argosy.rollout.slot_count": 2}))
    assert (await core.status()).slot_count == 2
    most = 0
    requests = [GenerateRequest(SampleId(0, 0, k), (5, 6, 7), SamplingParams(8, ignore_eos=True)) for k in range(6)]
    async for _ in core.generate_runs(requests, deadline_s=60, interval_tokens=1):
        most = max(most, (await core.status()).running_count)
    assert most == 2


async def test_kv_tokens(job: Config, cores: Cores) -> None:
    """Samples of 3 + 8 tokens: two of them fit into 30."""
    core = cores("rollout", job.with_values({"argosy.rollout.kv_tokens": 30, "data.max_prompt_length": 16}))
    assert (await core.status()).kv_total_tokens == 30
    most = 0
    requests = [
        GenerateRequest(SampleId(0, 0, k), (5, 6, 7), SamplingParams(8, ignore_eos=True)) for k in range(100)
    ]  # looked at now and then
    async for _ in core.generate_runs(requests, deadline_s=60, interval_tokens=1):
        most = max(most, (await core.status()).running_count)
    assert most == 2


async def test_max_waiting(job: Config, cores: Cores) -> None:
    changed = job.with_values({"argosy.rollout.slot_count": 2, "argosy.rollout.max_waiting": 3})
    requests = [GenerateRequest(SampleId(0, 0, k), (5, 6, 7), SamplingParams(2)) for k in range(6)]
    assert len([end async for end in cores("rollout", job).generate(requests, deadline_s=60)]) == 6
    with pytest.raises(OverloadedError, match="6 samples don't fit"):
        await anext(cores("rollout", changed).generate(requests, deadline_s=60))


async def test_stall_timeout_s(job: Config, cores: Cores) -> None:
    """The engine's thread is held up for longer than the shorter bound."""
    states = {}
    for bound in (0.05, 60.0):
        core = cores("rollout", job.with_values({"argosy.rollout.stall_timeout_s": bound}))
        may_go = threading.Event()
        core.engine.loop.call(may_go.wait)
        await core.status()
        await asyncio.sleep(0.1)
        states[bound] = (await core.status()).state
        may_go.set()
    assert states == {0.05: "stuck", 60.0: "ready"}


def test_native_kernels(job: Config, cores: Cores) -> None:
    if load_library() is None:
        pytest.skip("needs a C++ compiler and a CPU with AVX-512")
    assert cores("rollout", job).engine.model.native is not None
    assert cores("rollout", job.with_values({"argosy.rollout.native_kernels": False})).engine.model.native is None


def test_trainer_native_kernels(job: Config, cores: Cores, tmp_path: Path) -> None:
    from argosy.modeling.native.layers import NativeLayer
    from argosy.modeling.native.library import load_library as load_training
    from argosy.modeling.tiny import save_tiny_model

    if load_training() is None:
        pytest.skip("needs a C++ compiler and a CPU with AMX")
    folder = save_tiny_model(tmp_path / "model", hidden_size=64, head_count=2, kv_head_count=1)
    dtype = {"actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16"}
    base = job.with_values({"actor_rollout_ref.model.path": str(folder), **dtype})
    for chosen, count in ((base, 2), (base.with_values({"argosy.trainer.native_kernels": False}), 0)):
        model = cores("trainer", chosen)._backend.model_for_export()
        assert sum(isinstance(module, NativeLayer) for module in model.modules()) == count


async def test_prefill_token_budget(job: Config, cores: Cores, monkeypatch: Patch) -> None:
    """Three prompts of 10 tokens: two fit into one step of 20, with a budget of 10 each needs its own."""
    counts = {}
    for budget in (4096, 10):
        core = cores("rollout", job.with_values({"argosy.rollout.prefill_token_budget": budget}))
        admitted: list[int] = []
        admit = core.engine.loop.scheduler.admit

        def noted(
            limit: int, cost: object, admit: Callable[..., list[object]] = admit, admitted: list[int] = admitted
        ) -> list[object]:
            found = admit(limit, cost)
            admitted.extend([len(found)] if found else [])
            return found

        monkeypatch.setattr(core.engine.loop.scheduler, "admit", noted)
        requests = [
            GenerateRequest(SampleId(0, p, 0), tuple(range(5 + p, 15 + p)), SamplingParams(4, ignore_eos=True))
            for p in range(3)
        ]
        assert len([completion async for completion in core.generate(requests, deadline_s=60)]) == 3
        counts[budget] = admitted
    assert counts == {4096: [3], 10: [1, 1, 1]}


async def test_stream_interval_tokens(job: Config, cores: Cores) -> None:
    core = cores("rollout", job.with_values({"argosy.rollout.stream_interval_tokens": 3}))
    [request] = [GenerateRequest(SampleId(0, 0, 0), (5, 6, 7), SamplingParams(8, ignore_eos=True))]
    runs = [event async for event in core.generate_runs([request], deadline_s=60) if isinstance(event, TokenRun)]
    assert [len(run.token_ids) for run in runs] == [3, 3]


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("rollout", "argosy.rollout.device"),
        ("trainer", "argosy.trainer.device"),
        ("critic", "argosy.critic.device"),
        ("reference", "argosy.reference.device"),
    ],
)
def test_device(job: Config, role: str, key: str) -> None:
    """A GPU of that number is nowhere: asking for it fails, where "cpu" works in all other tests."""
    with pytest.raises(InvalidInputError, match="cuda:99"):
        build(role, job.with_values({key: "cuda:99"}))


async def thread_count(role: str, core: Core) -> int:
    """Of PyTorch in the thread that computes."""
    run: Callable[..., Awaitable[int]] = core.engine.call if role == "rollout" else core._thread.run
    return await run(torch.get_num_threads)


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("rollout", "argosy.rollout.threads"),
        ("trainer", "argosy.trainer.threads"),
        ("critic", "argosy.critic.threads"),
        ("reference", "argosy.reference.threads"),
    ],
)
async def test_threads(job: Config, cores: Cores, role: str, key: str) -> None:
    try:
        assert await thread_count(role, cores(role, job.with_values({key: 3}))) == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("trainer", "argosy.trainer.log_prob_chunk_tokens"),
        ("reference", "argosy.reference.log_prob_chunk_tokens"),
    ],
)
async def test_log_prob_chunk_tokens(job: Config, cores: Cores, monkeypatch: Patch, role: str, key: str) -> None:
    """The most rows of logits that exist at once."""
    from argosy.modeling import log_probs

    counts: list[int] = []
    real = log_probs._sums

    def noted(hidden: torch.Tensor, *rest: Any) -> Any:
        counts.append(hidden.shape[0])
        return real(hidden, *rest)

    core = cores(role, job.with_values({key: 5}))
    monkeypatch.setattr(log_probs, "_sums", noted)
    await core.compute_log_probs(grouped_batch(), ["log_probs"], temperature=1.0, deadline_s=60)
    assert (max(counts), len(counts) > 1) == (5, True)


async def test_background_save(job: Config, monkeypatch: Patch) -> None:
    """Asked of the trainer for each checkpoint."""
    keys = {"argosy.trainer.background_save": False, "trainer.default_local_dir": f"{job.run_folder}-2"}
    changed = job.with_values(keys)
    found = [set((await run_recorded(config, monkeypatch)).background_saves) for config in (job, changed)]
    assert found == [{True}, {False}]


async def test_max_shard_size(job: Config, cores: Cores, tmp_path: Path) -> None:
    """Weights files of an export."""
    changed = job.with_values({"argosy.trainer.max_shard_size": "100KB"})
    counts = []
    for name, config in (("whole", job), ("cut", changed)):
        files = await cores("trainer", config).export_hf(str(tmp_path / name), mutation())
        counts.append(len([file for file in files if file.endswith(".safetensors")]))
    assert counts[0] == 1 < counts[1]


async def test_reference_dtype(job: Config, cores: Cores) -> None:
    changed = job.with_values({"argosy.reference.dtype": "bfloat16"})
    found = [next(model_of("reference", cores("reference", config)).parameters()).dtype for config in (job, changed)]
    assert found == [torch.float32, torch.bfloat16]
