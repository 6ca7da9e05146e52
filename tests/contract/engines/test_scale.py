"""The simulated engine at scale: ten thousand samples through one real server process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psutil

from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.simulated.language import Language
from argosy.rollout.engines.simulated.lengths import hazard_of
from argosy.types.records import Completion, FinishReason
from contract.engines.conftest import Model, client_of
from contract.engines.served import MAX_LEN, ask, serving
from contract.forms import request

SAMPLES = 10_000
IN_FLIGHT, CALL = 8, 250
"""Calls at once, and samples of each."""
MOST_CPU_S = 30
"""Of the server's process, its start included; about 9 where nothing else runs."""


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
            answers: list[Completion] = []
            for start in range(0, SAMPLES, IN_FLIGHT * CALL):  # as a controller asks: some calls at once
                starts = range(start, min(SAMPLES, start + IN_FLIGHT * CALL), CALL)
                for part in await asyncio.gather(*(ask(rollout, asked[one : one + CALL]) for one in starts)):
                    answers += part
            # Of the server alone, and not of the clock: other tests run beside this one.
            times = psutil.Process(served.process.pid).cpu_times()
            assert times.user + times.system < MOST_CPU_S
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
