"""One GRPO step of Argosy beside one of TRL's GRPOTrainer: same model, prompts, samples and dtype, in turn.

    python benchmarks/grpo_vs_trl.py --setup          # once: TRL's own venv, in benchmarks/against_trl/.venv
    python benchmarks/grpo_vs_trl.py

Argosy's side is a real `argosy train` run (etcd, rollout, reward, trainer, controller), whose metrics.jsonl is read;
TRL's side is one process. Both train float32 master weights with bfloat16 compute (or float32 throughout), without a
reference, with one optimizer step a step, and only sample from the newest weights. They answer the same prompts in the
same order; --fixed-length makes every answer --max-tokens long on both sides, else answers end where the model ends
them, and the mean lengths are printed. The first steps are not counted. Peak memory is VmHWM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from measuring import DEFAULT_MODEL, FamilyWatch, model_of

AGAINST = Path(__file__).resolve().parent / "against_trl"
VENV_PYTHON = AGAINST / ".venv" / "bin" / "python"
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Measured:
    """One side: means over the counted steps, in seconds; peaks in bytes."""

    name: str
    settings: str
    step_s: float
    generation_s: float
    update_s: float
    sync_s: float
    output_tokens: float
    """Per step."""
    answer_tokens: float
    """Mean length."""
    prompt_tokens: float
    """Mean length."""
    training_peak: int
    """Of the process that trains."""
    whole_peak: int
    """Sum of all processes' own peaks."""


def setup() -> int:
    """Make TRL's venv. PIP_ARGS has more arguments for pip, as with make."""
    subprocess.run([sys.executable, "-m", "venv", str(AGAINST / ".venv")], check=True)
    more = os.environ.get("PIP_ARGS", "").split()
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", *more, "-r", str(AGAINST / "requirements.txt")]
    return subprocess.run(command, check=False).returncode


def write_rows(path: Path, count: int, seed: int) -> None:
    """Arithmetic questions in verl's row schema; TRL reads the same messages."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as out:
        for index in range(count):
            a, b, c = (draw.randint(10, 99) for _ in range(3))
            question = f"A shop has {a} apples. It sells {b} of them and buys {c} more. How many has it now? Explain."
            row = {
                "data_source": "vowels",
                "prompt": [{"role": "user", "content": question}],
                "ability": "benchmark",
                "reward_model": {"style": "rule", "ground_truth": str(a - b + c)},
                "extra_info": {"index": index, "split": "train"},
            }
            out.write(json.dumps(row) + "\n")


def environment(args: argparse.Namespace) -> dict[str, str]:
    """Of both sides' processes."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "160"}
    return {**os.environ, **quiet, "OMP_NUM_THREADS": str(args.threads)}


def run_argosy(args: argparse.Namespace, data: Path, folder: Path) -> Measured:
    """`argosy train` in processes of its own."""
    run = folder / "argosy"
    overrides = [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={args.model}",
        f"actor_rollout_ref.model.enable_gradient_checkpointing={args.argosy_checkpointing}",
        f"data.train_files={data}",
        "data.shuffle=false",
        f"data.train_batch_size={args.prompts}",
        f"data.max_prompt_length={args.max_prompt_tokens}",
        f"data.max_response_length={args.max_tokens}",
        f"actor_rollout_ref.rollout.n={args.group}",
        f"actor_rollout_ref.rollout.ignore_eos={args.fixed_length}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={args.prompts}",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={args.argosy_tokens}",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        f"actor_rollout_ref.actor.fsdp_config.dtype={args.dtype}",
        f"argosy.rollout.dtype={args.dtype}",
        f"argosy.rollout.slot_count={args.prompts * args.group}",
        *(f"argosy.{role}.threads={args.threads}" for role in ("rollout", "trainer")),
        f"custom_reward_function.path={AGAINST / 'vowels.py'}",
        "trainer.logger=[file]",
        f"trainer.default_local_dir={run}",
        f"trainer.total_training_steps={args.warmup + args.steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        # The last step is always saved; TRL saves nothing here, so a copy of the state for that is no part of training.
        "argosy.trainer.background_save=false",
        "argosy.export_hf=false",
        *args.argosy_override,
    ]
    command = [sys.executable, "-m", "argosy.cli.main", "train", *overrides]
    log = folder / "argosy.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment(args))
        watch = FamilyWatch(process.pid)
        code = process.wait()
        peaks = watch.stop()
    if code != 0:
        raise SystemExit(f"argosy train ended with {code}:\n{log.read_text()[-4000:]}")
    from argosy.controller.loggers.jsonl import read_metrics

    rows = [row for row in read_metrics(run / "metrics.jsonl") if "training/global_step" in row][args.warmup :]
    steps = [_argosy_step(row) for row in rows]
    sequences = args.prompts * args.group
    output = mean(row["response_length/mean"] * sequences for row in rows)
    trainer_peak = max(peak for name, peak in peaks.items() if "argosy.trainer" in name)
    settings = f"micro-batches of {args.argosy_tokens} tokens"
    settings += ", gradient checkpointing" if args.argosy_checkpointing else ""
    return Measured(
        "Argosy",
        settings,
        step_s=mean(step["step"] for step in steps),
        generation_s=mean(step["generation"] for step in steps),
        update_s=mean(step["update"] for step in steps),
        sync_s=mean(step["sync"] for step in steps),
        output_tokens=output,
        answer_tokens=output / sequences,
        prompt_tokens=mean(row["prompt_length/mean"] for row in rows),
        training_peak=trainer_peak,
        whole_peak=sum(peaks.values()),
    )


