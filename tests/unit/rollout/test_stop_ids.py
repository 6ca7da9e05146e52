"""Case D9 on a model that says what it is told to: each token is followed by one token with certainty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams
from unit.rollout.support import answers

FOLLOWS = {4: (5,), 5: (9, 6), 9: (6,), 6: (2, 7), 2: (7,), 7: (2, 8), 8: (7,)}
"""Token → the likeliest next one, and the next best."""
SIZE = 16


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "chain"
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        max_position_embeddings=64,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=0,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for token, nexts in FOLLOWS.items():
            for rank, following in enumerate(nexts):
                model.lm_head.weight[following, token] = 5.0 - 2 * rank
    model.save_pretrained(folder)
    # config.json says 2, generation_config.json says [2, 9]: both count.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    return folder


async def complete(folder: Path, **params: Any) -> Completion:
    rollout = HfRollout(HfRolloutOptions(str(folder), device="cpu"), lambda ids: " ".join(map(str, ids)))
    try:
        settings = SamplingParams(**({"max_tokens": 8, "temperature": 0.0} | params))
        [done] = await answers(rollout, [GenerateRequest(SampleId(0, 0, 0), (4,), settings)])
        return done
    finally:
        await rollout.close()


async def test_d9_stops_at_any_of_several_eos_ids(chain: Path) -> None:
    done = await complete(chain)
    assert done.token_ids == (5, 9)
    assert len(done.log_probs) == 2
    assert done.finish_reason is FinishReason.STOP


async def test_d9_ignore_eos_runs_to_the_limit(chain: Path) -> None:
    done = await complete(chain, ignore_eos=True)
    assert done.token_ids == (5, 9, 6, 2, 7, 2, 7, 2)
    assert done.finish_reason is FinishReason.LENGTH


async def test_d9_min_tokens_masks_every_stop_id(chain: Path) -> None:
    """9 is masked at the second token, so the next best, 6, comes; its log-prob is of what is left. 2 is masked at the
    third. The fourth may stop."""
    done = await complete(chain, min_tokens=3)
    assert done.token_ids == (5, 6, 7, 2)
    assert done.finish_reason is FinishReason.STOP
    logits = torch.zeros(SIZE)
    logits[9], logits[6] = 5.0 * SIZE**0.5, 3.0 * SIZE**0.5  # the norm scales a one-hot vector by √SIZE
    logits[[2, 9]] = -torch.inf
    assert done.log_probs[1] == pytest.approx(logits.log_softmax(0)[6].item(), abs=1e-4)


async def test_d9_stop_token_ids_hold_even_with_ignore_eos(chain: Path) -> None:
    done = await complete(chain, ignore_eos=True, stop_token_ids=(7,))
    assert done.token_ids == (5, 9, 6, 2, 7)
    assert done.finish_reason is FinishReason.STOP


async def test_d9_length_and_stop_on_the_same_token_is_a_stop(chain: Path) -> None:
    done = await complete(chain, max_tokens=2)
    assert done.token_ids == (5, 9)
    assert done.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("include", "text"), [(False, "5 9 6"), (True, "5 9 6 2")])
async def test_d4_stop_string_over_tokens_keeps_ids_and_log_probs(chain: Path, include: bool, text: str) -> None:
    done = await complete(chain, ignore_eos=True, stop=(" 2",), include_stop_str_in_output=include)
    assert done.token_ids == (5, 9, 6, 2)
    assert len(done.log_probs) == 4
    assert done.text == text
    assert done.finish_reason is FinishReason.STOP
