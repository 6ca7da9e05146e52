"""TRL's side of benchmarks/grpo_vs_trl.py; runs in TRL's own venv. Reads a job as JSON, writes a result as JSON.

    .venv/bin/python driver.py job.json result.json

Everything that the job doesn't name is TRL's own default: scale_rewards="group", loss_type="dapo", no reference
(beta=0), epsilon=0.2, gradient norm 1.0, fused AdamW.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import vowels  # type: ignore[import-not-found]  # beside this file
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def status_bytes(name: str) -> int:
    """A field of this process's memory status (Linux), in bytes: VmHWM is its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def share_of_vowels(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
    """The common reward, called as TRL calls reward functions."""
    del prompts, kwargs
    texts = [answer if isinstance(answer, str) else answer[0]["content"] for answer in completions]
    return [vowels.compute_score("", text, "") for text in texts]


class Stopwatch(TrainerCallback):  # type: ignore[misc]  # untyped
    """Seconds of each step, and of the generation and scoring in it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.current: dict[str, float] = {}
        self._begun = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.current = {"generation_s": 0.0, "rewards_s": 0.0}
        self._begun = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        total = time.perf_counter() - self._begun
        update = total - self.current["generation_s"] - self.current["rewards_s"]
        self.steps.append(self.current | {"step_s": total, "update_s": update})


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]  # untyped
    """GRPOTrainer, with two of its methods timed."""

    stopwatch: Stopwatch

    def _generate(self, prompts: list[Any]) -> Any:
        begun = time.perf_counter()
        found = super()._generate(prompts)
        self.stopwatch.current["generation_s"] += time.perf_counter() - begun
        lengths = [len(ids) for ids in found[1]]
        self.stopwatch.current["output_tokens"] = float(sum(lengths))
        self.stopwatch.current["prompt_tokens"] = float(sum(len(ids) for ids in found[0]))
        return found

    def _calculate_rewards(self, *args: Any) -> Any:
        begun = time.perf_counter()
        found = super()._calculate_rewards(*args)
        self.stopwatch.current["rewards_s"] += time.perf_counter() - begun
        return found


def configure(job: dict[str, Any]) -> GRPOConfig:
    """The job in TRL's terms."""
    sequences = job["prompts"] * job["group"]
    bfloat16 = job["dtype"] == "bfloat16"
    return GRPOConfig(
        output_dir=job["folder"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["batch"],
        gradient_accumulation_steps=sequences // job["batch"],
        num_generations=job["group"],
        max_completion_length=job["max_tokens"],
        generation_kwargs={"min_new_tokens": job["max_tokens"]} if job["fixed_length"] else None,
        use_transformers_continuous_batching=job["continuous_batching"],
        temperature=1.0,
        beta=0.0,
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        bf16=bfloat16,
        gradient_checkpointing=job["checkpointing"],
        model_init_kwargs={"dtype": "bfloat16" if bfloat16 and job["bfloat16_weights"] else "float32"},
        shuffle_dataset=False,
        use_cpu=True,
        seed=job["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    """Train for the job's steps and write what was measured."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    rows = [json.loads(line) for line in Path(job["data"]).read_text().splitlines()]
    trainer = TimedTrainer(
        model=job["model"],
        reward_funcs=share_of_vowels,
        args=configure(job),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[stopwatch := Stopwatch()],
    )
    trainer.stopwatch = stopwatch
    loaded = status_bytes("VmHWM")
    trainer.train()
    result = {"steps": stopwatch.steps, "peak_bytes": status_bytes("VmHWM"), "peak_after_loading_bytes": loaded}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
