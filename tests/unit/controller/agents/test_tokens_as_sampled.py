"""Case C3: through all turns the trainer gets the very tokens that were sampled, with the log-probs of sampling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from argosy.config import Config
from argosy.controller.agents.episode import Episode
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.stages.advantage import build_batch
from argosy.rollout.core import RolloutCore
from argosy.text.tokenizer import load_tokenizer
from argosy.trainer.core import Trainer
from argosy.types.errors import CorruptDataError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Prompt, SamplingParams, Scored, VersionRun
from support.tool_job import save_tool_model
from unit.config.effects.support import build
from unit.controller.agents.scripted import VERSION

TOOL = [{"role": "tool", "content": "7"}]


@dataclass
class Cores:
    """A rollout and a trainer of one model."""

    rollout: RolloutCore
    trainer: Trainer
    template: TurnTemplate

    async def sample(self, request: GenerateRequest) -> Completion:
        [one] = [completion async for completion in self.rollout.generate([request], deadline_s=60)]
        return one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tool_model(tmp_path_factory.mktemp("c3") / "model")


@pytest.fixture
async def cores(model: Path) -> AsyncIterator[Cores]:
    config = Config().with_values({
        "algorithm.adv_estimator": "grpo", "actor_rollout_ref.model.path": str(model), "argosy.rollout.device": "cpu",
        "argosy.trainer.device": "cpu", "data.max_prompt_length": 32, "data.max_response_length": 64,
        "argosy.rollout.slot_count": 4,
    })  # fmt: skip
    made = Cores(build("rollout", config), build("trainer", config), TurnTemplate(load_tokenizer(model)))
    yield made
    await made.rollout.close()
    made.trainer.close()


def prompt_of(template: TurnTemplate) -> Prompt:
    messages = ({"role": "user", "content": "3+4"},)
    return Prompt(GroupId(0, 0), template.tokenizer.encode_prompt(messages), "s", "7", messages=messages)


def request_of(prompt: Prompt, k: int = 0, seed: int = 0) -> GenerateRequest:
    return GenerateRequest(SampleId(0, 0, k), prompt.token_ids, SamplingParams(max_tokens=48, seed=seed))


async def test_c3_three_turns_of_the_real_engine_reach_the_trainer_as_sampled(cores: Cores) -> None:
    prompt, rows, sampled = prompt_of(cores.template), {}, {}
    for k in range(4):
        episode = Episode(request_of(prompt, k, seed=3), prompt, cores.sample, cores.template)
        turns = [await episode.generate(max_tokens=8)]
        for _ in range(2):
            assert await episode.say(TOOL)
            turns.append(await episode.generate(max_tokens=8))
        rows[SampleId(0, 0, k)] = episode.completion()
        sampled[SampleId(0, 0, k)] = turns
    batch = build_batch([prompt], rows, {sample: Scored(1.0) for sample in rows})
    answer = await cores.trainer.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=60)
    recomputed = dict(zip(answer.sample_ids, answer.ragged("log_probs"), strict=True))
    for place, sample in enumerate(batch.sample_ids):
        trained = batch.ragged("response_mask")[place] == 1
        ids = [token for turn in sampled[sample] for token in turn.token_ids]
        log_probs = [value for turn in sampled[sample] for value in turn.log_probs]
        assert batch.ragged("response_ids")[place][trained].tolist() == ids
        assert batch.ragged("rollout_log_probs")[place][trained].tolist() == pytest.approx(log_probs, abs=1e-7)
        assert np.asarray(recomputed[sample])[trained].tolist() == pytest.approx(log_probs, abs=1e-4)
        tool = batch.ragged("response_ids")[place][~trained].tolist()
        ends = [turn.token_ids[-1] in cores.template.tokenizer.eos_token_ids for turn in sampled[sample][:2]]
        assert tool == [token for closed in ends for token in cores.template.following(TOOL, closed=closed)]
    texts = [cores.template.tokenizer.decode(turn.token_ids) for turns in sampled.values() for turn in turns]
    encoded = [cores.template.tokenizer.encode_rendered(text) for text in texts]
    originals = [turn.token_ids for turns in sampled.values() for turn in turns]
    assert encoded != originals  # so that encoding the text again would have been noticed


async def test_c3_what_encodes_to_hello_stays_he_llo(cores: Cores) -> None:
    tokenizer = cores.template.tokenizer
    he, llo, end = (tokenizer.encode_rendered(text)[0] for text in ("he", "llo", "<|end|>"))
    assert len(tokenizer.encode_rendered("hello")) == 1

    async def policy(request: GenerateRequest) -> Completion:
        begun, new = request.generated, (he, llo, end)
        runs = (*begun.versions, VersionRun(VERSION, 3))
        ids, log_probs = begun.token_ids + new, (*begun.log_probs, -0.25, -0.5, -0.75)
        return Completion(request.sample_id, ids, log_probs, runs, FinishReason.STOP)

    prompt = prompt_of(cores.template)
    episode = Episode(request_of(prompt), prompt, policy, cores.template)
    assert (await episode.generate()).text == "hello"
    assert await episode.say(TOOL)
    await episode.generate()
    done = episode.completion()
    tool = tokenizer.encode_rendered("<|tool|>7<|end|><|assistant|>")
    assert done.token_ids == (he, llo, end, *tool, he, llo, end)
    assert done.log_probs == (-0.25, -0.5, -0.75, *[0.0] * len(tool), -0.25, -0.5, -0.75)
    assert done.response_mask == (1, 1, 1, *[0] * len(tool), 1, 1, 1)


async def test_c3_a_server_that_changes_earlier_turns_is_an_error(cores: Cores) -> None:
    async def changing(request: GenerateRequest) -> Completion:
        done = await cores.sample(request)
        return replace(done, token_ids=(done.token_ids[0] ^ 1, *done.token_ids[1:])) if request.turn_start else done

    prompt = prompt_of(cores.template)
    episode = Episode(request_of(prompt), prompt, changing, cores.template)
    await episode.generate(max_tokens=4)
    await episode.say(TOOL)
    with pytest.raises(CorruptDataError, match="changed tokens of earlier turns"):
        await episode.generate(max_tokens=4)
