"""The simulated engine at scale: ten thousand samples through one real server process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.simulated.language import Language
from argosy.rollout.engines.simulated.lengths import hazard_of
from argosy.types.records import FinishReason
from contract.engines.conftest import Model, client_of
from contract.engines.served import MAX_LEN, ask, serving
from contract.forms import request

SAMPLES = 10_000
IN_FLIGHT = 8
"""Calls at once, as a controller has them."""


async def test_ten_thousand_samples_pass_through_one_server(model: Model) -> None:
    values = {"simulated__decode_ms": 0.0, "simulated__length_mean": 30.0, "slot_count": 512}
    with serving("simulated", model.path, **values) as served:
        async with client_of(served) as rollout:
            asked = [
                replace(
                    request(position, k, max_tokens=200, ignore_eos=False), prompt_ids=(1, 40, 41, 50 + position % 200)
                )
                for position in range(SAMPLES // 8)
                for k in range(8)
            ]
            share = SAMPLES // IN_FLIGHT
            started = time.monotonic()
            parts = await asyncio.gather(
                *(ask(rollout, asked[start : start + share]) for start in range(0, SAMPLES, share))
            )
            assert time.monotonic() - started < 60
            answers = [completion for part in parts for completion in part]
            version = (await rollout.status()).version
    assert version is not None
    assert {completion.finish_reason for completion in answers} == {FinishReason.STOP, FinishReason.LENGTH}
    lengths = [len(completion.token_ids) for completion in answers]
    assert 28 < sum(lengths) / SAMPLES < 32
    folder = ModelFolder(model.path)
    language = Language(folder.vocab_size, folder.eos_token_ids, hazard_of("geometric", 30.0, 0.0, MAX_LEN))
    for one, completion in list(zip(asked, answers, strict=True))[::97]:
        text = language.write(one, version, 0, 200)
        assert completion.token_ids == tuple(text.token_ids)
