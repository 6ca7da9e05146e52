"""Output tokens per second: the embedded rollout engine beside transformers' `model.generate`, in one run.

    python benchmarks/rollout.py --model checkpoints/SmolLM2-135M-Instruct --threads 2

Both answer the same prompts (groups of n samples) with the same number of tokens each, sampled at temperature 1; EOS is
off on both, so that lengths are equal. `generate` gets a left-padded batch, its KV cache, sdpa attention, the same
dtype and threads, and the best of several batch sizes; a row's tokens beyond its own length don't count, since a padded
batch can't stop earlier. The engine reports a log-prob with every token on top.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

WORDS = (
    *("apple", "river", "seven", "stone", "market", "train", "yellow", "garden", "doctor", "window", "paper", "school"),
    *("bridge", "music", "winter", "number", "coffee", "letter", "island", "teacher", "orange", "village", "engine"),
)


@dataclass(frozen=True)
class Work:
    """One prompt and the output length of each of its samples."""

    prompt_ids: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """One way's result."""

    name: str
    tokens: int
    seconds: float
    cpu_seconds: float
    """Of all threads: comparable even where other programs share the cores."""

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds

    def __str__(self) -> str:
        rate = f"{self.rate:9.1f} output tokens/s"
        return f"  {self.name:32} {self.seconds:8.1f} s {rate}  ({self.cpu_seconds:.1f} s of CPU)"


def make_work(tokenizer: Any, args: argparse.Namespace) -> list[Work]:
    """Chat prompts of 30–160 tokens; output lengths skewed, most short and a few long."""
    draw = random.Random(args.seed)
    works = []
    for _ in range(args.prompts):
        wanted = draw.randint(30, 160)
        words = ["How", "many"]
        while True:
            text = " ".join(words) + "?"
            ids = tokenizer.encode_prompt([{"role": "user", "content": text}])
            if len(ids) >= wanted:
                break
            words.append(draw.choice(WORDS))
        lengths = tuple(
            min(args.max_output, max(args.min_output, round(draw.lognormvariate(3.7, 0.7)))) for _ in range(args.group)
        )
        works.append(Work(ids, lengths))
    return works


def run_engine(works: Sequence[Work], decode: Any, args: argparse.Namespace) -> Measured:
    """The embedded engine, through the same calls as the service."""
    from argosy.rollout.core import HfRollout, HfRolloutOptions
    from argosy.types.ids import SampleId
    from argosy.types.records import GenerateRequest, SamplingParams

    longest = max(len(work.prompt_ids) for work in works) + args.max_output
    options = HfRolloutOptions(
        args.model,
        dtype=args.dtype,
        device=args.device,
        threads=args.threads,
        slot_count=args.slots,
        max_model_len=longest,
    )

    async def run() -> Measured:
        rollout = HfRollout(options, decode)
        requests = [
            GenerateRequest(
                SampleId(0, position, k), work.prompt_ids, SamplingParams(max_tokens=length, ignore_eos=True)
            )
            for position, work in enumerate(works)
            for k, length in enumerate(work.lengths)
        ]
        warm = [GenerateRequest(SampleId(1, 0, k), works[0].prompt_ids, SamplingParams(max_tokens=4)) for k in range(8)]
        async for _ in rollout.generate(warm, deadline_s=600):
            pass
        begun, cpu_begun = time.perf_counter(), time.process_time()
        done = [c async for c in rollout.generate(requests, deadline_s=3600)]
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        await rollout.close()
        tokens = sum(len(completion.token_ids) for completion in done)
        assert tokens == sum(sum(work.lengths) for work in works)
        return Measured(f"argosy hf engine, {args.slots} slots", tokens, seconds, cpu_seconds)

    return asyncio.run(run())


def run_generate(works: Sequence[Work], args: argparse.Namespace) -> list[Measured]:
    """transformers' generate, once for each batch size."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    )
    model.to(args.device).eval()
    rows = [(work.prompt_ids, length) for work in works for length in work.lengths]
    _generate(model, rows[:8], 4)
    found = []
    for size in args.generate_batch:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            _generate(model, part, max(length for _, length in part))
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        tokens = sum(length for _, length in rows)
        found.append(Measured(f"model.generate, batch {size}", tokens, seconds, cpu_seconds))
        print(found[-1], file=sys.stderr, flush=True)  # a long run that is cut short leaves what it has
    return found


def _generate(model: Any, rows: Sequence[tuple[tuple[int, ...], int]], new_tokens: int) -> None:
    import torch

    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids, _ in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in rows], device=model.device)
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


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--group", type=int, default=8, help="samples per prompt")
    parser.add_argument("--min-output", type=int, default=16)
    parser.add_argument("--max-output", type=int, default=160)
    parser.add_argument("--generate-batch", type=int, nargs="*", default=[32, 64, 96], help="batch sizes to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    import torch

    torch.set_num_threads(args.threads)
    from argosy.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.model)
    works = make_work(tokenizer, args)
    ours = run_engine(works, tokenizer.decode, args)
    print(ours, file=sys.stderr, flush=True)
    theirs = run_generate(works, args)
    best = max(theirs, key=lambda measured: measured.rate, default=None)
    ratio = ours.rate / best.rate if best is not None else None
    if args.json:
        rows = [asdict(measured) | {"tokens_per_s": measured.rate} for measured in (ours, *theirs)]
        print(json.dumps({"ratio": ratio, "results": rows, "dtype": args.dtype, "threads": args.threads}))
        return 0
    prompt_tokens = [len(work.prompt_ids) for work in works]
    print(
        f"{args.prompts} prompts of {min(prompt_tokens)}–{max(prompt_tokens)} tokens × {args.group} samples, "
        f"{ours.tokens} output tokens, {args.dtype}, {args.threads} threads on {args.device}"
    )
    for measured in (ours, *theirs):
        print(measured)
    if ratio is not None:
        print(f"  ratio to the best generate: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
