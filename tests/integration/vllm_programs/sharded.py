"""vLLM with two workers that divide each matrix (tensor parallel), and a model with a head of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.text.tokenizer import load_tokenizer
from integration.vllm_programs.inside import HIDDEN_SIZE, MAX_LEN, ask, other_weights, request_of


@pytest.mark.asyncio
async def test_d2_two_workers_take_an_update_of_an_untied_model_whole(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "untied", hidden_size=HIDDEN_SIZE, weight_scale=3.0, tied=False)
    options = VllmOptions(str(folder), threads=1, slot_count=4, max_model_len=MAX_LEN, tensor_parallel_size=2)
    engine = VllmEngine(options, load_tokenizer(str(folder)).decode)
    await engine.start()
    try:
        weights = other_weights(folder, 1)
        sent = weights.model.state_dict()
        assert "lm_head.weight" in engine.facts.shapes.keys() - engine.facts.tied.keys()
        await engine.swap_weights(sent, weights.version)
        answers = await ask(engine, [request_of(k) for k in range(3)])
        for answer in answers:
            expected = weights.log_probs(request_of(0).prompt_ids, answer.token_ids)
            assert torch.tensor(answer.log_probs).sub(expected).abs().max() < 1e-5
        assert (await ask(engine, [request_of(1)]))[0].token_ids == answers[1].token_ids
    finally:
        await engine.close()
