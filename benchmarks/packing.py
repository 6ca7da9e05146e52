"""Packed against padded: forward + backward of one batch whose answers have lognormal lengths.

    python benchmarks/packing.py

Both sides are the same model, loss, dtype and micro-batch size in tokens. "padded" gives every sequence of a
micro-batch the length of its longest, as trainers without packing do (with an attention mask, and log-probs in chunks
as ours, so that only the padding differs). "packed" computes real tokens only; "packed, prompts shared" is what the
trainer does: a group's prompt is computed once. Padding's waste is padded rows ÷ real rows; packing should gain about
as much.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import DEFAULT_MODEL, make_batch, model_of, progress


@dataclass(frozen=True)
class Measured:
    """One way."""

    name: str
    rows: int
    """Tokens that went through the network, padding included."""
    seconds: float


def draw_groups(args: argparse.Namespace) -> list[tuple[int, list[int]]]:
    """Prompts of about the same length; answers lognormal, clipped."""
    draw = random.Random(args.seed)

    def answer() -> int:
        return min(int(args.max_answer), max(2, round(draw.lognormvariate(args.mu, args.sigma))))

    return [
        (draw.randint(args.prompt // 2, args.prompt), [answer() for _ in range(args.group)])
        for _ in range(args.prompts)
    ]


def load(args: argparse.Namespace) -> Any:
    """The packed model over float32 weights."""
    import torch

    from argosy.modeling.loading import ModelSource, load_causal_lm
    from argosy.modeling.memory import keep_freed_memory
    from argosy.modeling.packed_model import PackedModel

    torch.set_num_threads(args.threads)
    keep_freed_memory()
    model = load_causal_lm(ModelSource(args.model, device="cpu"))
    return PackedModel(model, compute_dtype=getattr(torch, args.dtype), chunk_tokens=args.chunk_tokens)


def run_packed(model: Any, batch: Any, args: argparse.Namespace, share: bool) -> Callable[[], int]:
    """Micro-batches of at most args.micro_batch_tokens packed rows."""
    from argosy.modeling.microbatch import MicroBatchLimit, plan_micro_batches
    from argosy.modeling.packing import pack

    prompts, responses = batch.ragged("prompt_ids"), batch.ragged("response_ids")

    def whole() -> int:
        rows = 0
        for part in _plan(prompts, responses, args, share):
            packed = pack(prompts.take(part), responses.take(part), device="cpu", share_prompts=share)
            rows += len(packed.input_ids)
            model.response_stats(packed, temperature=1.0).log_probs.sum().backward()
        return rows

    def _plan(prompts: Any, responses: Any, args: argparse.Namespace, share: bool) -> list[Any]:
        if share:
            return plan_micro_batches(prompts, responses, MicroBatchLimit(max_tokens=args.micro_batch_tokens))
        lengths = prompts.lengths + responses.lengths - 1
        return _fill(range(len(lengths)), lambda rows: int(lengths[rows].sum()), args.micro_batch_tokens)

    return whole


def run_padded(model: Any, batch: Any, args: argparse.Namespace) -> Callable[[], int]:
    """Rectangles [b, longest] of at most args.micro_batch_tokens places, in the batch's order."""
    import torch

    from argosy.modeling.log_probs import token_stats

    prompts, responses = list(batch.ragged("prompt_ids")), list(batch.ragged("response_ids"))
    sequences = [np.concatenate([prompt, response]) for prompt, response in zip(prompts, responses, strict=True)]
    hf = model.model
    dtype = getattr(torch, args.dtype)

    def area(rows: Sequence[int]) -> int:
        return len(rows) * int(max(len(sequences[row]) - 1 for row in rows))

    def whole() -> int:
        hf.set_attn_implementation("sdpa")
        places = 0
        for part in _fill(range(len(sequences)), area, args.micro_batch_tokens):
            width = max(len(sequences[row]) - 1 for row in part)
            ids = torch.zeros(len(part), width, dtype=torch.int64)
            mask = torch.zeros(len(part), width, dtype=torch.int64)
            where, targets = [], []
            for line, row in enumerate(part):
                tokens, start = sequences[row], len(prompts[row])
                ids[line, : len(tokens) - 1] = torch.from_numpy(tokens[:-1].astype(np.int64))
                mask[line, : len(tokens) - 1] = 1
                where.append(torch.arange(start - 1, len(tokens) - 1) + line * width)
                targets.append(torch.from_numpy(tokens[start:].astype(np.int64)))
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                base = getattr(hf, hf.base_model_prefix)
                hidden = base(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            stats = token_stats(
                hidden.reshape(-1, hidden.shape[2]).index_select(0, torch.cat(where)),
                hf.get_output_embeddings().weight,
                torch.cat(targets),
                chunk_tokens=args.chunk_tokens,
                compute_dtype=dtype,
            )
            stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
            places += len(part) * width
        return places

    return whole


def _fill(rows: Sequence[int], cost: Callable[[Sequence[int]], int], budget: int) -> list[Any]:
    """Rows in order, as many at a time as the budget allows."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and cost([*parts[-1], row]) <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [np.asarray(part) for part in parts]


def timed(name: str, whole: Callable[[], int], model: Any, repeats: int) -> Measured:
    """The best of some runs after one that isn't counted."""
    found = []
    rows = 0
    progress(f"{name}: once uncounted and {repeats} times")
    for _ in range(repeats + 1):
        model.model.zero_grad(set_to_none=True)
        begun = time.perf_counter()
        rows = whole()
        found.append(time.perf_counter() - begun)
    return Measured(name, rows, min(found[1:]))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of compute")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="answers per prompt")
    parser.add_argument("--prompt", type=int, default=64, help="longest prompt; the shortest has half of it")
    parser.add_argument("--mu", type=float, default=3.9, help="of the answers' log-length: e^3.9 = 49 tokens")
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--max-answer", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--chunk-tokens", type=int, default=1024, help="tokens whose logits exist at one time")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tiny random model and few prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.group, args.prompt, args.mu, args.max_answer, args.repeats = 2, 4, 8, 2.0, 32, 1
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    with tempfile.TemporaryDirectory(prefix="packing-") as name:
        args.model = model_of(args, Path(name))
        model = load(args)
    groups = draw_groups(args)
    batch = make_batch(groups, model.vocab_size, args.seed)
    ways = [
        timed("packed, prompts shared", run_packed(model, batch, args, True), model, args.repeats),
        timed("packed", run_packed(model, batch, args, False), model, args.repeats),
        timed("padded", run_padded(model, batch, args), model, args.repeats),
    ]
    shared, packed, padded = ways
    found = {
        "padding_waste": padded.rows / packed.rows,
        "packing_speedup": padded.seconds / packed.seconds,
        "repeated_prompts": packed.rows / shared.rows,
        "sharing_speedup": packed.seconds / shared.seconds,
        "speedup": padded.seconds / shared.seconds,
    }
    if args.json:
        print(json.dumps({"ways": [asdict(way) for way in ways], "ratios": found}))
        return 0
    lengths = sorted(length for _, row in groups for length in row)
    print(
        f"{args.prompts} prompts × {args.group} answers of {lengths[0]}–{lengths[-1]} tokens (median "
        f"{lengths[len(lengths) // 2]}), {args.dtype}, {args.threads} threads"
    )
    for way in ways:
        print(f"  {way.name:24}{way.rows:8} rows {way.seconds:8.2f} s")
    print(
        f"  padded ÷ packed: rows {found['padding_waste']:.2f}, seconds {found['packing_speedup']:.2f}\n"
        f"  packed ÷ prompts shared: rows {found['repeated_prompts']:.2f}, seconds {found['sharing_speedup']:.2f}\n"
        f"  in all {found['speedup']:.2f} ×"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
