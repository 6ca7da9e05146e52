"""Resuming, and what must not move because of something else."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from argosy.cli.main import main
from argosy.config import load
from argosy.controller.control import RunControl
from argosy.controller.prepare import PreparedRun
from argosy.controller.run import Run
from argosy.modeling.tiny import save_tiny_model
from argosy.telemetry.traces import Tracing
from argosy.types.errors import StateError, UnavailableError
from support.toy import ToyJob, write_rows

pytestmark = pytest.mark.xdist_group("resume")


def train(toy_job: ToyJob, run: str, *overrides: str) -> int:
    """The job in this process."""
    words = toy_job.command(run, "argosy.placement=inprocess", *overrides)
    return main(words[words.index("train") :])


@pytest.fixture(scope="module")
def finished(toy_job: ToyJob) -> Path:
    """A run of four steps without validation, its checkpoints kept."""
    assert train(toy_job, "four", "trainer.total_training_steps=4", "trainer.save_freq=2") == 0
    return toy_job.folder / "four"


def copied(toy_job: ToyJob, finished: Path, run: str) -> None:
    shutil.copytree(finished, toy_job.folder / run)


def test_a_run_goes_on_from_its_copy_where_nothing_else_of_it_is(
    toy_job: ToyJob, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the unbroken one, bit for bit; and its books can be read from the copies."""
    url = f"file://{tmp_path}/far"
    copied = ("trainer.total_training_steps=4", "trainer.save_freq=2", f"trainer.default_hdfs_dir={url}")
    assert train(toy_job, "copied", *copied) == 0
    assert toy_job.trained("copied") == toy_job.trained("four")
    [newest] = (tmp_path / "far" / "copies").glob("*.step_000000004.json")
    newest.unlink()  # as if the machine was lost while it sent this one
    shutil.rmtree(toy_job.folder / "copied")
    assert train(toy_job, "taken-over", *copied) == 0
    assert toy_job.trained("taken-over") == toy_job.trained("four")
    shown = capsys.readouterr()
    assert "global_step_2" in shown.out + shown.err, "where it goes on from"
    assert {path.name for path in (tmp_path / "far" / "copies").iterdir()} == {
        "gen_00001.step_000000002.json", "gen_00002.step_000000004.json"
    }  # fmt: skip
    assert main(["ledger", url, "--check"]) == 0
    assert main(["ledger", url, "--step", "4"]) == 0
    assert main(["ledger", str(toy_job.folder / "taken-over"), "--check"]) == 0


def test_d14_validation_in_between_does_not_move_training(toy_job: ToyJob, finished: Path) -> None:
    assert train(toy_job, "validated", "trainer.total_training_steps=4", "trainer.test_freq=1") == 0
    assert toy_job.trained("validated") == toy_job.trained("four")
    lines = (toy_job.folder / "validated" / "metrics.jsonl").read_text().splitlines()
    validated = [json.loads(line) for line in lines if "val-core" in line]
    assert len(validated) == 5  # before the first step and after each
    assert {row["step"] for row in validated} == {0, 1, 2, 3, 4}


def test_d14_validation_beside_training_does_not_move_it(toy_job: ToyJob) -> None:
    """Completions, weights and what the held-out prompts give are the same, bit for bit, wherever validation runs."""
    made = []
    for overlap in ("false", "true"):
        folder = toy_job.folder / f"overlap-{overlap}"
        code = train(
            toy_job, folder.name, "trainer.total_training_steps=3", "trainer.test_freq=1",
            f"argosy.validation_overlap={overlap}", f"trainer.rollout_data_dir={folder}/rollouts",
            f"trainer.validation_data_dir={folder}/validations",
        )  # fmt: skip
        assert code == 0
        files = [
            *sorted(folder.glob("rollouts/*")),
            *sorted(folder.glob("validations/*")),
            *folder.glob("hf/*.safetensors"),
        ]
        made.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert len(made[0]) == 3 + 4 + 1
    assert made[0] == made[1]
    assert toy_job.trained("overlap-true") == toy_job.trained("overlap-false")


