"""Case H4: a tracker that fails, is absent or can't write never costs the run."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.controller.loggers import LOGGERS, Guarded, build_loggers
from argosy.controller.loggers.jsonl import read_metrics
from argosy.controller.loggers.wandb import choose_mode
from argosy.types.errors import ConfigError


def configured(*names: str) -> Config:
    return Config().with_values({"trainer.logger": list(names), "argosy.run_id": "run-1"})


def test_metrics_file_is_always_written(tmp_path: Path) -> None:
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.log(1, {"loss": 0.5, "bad": math.nan})
    logger.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 0.5, "bad": "nan"}]


def test_read_metrics_keeps_the_newest_of_a_repeated_step_and_skips_a_torn_line(tmp_path: Path) -> None:
    rows = [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 2, "a": 3}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "a'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert [(row["step"], row["a"]) for row in read_metrics(tmp_path / "metrics.jsonl")] == [(1, 1), (2, 3)]


def test_a_torn_line_of_a_killed_run_costs_the_next_row_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 2, "a')
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.log(2, {"a": 2.0})
    logger.log(3, {"a": 3.0})
    logger.close()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["a"]) for row in rows] == [(1, 1), (2, 2.0), (3, 3.0)]


def test_c13_steps_that_a_resume_gives_up_are_moved_away(tmp_path: Path) -> None:
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.begin(0, "l0", {})
    for step in range(4):
        logger.log(step, {"val-core/acc": 0.5} if step == 0 else {"training/global_step": float(step), "a": 1.0})
    logger.close()
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.begin(2, "l0", {"training/global_step": 2.0, "a": 9.0})
    logger.log(3, {"training/global_step": 3.0, "a": 2.0})
    logger.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("a")) for row in rows] == [(0, None), (1, 1.0), (2, 1.0), (3, 2.0)]
    [given_up] = (tmp_path / "metrics.abandoned.jsonl").read_text().splitlines()
    assert json.loads(given_up) == {"step": 3, "training/global_step": 3.0, "a": 1.0, "lineage": "l0"}


def test_c13_the_row_of_a_checkpoint_whose_run_was_killed_before_it_was_logged(tmp_path: Path) -> None:
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.log(1, {"training/global_step": 1.0})
    logger.log(2, {"val-core/acc": 0.5})
    logger.begin(2, "l0", {"training/global_step": 2.0, "a": 9.0})
    logger.close()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row.get("a")) for row in rows] == [(1, None), (2, None), (2, 9.0)]


def test_a_run_that_begins_again_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "v": 1}\n{"step": 1, "a": 1}\n{"step": 2, "a')
    [logger] = build_loggers(configured("console"), tmp_path)
    logger.begin(0, "before-run-2", {})
    logger.log(0, {"v": 2.0})
    logger.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 0, "v": 2.0}]
    assert len((tmp_path / "metrics.abandoned.jsonl").read_text().splitlines()) == 2


def test_c13_tensorboard_shows_the_steps_of_the_surviving_lineage(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for life, steps, value in ((0, (1, 2, 3), 1.0), (2, (3, 4), 2.0)):
        loggers = build_loggers(configured("tensorboard"), tmp_path)
        for logger in loggers:
            logger.begin(life, "l0", {})
            for step in steps:
                logger.log(step, {"a": value})
            logger.close()
        time.sleep(1.1 if life == 0 else 0)  # files are named, and read, by the second in which they were begun
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a")] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_tensorboard_files_are_real(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = build_loggers(configured("tensorboard"), tmp_path)
    for step in (1, 2):
        for logger in loggers:
            logger.log(step, {"critic/score/mean": step / 2})
    for logger in loggers:
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("critic/score/mean")] == [(1, 0.5), (2, 1.0)]


def test_h4_wandb_without_a_key_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    loggers = build_loggers(configured("wandb"), tmp_path)
    assert len(loggers) == 2
    for logger in loggers:
        logger.log(1, {"loss": 0.5})
        logger.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    ("environment", "key", "mode"),
    [({}, False, "offline"), ({}, True, "online"), ({"WANDB_API_KEY": "x"}, False, "online"),
     ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "x"}, True, "disabled")],
)  # fmt: skip
def test_h4_wandb_never_asks(environment: Mapping[str, str], key: bool, mode: str) -> None:
    assert choose_mode(environment, key) == mode


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_h4_absent_package_is_one_warning(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(LOGGERS, name, "a_package_that_is_not_there.x:Y")
    with caplog.at_level(logging.WARNING):
        loggers = build_loggers(configured(name), tmp_path)
    assert len(loggers) == 1
    [record] = caplog.records
    assert "is not installed" in record.message


class Failing:
    """A tracker whose server has gone."""

    calls = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("no route to host")

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        raise AssertionError("not in this test")

    def close(self) -> None:
        raise AssertionError("closed after it was given up")


def test_h4_failing_logger_is_given_up_once(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    guarded = Guarded("remote", failing)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            guarded.log(step, {})
        guarded.close()
    assert failing.calls == 1
    assert [record.message for record in caplog.records] == [
        "logger 'remote' failed at step 0 and is now off: no route to host"
    ]


def test_h4_read_only_folder_costs_the_logger_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        loggers = build_loggers(configured("tensorboard"), tmp_path)
        for logger in loggers:
            logger.log(1, {"a": 1.0})
    assert os.path.getsize(tmp_path / "metrics.jsonl")
    assert any("tensorboard" in record.message for record in caplog.records)


def test_unknown_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.logger: unknown"):
        build_loggers(configured("wandbb"), tmp_path)
