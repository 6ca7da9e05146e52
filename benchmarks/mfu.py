"""Share of this machine's matmul rate that forward + backward of the trainer core reaches (model FLOPs utilisation).

    python benchmarks/mfu.py

The yardstick is one big square matrix product in the same dtype and run. Counted are the FLOPs that the model needs:
2 per weight and token forward and 4 backward, attention's products, and the output head at response tokens only. What
is computed again (checkpointing, the head's logits in the backward pass) is work but no model FLOPs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import DEFAULT_MODEL, make_batch, matmul_rate, model_of, progress, trainer_options

BACKWARD_TO_FORWARD = 2
"""The backward of a product is two products of its size."""


@dataclass(frozen=True)
class Measured:
    """One dtype."""

    dtype: str
    matmul_flops: float
    """Per second, of the yardstick; the mean of before and after."""
    model_flops: float
    """Of one forward + backward."""
    seconds: float
    packed_tokens: int

    @property
    def utilisation(self) -> float:
        """1 is the yardstick."""
        return self.model_flops / self.seconds / self.matmul_flops


def model_flops(model: Any, packed_tokens: int, response_tokens: int, spans: Sequence[int]) -> float:
    """Forward and backward. `spans` are the lengths of the sequences that attention sees."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(
        p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n
    )
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    attention = sum(2 * 2 * span * span / 2 * width * config.num_hidden_layers for span in spans)  # causal: half
    forward = 2 * body * packed_tokens + 2 * head * response_tokens + attention
    return float(forward * (1 + BACKWARD_TO_FORWARD))


def measure(args: argparse.Namespace, dtype: str) -> Measured:
    """Yardstick, then forward + backward, then the yardstick again."""
    import torch

    from argosy.modeling.memory import keep_freed_memory
    from argosy.trainer.backends.single import SingleProcessBackend
    from argosy.trainer.objective import global_normalizer
    from argosy.types.records import LossConfig

    torch.set_num_threads(args.threads)
    keep_freed_memory()
    options = trainer_options(
        args.model,
        compute_dtype=dtype,
        max_tokens=args.micro_batch_tokens,
        gradient_checkpointing=args.checkpointing,
        log_prob_chunk_tokens=args.chunk_tokens,
        threads=args.threads,
    )
    backend = SingleProcessBackend(options)
    model = backend.model_for_export()
    batch = make_batch([(args.prompt, [args.answer] * args.group)] * args.prompts, model.config.vocab_size)
    loss, normalizer = LossConfig(), global_normalizer(batch)
    progress(f"{dtype}: the yardstick")
    rates = [matmul_rate(getattr(torch, dtype), args.matmul_size)]
    progress(f"{dtype}: forward and backward, once uncounted and {args.repeats} times")
    backend.forward_backward(batch, loss, normalizer)
    found = []
    for _ in range(args.repeats):
        begun = time.perf_counter()
        backend.forward_backward(batch, loss, normalizer)
        found.append(time.perf_counter() - begun)
    rates.append(matmul_rate(getattr(torch, dtype), args.matmul_size))
    sequences = args.prompts * args.group
    packed = args.prompts * args.prompt + sequences * (args.answer - 1)
    flops = model_flops(model, packed, sequences * args.answer, [args.prompt + args.answer - 1] * sequences)
    return Measured(dtype, sum(rates) / len(rates), flops, min(found), packed)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="Hugging Face folder")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="answers per prompt, which they share")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=1024, help="tokens whose logits exist at one time")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--matmul-size", type=int, default=2048, help="rows and columns of the yardstick")
    parser.add_argument("--repeats", type=int, default=2, help="the best counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tiny random model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.group, args.prompt, args.answer, args.matmul_size, args.repeats = 2, 2, 8, 8, 64, 1
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    with tempfile.TemporaryDirectory(prefix="mfu-") as name:
        args.model = model_of(args, Path(name))
        rows = [measure(args, dtype) for dtype in args.dtypes]
    if args.json:
        print(json.dumps([asdict(row) | {"utilisation": row.utilisation} for row in rows]))
        return 0
    print(
        f"{args.prompts} prompts of {args.prompt} tokens × {args.group} answers of {args.answer}, "
        f"{args.threads} threads, micro-batches of {args.micro_batch_tokens} tokens"
    )
    print(f"{'':10}{'matmul GFLOP/s':>16}{'reached GFLOP/s':>17}{'share':>8}{'tokens/s':>10}{'seconds':>9}")
    for row in rows:
        reached = row.model_flops / row.seconds
        print(
            f"{row.dtype:10}{row.matmul_flops / 1e9:16.0f}{reached / 1e9:17.0f}{row.utilisation:8.1%}"
            f"{row.packed_tokens / row.seconds:10.0f}{row.seconds:9.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
