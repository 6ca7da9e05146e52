"""`trainer.*`: how long, how often, where to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerConfig:
    """The run as a whole."""

    project_name: str = "argosy"
    """Names the project in loggers and in the run folder's path."""
    experiment_name: str = "default"
    """Names this run in loggers and in the run folder's path."""
    default_local_dir: str = ""
    """The run folder: checkpoints, logs, traces, metrics. Empty: checkpoints/{project_name}/{experiment_name}. A URL
    (s3://bucket/run, gs://, hdfs://, file:///…): that folder is worked in, and each checkpoint is copied to the URL."""
    default_hdfs_dir: str | None = None
    """Copy each checkpoint, with the ledger until then, to this URL as well (any file system of pyarrow or fsspec, not
    HDFS alone). A start that finds a newer copy there than in its run folder goes on from that. null: no copies."""
    total_epochs: int = 30
    """Passes over the training data, unless total_training_steps ends the run earlier."""
    total_training_steps: int | None = None
    """Ends the run after this many steps; null: total_epochs × steps per data epoch."""
    nnodes: int = 1
    """Machines of the trainer: 1, since its ranks are processes on one machine."""
    n_gpus_per_node: int = 1
    """Ranks of the trainer (and of the critic): processes on this machine that hold the model between them, one a GPU,
    or sharing the CPU's cores. Batch sizes are global and don't depend on it. (verl: 8.)"""
    critic_warmup: int = 0
    """First steps that train only the critic; the policy stays as it is. (verl's own count is one less: it updates the
    policy in step critic_warmup already.)"""
    logger: tuple[str, ...] = ("console", "file", "tensorboard")
    """Where metrics go: "console", "file" (metrics.jsonl in the run folder, which is always written), "tensorboard",
    "wandb". (verl: console, wandb.)"""
    save_freq: int = -1
    """Checkpoint every so many steps, and at the end; -1 only when the run ends."""
    test_freq: int = -1
    """Validate every so many steps; -1 never during the run."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate once and end."""
    log_val_generations: int = 0
    """Validation answers kept per validation in RUN/validation/{step}.jsonl; 0 none."""
    rollout_data_dir: str | None = None
    """Folder for each step's samples as {step}.jsonl; null writes none."""
    validation_data_dir: str | None = None
    """Folder for each validation's answers as {step}.jsonl; null writes none."""
    resume_mode: str = "auto"
    """"auto": go on from the run folder's latest checkpoint if there is one; "disable": start anew; "resume_path":
    go on from resume_from_path, and fail if it isn't a whole checkpoint."""
    resume_from_path: str | None = None
    """A global_step_N folder, for resume_mode=resume_path."""
    max_actor_ckpt_to_keep: int | None = None
    """Keep this many newest checkpoints and delete older ones; null keeps all."""
