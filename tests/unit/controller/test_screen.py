"""What people see and find: table cells, plain lines, dumps, the report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from argosy.controller.console import RunConsole, cells
from argosy.controller.dumps import write_dump
from argosy.controller.plot import save_reward_curve, smoothed, terminal_curve
from argosy.controller.report import HeldOut, RunReport, write_report
from argosy.controller.validation_metrics import mean_interval
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, Failed, FinishReason, Outcome, Prompt, Scored

METRICS = {"critic/score/mean": 0.5, "response_length/mean": 12.34, "perf/throughput": 99.6, "timing_s/step": 1.25}


def test_a_metric_that_is_not_there_is_a_dash() -> None:
    assert cells(METRICS) == ["0.500", "0.500", "12.3", "–", "–", "100", "1.2"]


@pytest.mark.parametrize("live", [True, False])
def test_steps_and_notes_reach_the_screen(live: bool) -> None:
    sink = io.StringIO()
    with RunConsole(3, Console(file=sink, width=120, force_terminal=live), live=live) as screen:
        screen.stage(1, "gen")
        screen.step(1, METRICS)
        screen.note("held-out at step 0: 24.0%")
    text = Text.from_ansi(sink.getvalue()).plain
    assert "0.500" in text
    assert "held-out at step 0" in text
    if live:
        assert "generating" in text
        assert "1/3" in text


def test_dump_has_verls_fields_and_says_what_failed(tmp_path: Path) -> None:
    prompt = Prompt(GroupId(0, 0), (1,), "s", "7", text="3+4?")
    ids = [SampleId(0, 0, k) for k in range(3)]
    completions = {i: Completion(i, (1,), (-0.1,), (), FinishReason.STOP, f"out {i.k}") for i in ids}
    outcomes: dict[SampleId, Outcome] = {ids[0]: Scored(1.0, {"acc": 1.0}), ids[1]: Failed("timeout", "10 s")}
    path = write_dump(tmp_path, 4, [prompt], completions, outcomes, limit=2)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == "4.jsonl"
    assert [(row["input"], row["output"], row["gts"], row["score"], row["step"]) for row in rows] == [
        ("3+4?", "out 0", "7", 1.0, 4),
        ("3+4?", "out 1", "7", None, 4),
    ]
    assert rows[0]["acc"] == 1.0
    assert rows[1]["failed"] == "timeout: 10 s"


def test_curve_is_drawn_in_both_forms(tmp_path: Path) -> None:
    rows = [{"step": i, "critic/score/mean": i / 10} for i in range(1, 11)]
    assert save_reward_curve([*rows, {"step": 0, "val-core/s/acc/mean@1": 0.2}], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "training step" in terminal_curve(rows)
    assert not save_reward_curve([{"step": 1, "critic/score/mean": "nan"}], tmp_path / "none.png")
    assert smoothed([1, 2, 3], 2) == [1.0, 1.5, 2.5]


def test_report_is_saved_and_printed(tmp_path: Path) -> None:
    sink = io.StringIO()
    before, after = HeldOut(0, 0.2, 0.1, 0.3, 50), HeldOut(9, 0.5, 0.4, 0.6, 50)
    report = RunReport("r", str(tmp_path), 9, "l0@9#ab", 60.0, None, None, before, after, 0.3, 0.05)
    write_report(report, Console(file=sink, width=120))
    assert json.loads((tmp_path / "report.json").read_text())["after"]["mean"] == 0.5
    text = sink.getvalue()
    assert "before (step 0): 20.0%  [95 % interval 10.0% to 30.0%, 50 prompts]" in text
    assert "change on the same prompts: +30.0% ± 5.0%" in text


def test_interval_of_scores_that_are_no_shares() -> None:
    low, high = mean_interval([-1.0, 3.0, 10.0])
    assert low < 4.0 < high
    assert mean_interval([1.0, 0.0]) == pytest.approx((0.0945, 0.9055), abs=1e-3)
