"""One engine, measured in a process of its own; `rollout.py` starts it, in the interpreter that has the engine.

Prints progress on stderr and, as the last line of stdout, one JSON object {"name", "tokens", "seconds", "cpu_seconds"}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OURS = ("hf", "vllm", "sglang")
"""Engines behind Argosy's own service core."""
ENGINES = (*OURS, "generate", "vllm-alone")


@dataclass(frozen=True)
class Work:
    """One prompt, and how many tokens each of its samples gets."""

    prompt_ids: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """One engine's result."""

    name: str
    tokens: int
    seconds: float
    cpu_seconds: float
    """Of all threads and of child processes that have ended: comparable even where other programs share the cores."""

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Load:
    """What every engine gets."""

    works: tuple[Work, ...]

    @property
    def rows(self) -> list[tuple[tuple[int, ...], int]]:
        """Each sample's prompt and length."""
        return [(work.prompt_ids, length) for work in self.works for length in work.lengths]

    @property
    def longest(self) -> int:
        """Most tokens of prompt and answer together."""
        return max(len(ids) + length for ids, length in self.rows)

    @property
    def tokens(self) -> int:
        """Output tokens in all."""
        return sum(length for _, length in self.rows)


def make_load(args: argparse.Namespace) -> Load:
    """Prompts of random ids and output lengths, each uniform between its bounds; the same for every engine."""
    from pathlib import Path

    vocab_size = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    draw = random.Random(args.seed)
    return Load(
        tuple(
            Work(
                tuple(draw.randrange(3, vocab_size) for _ in range(draw.randint(args.min_prompt, args.max_prompt))),
                tuple(draw.randint(args.min_output, args.max_output) for _ in range(args.group)),
            )
            for _ in range(args.prompts)
        )
    )


class Clock:
    """Wall and CPU time since it was made; says how far the work is."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._told = name, total, 0.0
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def tell(self, tokens: int) -> None:
        """A line of progress, every few seconds."""
        seconds = time.perf_counter() - self._wall
        if seconds - self._told >= 5:
            self._told = seconds
            line = f"    {self._name}: {tokens} of {self._total} tokens, {tokens / seconds:.0f} a second"
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> Measured:
        """What it took."""
        return Measured(self._name, self._total, time.perf_counter() - self._wall, _cpu_seconds() - self._cpu)


def _cpu_seconds() -> float:
    """Of this process and everything below it, living or not; of this process to the microsecond, else to the tick."""
    import psutil

    own = os.times()
    total = time.process_time() + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def measure_ours(name: str, load: Load, args: argparse.Namespace) -> Measured:
    """An engine behind Argosy's core, made from a configuration as the rollout service makes it."""
    from argosy.config import load as load_config
    from argosy.rollout.build import build_core
    from argosy.types.ids import SampleId
    from argosy.types.records import GenerateRequest, SamplingParams

    config = load_config([
        f"actor_rollout_ref.model.path={args.model}",
        f"actor_rollout_ref.rollout.name={name}",
        f"actor_rollout_ref.rollout.max_model_len={load.longest}",
        f"argosy.rollout.dtype={args.dtype}",
        f"argosy.rollout.threads={args.threads}",
        f"argosy.rollout.slot_count={args.in_flight}",
        "argosy.rollout.device=cpu",
    ])  # fmt: skip

    def requests(epoch: int, rows: Sequence[tuple[tuple[int, ...], int]]) -> list[GenerateRequest]:
        return [
            GenerateRequest(SampleId(epoch, k, 0), ids, SamplingParams(max_tokens=length, ignore_eos=True))
            for k, (ids, length) in enumerate(rows)
        ]

    async def run() -> Measured:
        core = build_core(config, start_stale=False)
        await core.start()
        try:
            async for _ in core.generate(requests(1, [(ids, 4) for ids, _ in load.rows[:8]]), deadline_s=600):
                pass
            clock, tokens = Clock(f"argosy {name}", load.tokens), 0
            async for completion in core.generate(requests(0, load.rows), deadline_s=3600):
                tokens += len(completion.token_ids)
                clock.tell(tokens)
            found = clock.stop()
        finally:
            await core.close()
        assert tokens == load.tokens
        return found

    return asyncio.run(run())


def measure_generate(load: Load, args: argparse.Namespace) -> Measured:
    """transformers' `model.generate` over left-padded batches; tokens beyond a row's own length don't count."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, args.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").eval()
    _generate(model, load.rows[:8], 4)
    clock, tokens = Clock(f"model.generate, {args.in_flight} padded", load.tokens), 0
    for start in range(0, len(load.rows), args.in_flight):
        part = load.rows[start : start + args.in_flight]
        _generate(model, part, max(length for _, length in part))
        tokens += sum(length for _, length in part)
        clock.tell(tokens)
    return clock.stop()


def _generate(model: Any, rows: Sequence[tuple[tuple[int, ...], int]], new_tokens: int) -> None:
    import torch

    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids, _ in rows])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in rows])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert out.shape[1] == width + new_tokens


def measure_vllm_alone(load: Load, args: argparse.Namespace) -> Measured:
    """vLLM's own `LLM.generate`, in this process, with the log-probs that training needs."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams

    engine = LLM(
        args.model,
        dtype=args.dtype,
        max_model_len=load.longest,
        max_num_seqs=args.in_flight,
        enforce_eager=True,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
    )

    def generate(rows: Sequence[tuple[tuple[int, ...], int]]) -> int:
        common = {"temperature": 1.0, "ignore_eos": True, "logprobs": 0, "detokenize": False}
        params = [SamplingParams(max_tokens=count, **common) for _, count in rows]
        prompts = [{"prompt_token_ids": list(ids)} for ids, _ in rows]
        return sum(len(out.outputs[0].token_ids) for out in engine.generate(prompts, params, use_tqdm=False))

    generate([(ids, 4) for ids, _ in load.rows[:8]])
    clock = Clock("vllm alone", load.tokens)
    assert generate(load.rows) == load.tokens
    return clock.stop()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What parent and child have in common."""
    parser.add_argument("--model", default="models/smollm2-135m-instruct", help="Hugging Face folder")
    parser.add_argument("--in-flight", type=int, default=32, help="samples that run at once; generate's batch size")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--group", type=int, default=1, help="samples per prompt")
    parser.add_argument("--min-prompt", type=int, default=16)
    parser.add_argument("--max-prompt", type=int, default=160)
    parser.add_argument("--min-output", type=int, default=16)
    parser.add_argument("--max-output", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    add_arguments(parser)
    args = parser.parse_args(argv)
    import torch

    torch.set_num_threads(args.threads)
    load = make_load(args)
    others: dict[str, Callable[[], Measured]] = {
        "generate": lambda: measure_generate(load, args),
        "vllm-alone": lambda: measure_vllm_alone(load, args),
    }
    found = others[args.engine]() if args.engine in others else measure_ours(args.engine, load, args)
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
