"""Case C1 and C3 from the data to the trainer's batch: the very ids that were made and sampled, in every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.data.prompts import load_prompts
from argosy.controller.stages.advantage import build_batch
from argosy.controller.stages.prompt import make_requests, training_params
from argosy.controller.stages.reward import score_request
from argosy.modeling.tiny import save_tiny_model
from argosy.rpc.codec.reward import item_from_pb, item_to_pb
from argosy.text.tokenizer import load_tokenizer
from argosy.types.records import Scored
from contract.forms import DEADLINE_S, Form, MakeRollout
from support.toy import write_rows
from unit.text.test_tokenizer import bos_tokenizer

BOS = 0


@pytest.fixture
def job(tmp_path: Path) -> Config:
    """A template that starts with the BOS token, and a tokenizer that puts one before whatever it encodes."""
    write_rows(tmp_path / "train.jsonl", ["hi"])
    return Config().with_values({
        "actor_rollout_ref.model.path": str(save_tiny_model(tmp_path / "model", weight_scale=4.0)),
        "actor_rollout_ref.model.tokenizer_path": str(bos_tokenizer(tmp_path)),
        "data.train_files": [str(tmp_path / "train.jsonl")], "data.max_response_length": 6,
        "data.max_prompt_length": 16, "actor_rollout_ref.rollout.ignore_eos": True,
        "trainer.default_local_dir": str(tmp_path / "run"),
    })  # fmt: skip


async def test_c1_one_bos_and_the_same_ids_in_every_path(form: Form, make_rollout: MakeRollout, job: Config) -> None:
    [prompt] = load_prompts(job, "train", progress=False).in_order()
    tokenizer = load_tokenizer(job.actor_rollout_ref.model.tokenizer_path or "")
    assert prompt.token_ids.count(BOS) == 1
    assert prompt.token_ids == tokenizer.encode_prompt([{"role": "user", "content": "hi"}])

    core = make_rollout(Path(job.actor_rollout_ref.model.path))
    computed: list[tuple[int, ...]] = []
    prefill = core.engine.loop.runner.prefill

    def noted(fills: Any, *rest: Any) -> Any:
        computed.extend(tuple(fill.ids) for fill in fills)
        return prefill(fills, *rest)

    core.engine.loop.runner.prefill = noted
    rollout = await form.rollout(core)
    requests = make_requests([prompt], 2, training_params(job), "train")
    found = [completion async for completion in rollout.generate(requests, deadline_s=DEADLINE_S)]
    assert computed == [prompt.token_ids[:-1]]  # the last one goes in with the first step of sampling

    completions = {completion.sample_id: completion for completion in found}
    scored = score_request(prompt, found[0])
    told = item_from_pb(item_to_pb(scored, with_ids=True))
    assert (told.prompt_ids, told.prompt_text.count("<s>")) == (prompt.token_ids, 1)

    batch = build_batch([prompt], completions, dict.fromkeys(completions, Scored(1.0)))
    for row, sample in enumerate(batch.sample_ids):
        assert tuple(batch.ragged("prompt_ids")[row].tolist()) == prompt.token_ids
        # Case C3: the trainer gets the sampled ids, not what their text encodes to.
        assert tuple(batch.ragged("response_ids")[row].tolist()) == completions[sample].token_ids
        assert batch.ragged("rollout_log_probs")[row].tolist() == pytest.approx(completions[sample].log_probs)
    texts = [completion.text for completion in found]
    again = [tokenizer.encode_rendered(text) if text else () for text in texts]
    assert again != [completion.token_ids for completion in found]