def _argosy_step(row: dict[str, Any]) -> dict[str, float]:
    """Saving the last step's checkpoint is not part of a step: TRL's run saves none."""
    return {
        "step": row["timing_s/step"] - row.get("timing_s/save_checkpoint", 0.0),
        "generation": row["timing_s/gen"],
        "update": row["timing_s/update_actor"],
        "sync": row["timing_s/update_weights"],
    }


def run_trl(args: argparse.Namespace, data: Path, folder: Path, batch: int) -> Measured:
    """GRPOTrainer in its own venv, with micro-batches of `batch` sequences."""
    job = {
        "model": str(Path(args.model).resolve()),
        "data": str(data),
        "folder": str(folder / f"trl-{batch}"),
        "steps": args.warmup + args.steps,
        "prompts": args.prompts,
        "group": args.group,
        "batch": batch,
        "max_tokens": args.max_tokens,
        "fixed_length": args.fixed_length,
        "continuous_batching": args.trl_continuous_batching,
        "checkpointing": args.trl_checkpointing,
        "bfloat16_weights": args.trl_bfloat16_weights,
        "dtype": args.dtype,
        "threads": args.threads,
        "learning_rate": LEARNING_RATE,
        "seed": args.seed,
    }
    job_path, result_path, log = (folder / f"trl-{batch}.{end}" for end in ("json", "result.json", "log"))
    job_path.write_text(json.dumps(job))
    with log.open("w") as out:
        command = [args.trl_python, str(AGAINST / "driver.py"), str(job_path), str(result_path)]
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment(args), check=False)
    if code.returncode != 0:
        raise SystemExit(f"TRL ended with {code.returncode}:\n{log.read_text()[-4000:]}")
    result = json.loads(result_path.read_text())
    steps = result["steps"][args.warmup :]
    sequences = args.prompts * args.group
    output = mean(step["output_tokens"] for step in steps)
    return Measured(
        "TRL",
        _trl_settings(args, batch),
        step_s=mean(step["step_s"] for step in steps),
        generation_s=mean(step["generation_s"] for step in steps),
        update_s=mean(step["update_s"] for step in steps),
        sync_s=0.0,
        output_tokens=output,
        answer_tokens=output / sequences,
        prompt_tokens=mean(step["prompt_tokens"] for step in steps) / sequences,
        training_peak=result["peak_bytes"],
        whole_peak=result["peak_bytes"],
    )


