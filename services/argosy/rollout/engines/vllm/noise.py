"""Noise keyed by (seed, purpose, sample id, token position) inside vLLM's sampler.

vLLM's own seeds make a generator for each request, whose state moves with every token: a sample that goes on elsewhere
after some tokens would draw other noise. Here nothing has a state: a token's noise follows from the request's key and
from how long the sequence is, so a sample draws the same tokens alone, in any batch, after a preemption and on another
server, as the embedded engine does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from argosy.rollout.engines.sampling.noise import uniforms
from argosy.rollout.engines.sampling.sampler import Settings, draw

EXTRA = "argosy"
"""Key in SamplingParams.extra_args of (noise key, tokens of the prompt without those generated elsewhere)."""
_NEEDED = ("input_batch", "requests", "optimistic_seq_lens_cpu", "sampler")


class KeyedSampling(nn.Module):
    """Takes the place of the sampler's `topk_topp_sampler`."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        # Not as attributes of the module: the runner is no part of the model.
        self.__dict__["runner"] = runner

    @classmethod
    def install(cls, runner: Any) -> bool:
        """Put it in place; False where the runner lacks what it needs."""
        sampler: Any = getattr(runner, "sampler", None)
        if type(sampler) is not Sampler or not all(hasattr(runner, name) for name in _NEEDED):
            return False
        if sampler.logprobs_mode != "processed_logprobs":
            return False
        sampler.topk_topp_sampler = cls(runner)
        return True

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Sample a token of each row.

        Args:
            logits: [B, V] float32, after penalties and temperature.
            generators: vLLM's; we set no seeds, so there are none.
            k: [B] top-k, or None where no row has one.
            p: [B] top-p, or None.

        Returns:
            Tokens [B] and the log-probs of the distribution that they were drawn from, [B, V].
        """
        logits = apply_top_k_top_p(logits, k, p)
        noise = torch.from_numpy(self._noise(logits.shape[0])).to(logits.device)
        tokens, _ = draw(logits, noise, Settings())
        return tokens, logits.log_softmax(dim=-1, dtype=torch.float32)

    def _noise(self, row_count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """One number in (0, 1) a row; 0.5 for rows of vLLM's own trial runs, which are nobody's."""
        runner = self.__dict__["runner"]
        keys = np.zeros(row_count, np.uint64)
        positions = np.full(row_count, -1, np.int64)
        lengths = runner.optimistic_seq_lens_cpu
        for row, request_id in enumerate(runner.input_batch.req_ids[:row_count]):
            request = runner.requests.get(request_id)
            extra = (request.sampling_params.extra_args or {}).get(EXTRA) if request is not None else None
            if extra is not None:
                keys[row] = extra[0]
                # The sequence with this step's input is as long as the index of the token that is drawn.
                positions[row] = int(lengths[row]) - extra[1]
        noise = np.full(row_count, 0.5)
        known = positions >= 0
        noise[known] = uniforms(keys[known], positions[known])
        return noise
