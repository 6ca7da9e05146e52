"""Every benchmark script runs, says what it is, and gives its result as JSON. No times are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from argosy.modeling.tiny import save_tiny_model

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if path.name != "measuring.py")
TIMEOUT_S = 240


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=BENCHMARKS.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def quick(script: str, *arguments: str) -> Any:
    return json.loads(run(script, "--quick", "--json", "--threads", "1", *arguments).splitlines()[-1])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For the scripts that measure in processes of their own: they need not load torch to write one."""
    return str(save_tiny_model(tmp_path_factory.mktemp("benchmarks") / "tiny"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_says_what_it_is_without_loading_anything_heavy(script: str) -> None:
    assert "usage:" in run(script, "--help")


def test_trainer_memory(tiny: str) -> None:
    rows = quick("trainer_memory.py", "--model", tiny)
    assert [(row["side"], row["tokens"]) for row in rows] == [("ours", 256), ("plain", 256), ("ours", 512)]
    assert all(row["peak"] >= row["before"] > 0 for row in rows)


def test_packing() -> None:
    found = quick("packing.py")
    shared, packed, padded = (way["rows"] for way in found["ways"])
    assert shared < packed < padded
    assert found["ratios"]["padding_waste"] == padded / packed


def test_mfu() -> None:
    rows = quick("mfu.py", "--dtypes", "float32")
    assert [row["dtype"] for row in rows] == ["float32"]
    assert rows[0]["utilisation"] > 0
    # 2 prompts of 8 tokens and 4 answers of 8, whose last token is not an input.
    assert rows[0]["packed_tokens"] == 2 * 8 + 4 * 7


def test_service_boundary(tiny: str) -> None:
    found = quick("service_boundary.py", "--model", tiny)
    assert 0 < found["core_within_grpc_s"] < found["grpc_s"]


def test_grpo_step_of_argosy(tiny: str) -> None:
    """TRL's side needs its own venv; the lead's benchmark runs cover it."""
    found = quick("grpo_vs_trl.py", "--only", "argosy", "--fixed-length", "--model", tiny)
    (side,) = found["sides"]
    assert side["answer_tokens"] == 8
    assert side["generation_s"] + side["update_s"] < side["step_s"]
    assert 0 < side["training_peak"] < side["whole_peak"]
    assert found["ratios"] == {}


def test_one_step_off(tiny: str) -> None:
    found = json.loads(run("one_step_off.py", "--quick", "--json", "--model", tiny).splitlines()[-1])
    assert [way["name"] for way in found["ways"]] == ["synchronous", "one step off", "… bypass"]
    assert all(way["step_s"] > 0 and way["answer_tokens"] == 8 for way in found["ways"])
    assert [way["old_log_prob_s"] > 0 for way in found["ways"]] == [False, True, False]


def test_weight_delta() -> None:
    rows = quick("weight_delta.py", "--steps", "2")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(0 < row["changed_share"] < 0.2 and row["ratio"] > 5 for row in rows)
    assert all(row["apply_mb_s"] > 0 for row in rows)


def test_rollout(tiny: str) -> None:
    rows = quick("rollout.py", "--engines", "hf", "generate", "--dtypes", "float32", "--model", tiny)
    assert [row["name"] for row in rows] == ["argosy hf", "model.generate, 4 padded"]
    assert rows[0]["tokens"] == rows[1]["tokens"] > 0
    assert all(row["tokens_per_s"] > 0 and row["cpu_seconds"] > 0 for row in rows)


def test_async_fleet() -> None:
    rows = quick("async_fleet.py")
    assert [(row["servers"], row["staleness"], row["samples_per_step"]) for row in rows] == [(2, 0, 64), (2, 1, 64)]
    synchronous, ahead = rows
    assert synchronous["staleness_max"] == 0 < ahead["staleness_max"] <= 1
    # Virtual time, the same on every machine.
    assert ahead["samples_per_s"] > 1.5 * synchronous["samples_per_s"]
    assert all(row["controller_cpu_s"] > 0 and row["top"] for row in rows)


def test_servers_that_pass_no_weights_on_take_them_all_at_one_time() -> None:
    """The simulated ones: one after another they would wait 4 s of a step for each server."""
    options = ("--servers", "4", "32", "--samples-per-server", "16", "--staleness", "0", "--steps", "1", "--json")
    few, many = json.loads(run("async_fleet.py", *options).splitlines()[-1])
    # Virtual time, the same on every machine: 103 s more for the longest of more answers, or 221 s one after another.
    assert many["step_s"] < few["step_s"] + 150


def test_weight_relay() -> None:
    rows = json.loads(run("weight_relay.py", "--quick", "--json").splitlines()[-1])
    assert [row["servers"] for row in rows if row["how"] == "measured"] == [1, 3]
    size = rows[0]["weights_mb"]
    for row in rows:
        assert row["direct_mb"] == pytest.approx(row["servers"] * size)
        assert row["relay_mb"] == pytest.approx(min(2, row["servers"]) * size)
    simulated = {row["servers"]: row for row in rows if row["how"] == "simulated"}
    assert simulated[48]["relay_s"] < 0.5 * simulated[48]["direct_s"]


def test_startup() -> None:
    found = quick("startup.py")
    assert {"rollout", "trainer", "argosy train"} < found.keys()
    assert all(row["cpu_s"] > 0 and row["wall_s"] > 0 for row in found.values())
