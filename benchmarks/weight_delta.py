"""How small deltas of weights are, and how fast: real optimizer steps of a real model, published in bfloat16.

    python benchmarks/weight_delta.py                                   # SmolLM2-135M, AdamW at 1e-6, 3e-6 and 1e-5
    python benchmarks/weight_delta.py --model PATH --rate 1e-6 --steps 5
    python benchmarks/weight_delta.py --quick --json                    # a tiny model, to see that it works

Each step is AdamW on the next-token loss of random text over float32 master weights. Printed for each: the share of
published values that changed (case E7: bf16 swallows the others' updates until they have added up), how many times
smaller the delta is than the weights, and MB/s of weights to freeze without and with a delta, to apply one, and to copy
the same bytes. Times are CPU time of one thread, the best of three.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measuring import DEFAULT_MODEL

Row = dict[str, float]


def best_cpu_seconds(prepare: Callable[[], Any], call: Callable[[], Any], repeats: int = 3) -> float:
    """Least CPU time of several calls, each after what isn't counted."""
    found = []
    for _ in range(repeats):
        prepare()
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return max(min(found), 1e-9)


def after_steps(path: str, rate: float, steps: int) -> Iterator[dict[str, Any]]:
    """The master weights before the first step and after each; the same tensors, which change in place."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.vocab_size)
    yield model.state_dict()
    for _ in range(steps):
        ids = torch.randint(3, vocabulary, (2, 128), generator=generator)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model.state_dict()


def measured(state: dict[str, Any], step: int, before: Any) -> tuple[Row, Any]:
    """The figures of one step, and its snapshot. `before` is the snapshot before, whose memory is used again."""
    import numpy as np

    from argosy.weightsync import Snapshot
    from argosy.weightsync.delta import apply
    from argosy.weightsync.tensors import find_tied

    old = before.buffer.memory.copy()
    spare = np.empty_like(old)
    made: list[Any] = [before]

    def restore() -> None:
        before.buffer.memory[:] = old

    def freeze(delta: bool) -> None:
        tied = find_tied(state)
        made[0] = Snapshot.freeze("benchmark", step, state, tied, "bfloat16", before, delta=delta)

    plain_s = best_cpu_seconds(restore, lambda: freeze(False))
    delta_s = best_cpu_seconds(restore, lambda: freeze(True))
    copy_s = best_cpu_seconds(lambda: None, lambda: np.copyto(spare, old))
    snapshot = made[0]
    spans = snapshot.buffer.spans

    def decode() -> None:
        for name, records in snapshot.delta.records.items():
            start = spans[name][0]
            for record in records:
                apply(record.data, spare[start + record.offset : start + record.offset + record.size])

    decode_s = best_cpu_seconds(lambda: np.copyto(spare, old), decode)
    if not np.array_equal(spare, snapshot.buffer.memory):
        raise AssertionError("the delta did not give the new bytes")
    size = snapshot.delta.whole_size_bytes
    speeds = {"freeze": plain_s, "freeze_with_delta": delta_s, "apply": decode_s, "copy": copy_s}
    return {
        "step": step,
        "changed_share": snapshot.changed_share,
        "ratio": size / snapshot.delta.size_bytes,
        "delta_mb": snapshot.delta.size_bytes / 1e6,
        "weights_mb": size / 1e6,
        **{f"{name}_mb_s": size / 1e6 / seconds for name, seconds in speeds.items()},
    }, snapshot


def measure(path: str, rate: float, steps: int) -> Iterator[Row]:
    """A row for each step at one learning rate."""
    from argosy.weightsync import Snapshot
    from argosy.weightsync.tensors import find_tied

    last: Any = None
    for step, state in enumerate(after_steps(path, rate, steps)):
        if last is None:
            last = Snapshot.freeze("benchmark", 0, state, find_tied(state), "bfloat16")
        else:
            row, last = measured(state, step, last)
            yield {"rate": rate, **row}


def show(row: Row) -> None:
    """One line of the table."""
    print(
        f"{row['rate']:8.0e} {row['step']:5.0f} {100 * row['changed_share']:9.2f} % {row['ratio']:7.1f} × "
        f"{row['delta_mb']:8.2f} {row['freeze_mb_s']:9.0f} {row['freeze_with_delta_mb_s']:9.0f} "
        f"{row['apply_mb_s']:9.0f} {row['copy_mb_s']:9.0f}",
        flush=True,
    )


def main() -> None:
    """Parse the arguments, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model folder")
    parser.add_argument("--rate", type=float, action="append", help="learning rates; default 1e-6, 3e-6, 1e-5")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one rate")
    parser.add_argument("--json", action="store_true", help="the rows as JSON on the last line")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    rates = arguments.rate or ([1e-6] if arguments.quick else [1e-6, 3e-6, 1e-5])
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if arguments.quick:
            from argosy.modeling.tiny import save_tiny_model

            path = str(save_tiny_model(Path(folder) / "tiny"))
        print(
            "    rate  step    changed   smaller       MB    freeze   + delta     apply      copy   (MB/s of weights)"
        )
        rows = []
        for rate in rates:
            for row in measure(path, rate, arguments.steps):
                show(row)
                rows.append(row)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