def _trl_settings(args: argparse.Namespace, batch: int) -> str:
    weights = "bfloat16 weights" if args.trl_bfloat16_weights else "float32 weights"
    parts = [f"micro-batches of {batch} sequences", weights]
    parts += ["gradient checkpointing"] if args.trl_checkpointing else []
    parts += ["continuous batching"] if args.trl_continuous_batching else []
    return ", ".join(parts)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make TRL's venv (PIP_ARGS: more arguments for pip)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="Hugging Face folder")
    parser.add_argument("--only", choices=["argosy", "trl"], help="measure one side")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of compute")
    parser.add_argument("--threads", type=int, default=2, help="of each process; stages run one after the other")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="samples per prompt")
    parser.add_argument("--max-prompt-tokens", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--fixed-length", action="store_true", help="every answer is --max-tokens long")
    parser.add_argument("--steps", type=int, default=3, help="that count")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--argosy-tokens", type=int, default=4608, help="token budget of a micro-batch")
    parser.add_argument(
        "--argosy-checkpointing",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="gradient checkpointing on Argosy's side, as is its default in training",
    )
    parser.add_argument("--argosy-override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--trl-batch", type=int, nargs="+", default=[8, 16], help="micro-batch sizes to try, sequences")
    parser.add_argument("--trl-checkpointing", action="store_true", help="gradient checkpointing on TRL's side")
    parser.add_argument("--trl-bfloat16-weights", action="store_true", help="no float32 master weights on TRL's side")
    parser.add_argument("--trl-continuous-batching", action="store_true", help="TRL's other way to generate")
    parser.add_argument("--trl-python", default=str(VENV_PYTHON), help="interpreter of TRL's venv")
    parser.add_argument("--quick", action="store_true", help="a tiny random model, 2 prompts × 4, one step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.group, args.max_tokens, args.steps, args.trl_batch = 2, 4, 8, 1, [4]
    return args


def report(sides: Sequence[Measured], args: argparse.Namespace) -> str:
    """The table, and the ratios to TRL's fastest setting."""
    lengths = "all of full length" if args.fixed_length else f"at most {args.max_tokens} tokens each"
    lines = [
        f"{args.prompts} prompts × {args.group} answers, {lengths}; {args.dtype} compute, {args.threads} threads, "
        f"mean of {args.steps} steps after {args.warmup}",
        f"{'':8}{'step':>8}{'generate':>10}{'update':>8}{'sync':>7}{'tokens':>8}{'mean':>7}{'training':>10}{'all':>8}",
        f"{'':8}{'s':>8}{'s':>10}{'s':>8}{'s':>7}{'a step':>8}{'length':>7}{'peak GB':>10}{'GB':>8}",
    ]
    for side in sides:
        lines.append(
            f"{side.name:8}{side.step_s:8.1f}{side.generation_s:10.1f}{side.update_s:8.1f}{side.sync_s:7.2f}"
            f"{side.output_tokens:8.0f}{side.answer_tokens:7.1f}{side.training_peak / 1e9:10.2f}"
            f"{side.whole_peak / 1e9:8.2f}   {side.settings}"
        )
    found = ratios(sides)
    if found:
        lines.append(
            f"TRL ÷ Argosy: step {found['step']:.2f}, generation {found['generation']:.2f}, update "
            f"{found['update']:.2f}, seconds per answer token {found['per_token']:.2f}, peak memory of training "
            f"{found['memory']:.2f} (of TRL's leanest setting {found['leanest_memory']:.2f})"
        )
    return "\n".join(lines)


def ratios(sides: Sequence[Measured]) -> dict[str, float]:
    """TRL's fastest setting over Argosy; empty if one side is missing."""
    ours = [side for side in sides if side.name == "Argosy"]
    theirs = [side for side in sides if side.name == "TRL"]
    if not ours or not theirs:
        return {}
    mine, other = ours[0], min(theirs, key=lambda side: side.step_s)
    return {
        "step": other.step_s / mine.step_s,
        "generation": other.generation_s / mine.generation_s,
        "update": other.update_s / mine.update_s,
        "per_token": (other.step_s / other.output_tokens) / (mine.step_s / mine.output_tokens),
        "memory": other.training_peak / mine.training_peak,
        "leanest_memory": min(side.training_peak for side in theirs) / mine.training_peak,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one side after the other, and print."""
    args = parse(argv)
    if args.setup:
        return setup()
    if args.only != "argosy" and not Path(args.trl_python).exists():
        print("TRL's venv is missing: python benchmarks/grpo_vs_trl.py --setup", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="grpo-vs-trl-") as name:
        folder = Path(name)
        args.model = model_of(args, folder)
        data = folder / "train.jsonl"
        write_rows(data, args.prompts * (args.steps + args.warmup), args.seed)
        sides: list[Measured] = []
        for batch in [] if args.only == "argosy" else args.trl_batch:
            sides.append(run_trl(args, data, folder, batch))
            print(f"{time.strftime('%H:%M:%S')} {sides[-1]}", file=sys.stderr, flush=True)
        if args.only != "trl":
            sides.insert(0, run_argosy(args, data, folder))
    if args.json:
        print(json.dumps({"sides": [asdict(side) for side in sides], "ratios": ratios(sides)}))
    else:
        print(report(sides, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
