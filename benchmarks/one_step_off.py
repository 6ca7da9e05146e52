"""Wall time of a GRPO step, synchronous beside one step off, when rollout and trainer have a core each.

    python benchmarks/one_step_off.py                    # SmolLM2-135M, a few minutes
    python benchmarks/one_step_off.py --quick            # a tiny random model, all in one process: does it run?

Both sides are a real `argosy train` with its processes, one compute thread in rollout and trainer each, the same model,
prompts, answer lengths and settings, in turn: the second only has `argosy.max_staleness=1` and
`argosy.weight_sync.while_generating=finish`. Its correction for old weights costs one more pass of the trainer over the
batch; the third takes the engine's log-probs for the old ones instead (`bypass_mode`). A step's time is the wall time
from one finished step to the next; the first steps and the last one (which saves a checkpoint, and beside which nothing
is generated) are not counted. On two cores the ideal is the longer of generation and the rest of a step, not their sum.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from grpo_vs_trl import environment, write_rows
from measuring import DEFAULT_MODEL, model_of

WARMUP = 2
"""Steps that are not counted: the pipeline fills, code is compiled."""
ONE_STEP_OFF = ("argosy.max_staleness=1", "argosy.weight_sync.while_generating=finish")
WAYS: dict[str, tuple[str, ...]] = {
    "synchronous": (),
    "one step off": ONE_STEP_OFF,
    "… bypass": (*ONE_STEP_OFF, "algorithm.rollout_correction.bypass_mode=true"),
}
VOWELS = Path(__file__).parent / "against_trl" / "vowels.py"


@dataclass(frozen=True)
class Way:
    """How fast one way of training is."""

    name: str
    step_s: float
    """Wall time from one finished step to the next."""
    update_s: float
    """Of the update in a step."""
    old_log_prob_s: float
    """Of the pass for log-probs of the weights before it; 0 where there is none."""
    sync_s: float
    answer_tokens: float
    """Mean length."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step")
    parser.add_argument("--group", type=int, default=8, help="answers of a prompt")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--steps", type=int, default=5, help="that count")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--quick", action="store_true", help="a tiny random model and short answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    args.threads = 1
    if args.quick:
        args.prompts, args.group, args.max_tokens, args.steps = 2, 2, 8, 1
    return args


def run(name: str, args: argparse.Namespace, data: Path, folder: Path) -> Way:
    """One side."""
    out = folder / name.replace(" ", "_").replace("…", "with")
    command = [
        "train", "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={args.model}", f"data.train_files={data}", "data.shuffle=false",
        f"data.train_batch_size={args.prompts}", "data.max_prompt_length=256",
        f"data.max_response_length={args.max_tokens}", f"actor_rollout_ref.rollout.n={args.group}",
        "actor_rollout_ref.rollout.ignore_eos=true",  # equal work in each step, on both sides
        f"actor_rollout_ref.actor.ppo_mini_batch_size={args.prompts}", "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4608", "actor_rollout_ref.actor.optim.lr=1e-6",
        f"actor_rollout_ref.actor.fsdp_config.dtype={args.dtype}", f"argosy.rollout.dtype={args.dtype}",
        f"argosy.rollout.slot_count={args.prompts * args.group}", "argosy.rollout.threads=1",
        "argosy.trainer.threads=1", f"custom_reward_function.path={VOWELS}", "trainer.logger=[file]",
        f"trainer.default_local_dir={out}",
        f"trainer.total_training_steps={WARMUP + args.steps + 1}", "trainer.val_before_train=false",
        "trainer.test_freq=-1", "trainer.save_freq=-1", "argosy.export_hf=false",
        f"argosy.placement={'inprocess' if args.quick else 'local'}", *WAYS[name],
    ]  # fmt: skip
    log = folder / f"{out.name}.log"
    code, ends = (_train_here if args.quick else _train)(command, log, out / "metrics.jsonl", args)
    if code != 0:
        raise SystemExit(f"argosy train ended with {code}:\n{log.read_text()[-4000:]}")
    from argosy.controller.loggers.jsonl import read_metrics

    rows = [row for row in read_metrics(out / "metrics.jsonl") if "training/global_step" in row][WARMUP:-1]

    def of(key: str) -> float:
        return float(mean(row.get(key, 0.0) for row in rows))

    step_s = (ends[WARMUP + args.steps] - ends[WARMUP]) / args.steps
    return Way(
        name,
        step_s,
        of("timing_s/update_actor"),
        of("timing_s/old_log_prob"),
        of("timing_s/update_weights"),
        of("response_length/mean"),
    )


def _train(command: list[str], log: Path, metrics: Path, args: argparse.Namespace) -> tuple[int, dict[int, float]]:
    """The run in processes of its own: its exit code, and what `_watch` saw."""
    with log.open("w") as sink:
        command = [sys.executable, "-m", "argosy.cli.main", *command]
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment(args))
        ends = _watch(lambda: process.poll() is not None, metrics)
    return process.returncode, ends


def _train_here(command: list[str], log: Path, metrics: Path, args: argparse.Namespace) -> tuple[int, dict[int, float]]:
    """The same in this process, which loads everything once for all ways."""
    from argosy.cli.main import main as argosy

    over = threading.Event()
    with ThreadPoolExecutor(1) as pool, log.open("w") as sink, redirect_stdout(sink), redirect_stderr(sink):
        watching = pool.submit(_watch, over.is_set, metrics)
        try:
            code = argosy(command)
        finally:
            over.set()
        return code, watching.result()


def _watch(is_over: Callable[[], bool], metrics: Path) -> dict[int, float]:
    """Step → when its row was there, until the run ends."""
    ends: dict[int, float] = {}
    while True:
        over = is_over()
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        for step in range(len(ends) + 1, done + 1):
            ends[step] = time.monotonic()
        if over:
            return ends
        time.sleep(0.02)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args.model = model_of(args, folder)
        data = folder / "rows.jsonl"
        write_rows(data, args.prompts * (WARMUP + args.steps + 3), seed=0)
        ways = []
        for way in WAYS:
            print(f"… {way}", file=sys.stderr, flush=True)
            ways.append(run(way, args, data, folder))
    ratios = {way.name: ways[0].step_s / way.step_s for way in ways[1:]}
    if args.json:
        print(json.dumps({"ways": [asdict(way) for way in ways], "ratios": ratios}))
        return 0
    print(f"{args.prompts} prompts × {args.group} answers of {args.max_tokens} tokens, {args.dtype}, a thread each")
    print(f"{'':14}{'step s':>9}{'update s':>10}{'old log-probs s':>17}{'sync s':>8}{'synchronous ÷ it':>18}")
    for one in ways:
        ratio = f"{ratios[one.name]:.2f}" if one.name in ratios else ""
        print(
            f"{one.name:14}{one.step_s:9.2f}{one.update_s:10.2f}{one.old_log_prob_s:17.2f}{one.sync_s:8.2f}{ratio:>18}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
