"""TensorBoard event files, written by the tensorboard package itself (neither torch nor tensorflow is needed)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from argosy.config import Config


class TensorBoardLogger:
    """Scalars below `tensorboard/` in the run folder."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        del config
        self._writer = EventFileWriter(str(run_dir / "tensorboard"))

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """Mark where the run goes on: TensorBoard leaves out what earlier files have of later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        del abandoned, metrics
        log = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1 if step else 0, session_log=log))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One event with all scalars of the step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
