"""How long answers are, and how long work takes. Fixed from published figures before anything was measured here.

- Balance: verl, "Recipe: Fully Async Policy Trainer" (docs/advance/fully_async.md, table "128-card 7B Asynchronous Mode
  Experiment"): Qwen2.5-Math-7B, DAPO, 512 prompts of 16 answers of at most 28K tokens a step. Synchronous on 128 H20:
  gen 177.85 s, old_log_prob 53.92 s, update_actor 113.81 s, step 356.30 s. Asynchronous on 64 + 64: update_actor
  113.16 s, step 150.63 s.
- Long tail: Sheng et al. 2025, "Laminar", arXiv:2510.12633: the 99th percentile of answers' lengths is ten times the
  median. For a lognormal that is a standard deviation of ln(10) / 2.326 = 0.990 in the logarithm.
- What others saw of the same idea: 2.35 to 2.67 times the synchronous throughput (verl, same page), up to 2.57 (AReaL,
  arXiv:2505.24298v2) and 2.77 (v4).

The trainer is as large as it takes for verl's balance to hold at every size of the fleet: an update takes 113.16 /
177.85 of the time of the longest answer. The longest of a step's answers is longer in larger batches, up to the limit.

Two numbers are arithmetic of ours: the batch at which a decode step takes twice as long (Qwen2.5-7B's weights, 15.2 GB,
against keys and values of 57 kB a token at the mean length), and a lone sample's decode step, for which the longest
answer takes as long as verl's generation. One is assumed: the median length, 1,000 tokens; `--median` changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist

GEN_S, LOG_PROB_S, UPDATE_S = 177.85, 53.92, 113.16
"""verl: generation and old log-probs of the synchronous run, the update of the asynchronous one. Seconds a step."""
SYNC_S = 150.63 - 33.14 - 113.16
"""verl: what is left of an asynchronous step beside waiting for samples and the update: weights on their way."""
SAMPLES_PER_SERVER = 512 * 16 // 64
"""verl: of a step, for each of the 64 devices that generate."""
GROUP = 16
MAX_TOKENS = 28 * 1024
SIGMA = math.log(10) / 2.326
KV_BYTES, WEIGHT_BYTES = 57_344, 15.2e9
"""Qwen2.5-7B in bfloat16: 2 · 28 layers · 4 heads · 128 · 2 bytes a token; 7.6e9 parameters."""
_NORMAL = NormalDist()
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Workload:
    """One setting. Lengths are counted in units of `unit` tokens, so that large fleets fit into one process."""

    median: float = 1000.0
    """Tokens."""
    unit: int = 64
    samples_per_server: int = SAMPLES_PER_SERVER
    log_prob_s: float = 0.0
    """Of the trainer before each update: old log-probs computed anew. 0: those of the rollout are used (verl's
    use_rollout_log_probs)."""
    reward_s: float = 0.02
    """Of judging one group."""
    seed: int = 1

    @property
    def max_units(self) -> int:
        """The longest answer."""
        return MAX_TOKENS // self.unit

    def length(self, data_epoch: int, position: int, k: int) -> int:
        """Units of one answer, ≥ 1: a function of the sample alone."""
        share = (_mix(self.seed, data_epoch, position, k) + 0.5) / 2**64
        tokens = self.median * math.exp(SIGMA * _NORMAL.inv_cdf(min(max(share, 1e-12), 1 - 1e-12)))
        return max(1, min(self.max_units, round(tokens / self.unit)))

    @cached_property
    def mean_tokens(self) -> float:
        """Of the cut lognormal: ∫ P(length > x) dx from 0 to the cut."""
        steps = 4000
        width = MAX_TOKENS / steps
        above = (1 - _NORMAL.cdf(math.log((i + 0.5) * width / self.median) / SIGMA) for i in range(steps))
        return width * sum(above)

    def longest_tokens(self, samples: int) -> float:
        """Expected longest of so many answers: ∫ 1 - P(length ≤ x)^samples dx from 0 to the cut."""
        steps = 4000
        width = MAX_TOKENS / steps
        below = (_NORMAL.cdf(math.log((i + 0.5) * width / self.median) / SIGMA) for i in range(steps))
        return width * sum(1 - share**samples for share in below)

    @cached_property
    def decode_s(self) -> float:
        """Seconds of a token of a lone sample: verl's generation is as long as its longest answer."""
        return GEN_S / self.longest_tokens(512 * 16)

    @cached_property
    def double_batch(self) -> float:
        """Samples at which a decode step takes twice as long."""
        return WEIGHT_BYTES / (KV_BYTES * self.mean_tokens)

    def step_s(self, running: int) -> float:
        """Seconds in which each of `running` samples gets one unit."""
        return self.unit * self.decode_s * (1 + running / self.double_batch)

    @cache  # noqa: B019 - a handful of settings
    def balance(self, samples: int) -> float:
        """Of a step of so many samples to verl's: how long its longest answer is."""
        return self.longest_tokens(samples) / self.longest_tokens(512 * 16)

    def train_s(self, usual_s: float, units: int, samples: int) -> float:
        """Seconds of the trainer's work that takes verl `usual_s`: proportional to the tokens."""
        return usual_s * self.balance(samples) * units * self.unit / (samples * self.mean_tokens)


@dataclass(frozen=True)
class Bound:
    """What no schedule can beat at mean lengths, seconds a step."""

    synchronous_s: float
    """Longest answer alone on its server, then the update and the weights."""
    asynchronous_s: float
    """Whatever is slower: the update and the weights, or all servers generating without a pause."""

    def ratio(self, synchronous_s: float) -> float:
        """Most that an asynchronous run can gain on a synchronous one whose steps took so long. (The quotient of the
        two fields bounds nothing: a synchronous step, in which samples share servers, is longer than its bound.)"""
        return synchronous_s / self.asynchronous_s


def bound_of(work: Workload, servers: int) -> Bound:
    """From the workload alone, for a synchronous and an asynchronous run on the same fleet."""
    samples = servers * work.samples_per_server
    train_s = (UPDATE_S + work.log_prob_s) * work.balance(samples) + SYNC_S
    longest_s = work.longest_tokens(samples) * work.decode_s
    # A server's throughput grows with its batch, towards double_batch tokens in decode_s.
    generate_s = work.samples_per_server * work.mean_tokens * work.decode_s / work.double_batch
    return Bound(longest_s + train_s, max(train_s, generate_s))


def _mix(*parts: int) -> int:
    """64 well-mixed bits of some integers (the finaliser of MurmurHash3, over and over)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ part) * 0xFF51AFD7ED558CCD & _MASK
        state ^= state >> 33
        state = state * 0xC4CEB9FE1A85EC53 & _MASK
        state ^= state >> 29
    return state
