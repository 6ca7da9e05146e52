"""Peak memory of log-probs, loss and backward over growing micro-batches: ours beside a plain Hugging Face forward.

    python benchmarks/trainer_memory.py
    python benchmarks/trainer_memory.py --tokens 1024 2048 4096 8192 16384 32768     # many minutes

The plain side holds float32 logits [tokens, vocabulary], as a straightforward trainer does. Each measurement is a
process of its own; its peak is compared with its resident memory once the model is loaded and the gradients (of ours
also the moments) exist, so the figures are what one micro-batch adds; of ours that is also the weights in bfloat16.
With checkpointing a layer keeps its input [tokens, hidden] in float32 and everything else is computed again: that size
is known, and what is left beyond it and one layer's own activations should not grow with the tokens. That is counted as
PyTorch's operations need it; the compiled layers take less, so that less than nothing may be left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import DEFAULT_MODEL, current_bytes, make_batch, model_of, peak_bytes, progress, trainer_options

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Measured:
    """One micro-batch on one side; bytes."""

    side: str
    tokens: int
    before: int
    """Parameters, gradients, Python and libraries."""
    peak: int
    checkpoints: int
    """Inputs of the layers, kept for the backward pass: tokens × hidden × layers in float32."""
    layer: int
    """One layer's own activations while its backward runs, by the factor that a micro-batch of 1024 tokens shows."""

    @property
    def added(self) -> int:
        """What the micro-batch took at its peak."""
        return self.peak - self.before

    @property
    def beyond(self) -> int:
        """Beyond the layers' inputs."""
        return self.added - self.checkpoints


def measure_ours(args: argparse.Namespace, tokens: int) -> Measured:
    """The trainer core's own forward, objective and backward of one micro-batch."""
    import torch

    from argosy.modeling.memory import keep_freed_memory
    from argosy.trainer.backends.single import SingleProcessBackend
    from argosy.trainer.objective import global_normalizer
    from argosy.types.records import LossConfig

    torch.set_num_threads(args.threads)
    keep_freed_memory()
    options = trainer_options(
        args.model,
        compute_dtype=args.dtype,
        gradient_checkpointing=not args.no_checkpointing,
        log_prob_chunk_tokens=args.chunk_tokens,
        threads=args.threads,
    )
    backend = SingleProcessBackend(options)
    model = backend.model_for_export()
    backend.reserve()
    batch = make_batch(_groups(tokens, args.length), model.config.vocab_size)
    loss, normalizer = LossConfig(), global_normalizer(batch)
    before = current_bytes()
    backend.forward_backward(batch, loss, normalizer)
    return _measured("ours", model, tokens, before)


def measure_plain(args: argparse.Namespace, tokens: int) -> Measured:
    """A padded Hugging Face forward with full logits, log_softmax in float32, mean loss, backward."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.train()
    if not args.no_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    length = min(args.length, tokens)
    ids = torch.randint(3, model.config.vocab_size, (tokens // length, length))
    before = current_bytes()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
        logits = model(input_ids=ids, use_cache=False).logits
    log_pi = torch.log_softmax(logits[:, :-1].float(), -1)  # [B, T-1, V]
    loss = -log_pi.gather(2, ids[:, 1:, None]).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return _measured("plain", model, tokens, before)


def _groups(tokens: int, length: int) -> list[tuple[int, list[int]]]:
    """One packed row of about `tokens`: single answers of `length` tokens with prompts of an eighth of that."""
    length = min(length, tokens)
    prompt = max(1, length // 8)
    return [(prompt, [length - prompt + 1])] * max(1, tokens // length)


def _measured(side: str, model: Any, tokens: int, before: int) -> Measured:
    config = model.config
    row = tokens * config.hidden_size * FLOAT32_BYTES
    # Attention's and the feed-forward network's inputs and outputs of one layer, in rows of the hidden size.
    width = 12 + 6 * config.intermediate_size / config.hidden_size
    return Measured(side, tokens, before, peak_bytes(), row * config.num_hidden_layers, round(row * width))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="Hugging Face folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--plain-up-to", type=int, default=2048, help="most tokens on the plain side: it must fit")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--chunk-tokens", type=int, default=1024, help="tokens whose logits exist at one time")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of compute")
    parser.add_argument("--no-checkpointing", action="store_true", help="keep all activations, on both sides")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tiny random model, 256 and 512 tokens, plain up to 256")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "TOKENS"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.quick and not args.one:
        args.tokens, args.plain_up_to, args.length, args.chunk_tokens = [256, 512], 256, 64, 64
    return args


def in_own_process(args: argparse.Namespace, side: str, tokens: int) -> Measured:
    """One measurement; a process's peak never goes down, so each needs its own."""
    command = [sys.executable, __file__, "--one", side, str(tokens), "--model", args.model, "--dtype", args.dtype]
    command += ["--threads", str(args.threads), "--length", str(args.length), "--chunk-tokens", str(args.chunk_tokens)]
    command += ["--no-checkpointing"] if args.no_checkpointing else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def report(rows: Sequence[Measured], args: argparse.Namespace) -> str:
    """The table, in MB."""
    kept = "all activations kept" if args.no_checkpointing else "gradient checkpointing"
    lines = [
        f"{args.dtype} compute, {kept}, sequences of {args.length} tokens, "
        f"logits of {args.chunk_tokens} tokens at a time",
        f"{'tokens':>8}{'ours MB':>10}{'layer inputs':>14}{'beyond':>9}{'one layer':>11}{'left':>8}"
        f"{'plain MB':>10}{'plain ÷ ours':>14}",
    ]
    plain = {row.tokens: row for row in rows if row.side == "plain"}
    for row in rows:
        if row.side != "ours":
            continue
        other = plain.get(row.tokens)
        theirs = f"{other.added / 1e6:10.0f}{other.added / row.added:14.2f}" if other else f"{'–':>10}{'–':>14}"
        lines.append(
            f"{row.tokens:8}{row.added / 1e6:10.0f}{row.checkpoints / 1e6:14.0f}{row.beyond / 1e6:9.0f}"
            f"{row.layer / 1e6:11.0f}{(row.beyond - row.layer) / 1e6:8.0f}{theirs}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    if args.one:
        side, tokens = args.one[0], int(args.one[1])
        print(json.dumps(asdict((measure_ours if side == "ours" else measure_plain)(args, tokens))))
        return 0
    with tempfile.TemporaryDirectory(prefix="trainer-memory-") as name:
        args.model = model_of(args, Path(name))
        rows = []
        for tokens in args.tokens:
            for side in ("ours", "plain") if tokens <= args.plain_up_to else ("ours",):
                progress(f"{side}: {tokens} tokens")
                rows.append(in_own_process(args, side, tokens))
    print(json.dumps([asdict(row) | {"added": row.added} for row in rows]) if args.json else report(rows, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
