"""vLLM with two workers that divide each matrix (tensor parallel), and a model with a head of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.updates import WeightUpdates
from argosy.rollout.engines.vllm import arguments
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.text.tokenizer import load_tokenizer
from argosy.weightsync import Snapshot
from argosy.weightsync.transports import SendOptions, TransferPlan, load_transport
from integration.vllm_programs import reading_back
from integration.vllm_programs.inside import HIDDEN_SIZE, MAX_LEN, ask, other_weights, request_of
from integration.vllm_programs.lora import only_beside

__all__ = ["only_beside"]
RANKS = 2
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""vLLM's matrix → the trainer's, one below the other."""
BY_COLUMN = ("o_proj", "down_proj")
VOCABULARIES = ("model.embed_tokens", "lm_head")
PADDED_TO = 64
"""Rows of a vocabulary are a multiple of it."""


@pytest.mark.asyncio
@pytest.mark.usefixtures("only_beside")
async def test_d2_two_workers_take_an_update_of_an_untied_model_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective transfer, which the first of them receives; names, fused matrices and padding are vLLM's own."""
    monkeypatch.setattr(arguments, "_EXTENSION", reading_back.EXTENSION)
    folder = save_tiny_model(tmp_path / "untied", hidden_size=HIDDEN_SIZE, weight_scale=3.0, tied=False)
    options = VllmOptions(str(folder), threads=1, slot_count=4, max_model_len=MAX_LEN, tensor_parallel_size=RANKS)
    engine = VllmEngine(options, load_tokenizer(str(folder)).decode)
    await engine.start()
    try:
        weights = other_weights(folder, 1)
        assert "lm_head.weight" in engine.facts.shapes.keys() - engine.facts.tied.keys()
        state = weights.model.state_dict()
        await send(engine, state)
        held = await engine._llm.collective_rpc("read_back")
        assert len(held) == RANKS
        for rank in range(RANKS):
            check_shard({name: torch.tensor(rows) for name, rows in held[rank].items()}, state, rank)
        answers = await ask(engine, [request_of(k) for k in range(3)])
        for answer in answers:
            expected = weights.log_probs(request_of(0).prompt_ids, answer.token_ids)
            assert torch.tensor(answer.log_probs).sub(expected).abs().max() < 1e-5
        assert (await ask(engine, [request_of(1)]))[0].token_ids == answers[1].token_ids
    finally:
        await engine.close()


async def send(engine: VllmEngine, state: Mapping[str, Tensor]) -> None:
    """By a collective transfer, as a server would take it."""
    snapshot = Snapshot.freeze("main", 1, state)
    updates = WeightUpdates(engine.facts.shapes, engine.facts.tied, engine.facts.casts, engine.receive_collective)
    transfer = await load_transport("collective").open_transfer(
        snapshot, TransferPlan("sync", 1, 60, "fence"), SendOptions(bucket_bytes=1 << 18)
    )
    try:
        updates.start("sync", snapshot.manifest)
        await updates.receive("sync", snapshot, 60, transfer.offers[0])
    finally:
        await transfer.close()
    tensors, manifest = updates.staged("sync")
    await engine.swap_weights(tensors, manifest.version)


def check_shard(held: Mapping[str, Tensor], sent: Mapping[str, Tensor], rank: int) -> None:
    """One worker's matrices are its parts of those that were sent, value for value, and no others."""
    expected: dict[str, Tensor] = {}
    for name, tensor in sent.items():
        layer, _, kind = name.rpartition(".")
        if layer in VOCABULARIES or tensor.ndim != 2 or kind != "weight":
            continue
        block, _, last = layer.rpartition(".")
        fused = next((ours for ours, theirs in FUSED.items() if last in theirs), None)
        if fused is None:
            expected[layer] = tensor.chunk(RANKS, 1 if last in BY_COLUMN else 0)[rank]
        elif f"{block}.{fused}" not in expected:
            parts = [sent[f"{block}.{part}.weight"].chunk(RANKS)[rank] for part in FUSED[fused]]
            expected[f"{block}.{fused}"] = torch.cat(parts)
    for layer in VOCABULARIES:
        rows = sent[f"{layer}.weight"]
        padding = -len(rows) % PADDED_TO
        assert padding, "else there is nothing to see"
        expected[layer] = torch.nn.functional.pad(rows, (0, 0, 0, padding)).chunk(RANKS)[rank]
    assert held.keys() == expected.keys()
    for layer, rows in expected.items():
        assert torch.equal(held[layer], rows), layer
