"""How long the steps of the simulated engine take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """A step's duration as a linear model.

    >>> Latency(decode_ms=10, decode_ms_per_sample=1, prefill_us_per_token=500).step_s(8, 4)
    0.02
    """

    decode_ms: float = 0.0
    decode_ms_per_sample: float = 0.0
    prefill_us_per_token: float = 0.0

    def step_s(self, sample_count: int, prefill_tokens: int) -> float:
        """Seconds of a step that decodes `sample_count` samples and computes `prefill_tokens` prompt tokens."""
        decode_s = (self.decode_ms + self.decode_ms_per_sample * sample_count) / 1e3
        return decode_s + self.prefill_us_per_token * prefill_tokens / 1e6