def test_h5_auto_goes_on_and_says_so(toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(toy_job, finished, "more")
    assert train(toy_job, "more", "trainer.total_training_steps=6") == 0
    assert "resumed from" in capsys.readouterr().out
    assert [row["step"] for row in toy_job.metrics("more")] == [1, 2, 3, 4, 5, 6]


def test_h5_explicit_path_starts_there_in_a_new_lineage(toy_job: ToyJob, finished: Path) -> None:
    copied(toy_job, finished, "back")
    folder = toy_job.folder / "back"
    code = train(
        toy_job, "back", "trainer.total_training_steps=4",
        "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}/global_step_2",
    )  # fmt: skip
    assert code == 0
    assert toy_job.trained("back") == toy_job.trained("four"), "the same steps again, bit for bit"
    versions = [json.loads((toy_job.folder / run / "report.json").read_text())["version"] for run in ("four", "back")]
    assert [version.split("@")[0] for version in versions] == ["l0", "l1"], "a number never names two weights"
    digests = {version.split("#")[1] for version in versions}
    assert len(digests) == 1
    assert len(list((folder / "ledger" / "abandoned").rglob("step_*.jsonl.gz"))) == 2


def test_h5_nothing_left_to_do(toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(toy_job, finished, "done")
    assert train(toy_job, "done", "trainer.total_training_steps=4") == 2
    assert "nothing to do" in capsys.readouterr().err


def test_h5_checkpoint_of_another_model(
    toy_job: ToyJob, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "other-model")
    save_tiny_model(tmp_path / "bigger", hidden_size=128)
    code = train(
        toy_job, "other-model", "trainer.total_training_steps=6", f"actor_rollout_ref.model.path={tmp_path}/bigger"
    )
    err = capsys.readouterr().err
    assert code != 0
    assert "embed_tokens" in err
    assert "Traceback" not in err


def test_c13_other_data_is_noticed(
    toy_job: ToyJob, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "other-data")
    write_rows(tmp_path / "other.jsonl", [f"different {i}" for i in range(24)])
    code = train(toy_job, "other-data", "trainer.total_training_steps=6", f"data.train_files={tmp_path}/other.jsonl")
    assert code == 2
    assert "data" in capsys.readouterr().err


def test_e3_damaged_checkpoint_is_refused_by_name(
    toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "damaged")
    victim = max((toy_job.folder / "damaged" / "global_step_4" / "actor").rglob("*"), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    assert train(toy_job, "damaged", "trainer.total_training_steps=6") != 0
    assert f"{victim.name} has" in capsys.readouterr().err


def test_h9_learning_rate_zero_shows(toy_job: ToyJob) -> None:
    assert train(toy_job, "still", "trainer.total_training_steps=1", "actor_rollout_ref.actor.optim.lr=0") == 0
    [row] = toy_job.metrics("still")
    assert row["actor/grad_norm"] > 0
    assert row["training/trained_tokens"] > 0
    shares = {name: value for name, value in row.items() if "changed" in name}
    assert shares
    assert set(shares.values()) == {0.0}


def test_an_interrupted_run_without_a_checkpoint_starts_again(
    toy_job: ToyJob, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sample ids are places in the data: what an earlier life had drawn must not count as drawn twice."""
    from argosy.controller.stages import assemble
    from argosy.controller.stages.advantage import add_advantages

    calls = []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("pulled the plug")
        return add_advantages(*args)

    monkeypatch.setattr(assemble, "add_advantages", failing)
    assert train(toy_job, "plug", "trainer.total_training_steps=4") == 1
    monkeypatch.undo()
    assert train(toy_job, "plug", "trainer.total_training_steps=4") == 0
    assert toy_job.trained("plug") == toy_job.trained("four")


def test_resume_path_of_another_folder_starts_a_run_of_its_own(toy_job: ToyJob, finished: Path) -> None:
    code = train(
        toy_job, "fork", "trainer.total_training_steps=4",
        "trainer.resume_mode=resume_path", f"trainer.resume_from_path={finished}/global_step_2",
    )  # fmt: skip
    assert code == 0
    assert toy_job.trained("fork") == toy_job.trained("four")[2:]
    reports = [json.loads((toy_job.folder / run / "report.json").read_text()) for run in ("four", "fork")]
    assert reports[0]["run_id"] != reports[1]["run_id"]
    assert (finished / "global_step_4").exists()


def test_held_out_steps_are_those_of_the_weights(toy_job: ToyJob) -> None:
    code = train(
        toy_job, "labels", "trainer.total_training_steps=3", "trainer.val_before_train=False", "trainer.test_freq=2"
    )
    assert code == 0
    report = json.loads((toy_job.folder / "labels" / "report.json").read_text())
    assert (report["before"]["step"], report["after"]["step"]) == (2, 3)


def test_rewards_need_not_be_shares(toy_job: ToyJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return -2.5\n")
    code = train(
        toy_job, "negative", "trainer.total_training_steps=1", "trainer.test_freq=1",
        f"custom_reward_function.path={reward}",
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    assert "-2.500" in capsys.readouterr().out


def test_g11_validation_that_can_not_be_judged_is_a_failure(
    toy_job: ToyJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(  # it bears the answer that is made up before a run, and nothing that a model says
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if ground_truth in solution_str: return 1.0\n"
        "    raise RuntimeError('verifier is down')\n"
    )
    code = train(toy_job, "unjudged", "trainer.val_only=True", f"custom_reward_function.path={reward}")
    err = capsys.readouterr().err
    assert code == 1
    assert "verifier is down" in err
    assert "Traceback" not in err


def test_a_run_under_way_keeps_its_configuration(toy_job: ToyJob, finished: Path) -> None:
    from argosy.controller.launch.lock import RunFolderLock

    copied(toy_job, finished, "busy")
    before = (toy_job.folder / "busy" / "config.yaml").read_bytes()
    lock = RunFolderLock(toy_job.folder / "busy")
    lock.acquire()
    try:
        assert train(toy_job, "busy", "trainer.total_training_steps=9") == 1
    finally:
        lock.release()
    assert (toy_job.folder / "busy" / "config.yaml").read_bytes() == before


def test_a_run_that_ends_meanwhile_is_not_done_again(toy_job: ToyJob, finished: Path) -> None:
    copied(toy_job, finished, "late")
    words = toy_job.command("late", "argosy.placement=inprocess", "trainer.total_training_steps=6")
    early = PreparedRun(load(words[words.index("train") + 1 :]))  # as a second start, while the first is at its end
    assert train(toy_job, "late", "trainer.total_training_steps=5", "trainer.save_freq=5") == 0
    before = (toy_job.folder / "late" / "config.yaml").read_bytes()
    with pytest.raises(StateError, match=r"another run has saved .*global_step_5 .* the same command again"):
        asyncio.run(Run(early, Console(), Tracing(None)).execute(RunControl(early.run_id, early.total_steps)))
    assert [row["step"] for row in toy_job.metrics("late")] == [1, 2, 3, 4, 5]
    assert (toy_job.folder / "late" / "config.yaml").read_bytes() == before


def wait_for_steps(toy_job: ToyJob, run: str, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(toy_job.metrics(run)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_h6_the_first_signal_saves_what_is_finished(toy_job: ToyJob, number: signal.Signals) -> None:
    """Steps that no checkpoint has are not done again, and the run that goes on is the unbroken one."""
    run, common = f"stopped-{number.name}", ("argosy.placement=inprocess", "trainer.val_before_train=False")
    process = toy_job.start(run, *common, "trainer.total_training_steps=100000")
    wait_for_steps(toy_job, run, 2, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    last = toy_job.metrics(run)[-1]["step"]
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}: the last checkpoint is {toy_job.folder}/{run}/global_step_{last}; " in err
    assert "the same command resumes from it" in err
    assert main(["ledger", str(toy_job.folder / run), "--check"]) == 0
    assert train(toy_job, run, *common, f"trainer.total_training_steps={last + 1}") == 0
    rows = (toy_job.folder / run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows if "training/global_step" in row] == list(range(1, last + 2))
    assert not (toy_job.folder / run / "metrics.abandoned.jsonl").exists(), "no step was done twice"


def test_h8_the_error_names_the_checkpoint_to_go_on_from(
    toy_job: ToyJob, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argosy.controller.stages import learn

    def dies(*args: Any) -> Any:
        raise UnavailableError("trainer-0 can't be reached")

    copied(toy_job, finished, "trainer-died")
    monkeypatch.setattr(learn, "update_policy", dies)
    assert train(toy_job, "trainer-died", "trainer.total_training_steps=6") == 1
    err = capsys.readouterr().err
    assert "trainer-0 can't be reached" in err
    folder = toy_job.folder / "trainer-died"
    assert f"The last checkpoint is {folder}/global_step_4; the same command resumes from it." in err


def test_damaged_manifest_is_one_message(toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(toy_job, finished, "torn")
    (toy_job.folder / "torn" / "global_step_4" / "manifest.json").write_text('{"step": 4, "fil')
    assert train(toy_job, "torn", "trainer.total_training_steps=6") != 0
    err = capsys.readouterr().err
    assert "manifest.json can't be read" in err
    assert "Traceback" not in err
