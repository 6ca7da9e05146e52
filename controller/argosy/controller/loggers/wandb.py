"""Weights & Biases. Without an API key the run is recorded offline (`wandb sync` uploads it later)."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.config import Config

log = logging.getLogger(__name__)

DEFAULT_HOST = "api.wandb.ai"
INIT_TIMEOUT_S = 30


def choose_mode(environment: Mapping[str, str], has_saved_key: bool) -> Any:
    """WANDB_MODE if set; else online with a key, and offline without one: nothing ever asks a question."""
    if mode := environment.get("WANDB_MODE"):
        return mode
    return "online" if environment.get("WANDB_API_KEY") or has_saved_key else "offline"


def _has_saved_key() -> bool:
    """Whether `wandb login` has left a key for its default host."""
    try:
        return netrc.netrc().authenticators(DEFAULT_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbLogger:
    """One W&B run per Argosy run; a resumed run goes on in the same one."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        import wandb

        mode = choose_mode(os.environ, _has_saved_key())
        if mode == "offline":
            log.warning("wandb records offline below %s/wandb (no API key, or WANDB_MODE=offline)", run_dir)
        self._run: Any = wandb.init(
            project=config.trainer.project_name,
            name=config.trainer.experiment_name,
            id=config.argosy.run_id,
            dir=str(run_dir),
            mode=mode,
            resume="allow" if mode == "online" else None,
            config=config.to_dict(),
            settings=wandb.Settings(init_timeout=INIT_TIMEOUT_S, console="off", silent=True),
        )

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """Note where the run goes on. W&B keeps the first row of a step that comes again: metrics.jsonl has the new."""
        del metrics
        self._run.summary["argosy/resumed_from_step"] = step
        self._run.summary["argosy/abandoned_lineage"] = abandoned if step else ""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()
