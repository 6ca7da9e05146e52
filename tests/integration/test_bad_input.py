"""Bad input: one clear message with what to do, a non-zero exit, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.cli.main import main
from support.toy import ToyJob, write_rows

INPROCESS = ("argosy.placement=inprocess", "trainer.total_training_steps=2", "trainer.val_before_train=False")


@pytest.fixture
def attempt(toy_job: ToyJob, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command line; gives exit code and what was printed last on stderr."""

    def run(*overrides: str) -> tuple[int, str]:
        words = toy_job.command("unused", f"trainer.default_local_dir={tmp_path}/run", *INPROCESS, *overrides)
        code = main(words[words.index("train") :])
        return code, capfd.readouterr().err

    return run


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("algorithm.adv_estimater=grpo", ["algorithm.adv_estimater", "algorithm.adv_estimator"]),
        ("data.train_files=/no/such/file.parquet", ["data.train_files", "/no/such/file.parquet"]),
        ("actor_rollout_ref.model.path=/no/such/model", ["actor_rollout_ref.model.path", "/no/such/model"]),
        ("data.train_batch_size=4000", ["4000", "40"]),
        ("data.max_prompt_length=5", ["data.max_prompt_length"]),
        ("trainer.resume_mode=resume_path trainer.resume_from_path=/no/such/dir", ["/no/such/dir"]),
        ("custom_reward_function.path=/no/such/reward.py", ["/no/such/reward.py"]),
        ("custom_reward_function.name=not_there", ["not_there"]),
        ("algorithm.adv_estimator=gaee", ["algorithm.adv_estimator", "gaee", "grpo"]),
        ("algorithm.adv_estimator=gae critic.enable=false", ["gae", "critic"]),
        ("actor_rollout_ref.rollout.n=1", ["rollout.n"]),
        ("actor_rollout_ref.rollout.temperature=-1", ["temperature"]),
    ],
)
def test_wrong_values(attempt: Callable[..., tuple[int, str]], override: str, expected: list[str]) -> None:
    code, err = attempt(*override.split(" "))
    assert code == 2, err
    assert "Traceback" not in err
    for words in expected:
        assert words in err


def test_wrong_columns(attempt: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"question": "2+2", "answer": "4"}) + "\n")
    code, err = attempt(f"data.train_files={path}")
    assert code == 2
    assert "prompt" in err
    assert "bad.jsonl" in err


def test_empty_file(attempt: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    code, err = attempt(f"data.train_files={path}")
    assert code == 2
    assert "empty.jsonl" in err


@pytest.mark.parametrize(
    ("missing", "expected"), [("tokenizer.json", "tokenizer"), ("chat_template.jinja", "chat template")]
)
def test_model_folder_lacks_a_part(
    attempt: Callable[..., tuple[int, str]], toy_job: ToyJob, tmp_path: Path, missing: str, expected: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(toy_job.folder / "model", model)
    (model / missing).unlink()
    code, err = attempt(f"actor_rollout_ref.model.path={model}")
    assert code == 2, err
    assert expected in err.lower()
    assert "Traceback" not in err


def test_unknown_data_source(attempt: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(path, [f"q {i}" for i in range(8)])
    code, err = attempt(f"data.train_files={path}", "custom_reward_function.path=null")
    assert code == 2
    assert "'toy'" in err
    assert "custom_reward_function" in err


@pytest.mark.parametrize(
    ("body", "expected"),
    [("raise ZeroDivisionError('boom')", "boom"), ("return 'excellent'", "excellent"), ("return float('nan')", "nan")],
)
@pytest.mark.parametrize("always", [True, False])
def test_reward_function_that_fails_stops_the_run(
    attempt: Callable[..., tuple[int, str]], tmp_path: Path, body: str, expected: str, always: bool
) -> None:
    """At its start; one that fails for what the policy says, after the first step."""
    path = tmp_path / "reward.py"
    if not always:
        body = f"if 'boxed' in solution_str: return 0.0\n    {body}"
    path.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")
    code, err = attempt(f"custom_reward_function.path={path}")
    assert code == (2 if always else 1)
    assert ("made-up answers failed" if always else "could not be judged") in err
    assert "Traceback" not in err
    assert expected in err.lower()


def test_run_folder_is_in_use(attempt: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    from argosy.controller.launch.lock import RunFolderLock

    lock = RunFolderLock(tmp_path / "run")
    lock.acquire()
    try:
        code, err = attempt()
    finally:
        lock.release()
    assert code == 1
    assert "another run" in err


def test_run_folder_can_not_be_made(attempt: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = attempt(f"trainer.default_local_dir={tmp_path}/file/run")
    assert code != 0
    assert "file/run" in err
    assert "Traceback" not in err


def test_a_port_that_is_taken(attempt: Callable[..., tuple[int, str]]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, err = attempt("argosy.placement=local", f"argosy.reward.port={port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in err
    assert "taken" in err


def test_an_endpoint_that_could_not_open(
    attempt: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Told before anything starts, though the endpoint opens only after the first validation."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    endpoint = ("argosy.openai.enable=true", "trainer.val_before_train=True")
    code, err = attempt(*endpoint, "argosy.openai.api_key_env=NO_SUCH_KEY")
    assert code == 2
    assert "NO_SUCH_KEY is not set: export it" in err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, err = attempt(*endpoint, f"argosy.openai.port={taken.getsockname()[1]}")
    assert code == 1
    assert "argosy.openai.port: can't listen" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "config.yaml").exists(), "no service was started"


def test_etcd_absent(attempt: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, err = attempt("argosy.placement=local", f"argosy.membership.etcd_binary={tmp_path}/no-etcd")
    assert code != 0
    assert "no-etcd" in err
    monkeypatch.setenv("PATH", str(tmp_path))
    code, err = attempt("argosy.placement=local", "argosy.membership.endpoints=[127.0.0.1:1]")
    assert code != 0
    assert "etcd" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "run" / "logs").glob("trainer-*")), "nothing was started that would wait for it"


def test_disk_full_keeps_the_last_checkpoint(toy_job: ToyJob, tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the save fails, says so, and the old checkpoint is whole."""
    if os.name != "posix":
        pytest.skip("needs resource limits")
    run = str(tmp_path / "run")
    words = (f"trainer.default_local_dir={run}", "argosy.placement=inprocess", "trainer.val_before_train=False")
    code, out, err = toy_job.run("unused", *words, "trainer.total_training_steps=2", "trainer.save_freq=1")
    assert code == 0, out + err
    before = (tmp_path / "run" / "global_step_2" / "manifest.json").read_bytes()
    limited = toy_job.command("unused", *words, "trainer.total_training_steps=4", "trainer.save_freq=1")
    import resource
    import subprocess

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    result = subprocess.run(limited, capture_output=True, text=True, preexec_fn=limit, check=False, timeout=180)
    assert result.returncode == 1, result.stdout + result.stderr
    error, hint = result.stderr.strip().splitlines()[-2:]
    assert "argosy: error" in error
    assert f"{Path(run) / 'global_step_2'}; the same command resumes from it" in hint
    assert (tmp_path / "run" / "global_step_2" / "manifest.json").read_bytes() == before
    assert not (tmp_path / "run" / "global_step_3").exists()
