"""Cases H6 and H8 on whole runs: whatever is killed, everything ends, says why, and the next run starts."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from argosy.cli.main import main
from support.storm.trouble import fill, small_disk
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

ENDLESS = ("trainer.total_training_steps=100000", "trainer.val_before_train=False")
END_BOUND_S = 90
OTHERS = ("reward", "reference", "critic")
"""Who is supervised in the same way as the trainer."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("chaos"))


def processes_of(folder: Path) -> dict[str, psutil.Process]:
    """Live processes whose command line names the run folder, by member id (or their program)."""
    found = {}
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            name = words[words.index("--member") + 1] if "--member" in words else Path(words[0]).name
            found[name] = process
    return found


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def start_and_wait(job: ToyJob, run: str, *overrides: str) -> subprocess.Popen[str]:
    process = job.start(run, *ENDLESS, *overrides)
    try:
        wait_until(lambda: len(job.metrics(run)) >= 1 or process.poll() is not None, "first step")
        assert process.poll() is None, process.communicate()
    except BaseException:
        process.kill()
        raise
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=END_BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still running {END_BOUND_S} s after") from None
    return process.returncode, err


@pytest.mark.parametrize(
    "member",
    ["trainer-0", "rollout-0", "etcd", *(pytest.param(f"{role}-0", marks=pytest.mark.soak) for role in OTHERS)],
)
def test_h8_a_dead_child_ends_the_run_and_is_named(job: ToyJob, member: str) -> None:
    """As long as it isn't to be started again."""
    run = f"h8-{member}"
    overrides = ["algorithm.adv_estimator=gae"] if member == "critic-0" else []
    process = start_and_wait(job, run, *overrides, "argosy.restart.limit=0")
    processes_of(job.folder / run)[member].kill()
    code, err = ended(process)
    assert code == 1, err
    assert f"{member} died: killed by SIGKILL" in err
    assert f"{member}.log" in err
    wait_until(lambda: processes_of(job.folder / run) == {}, "all processes gone", 20)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.soak)],
)
def test_h6_signals_end_everything(job: ToyJob, number: signal.Signals, expected: int) -> None:
    run = f"h6-{number.name}"
    process = start_and_wait(job, run)
    process.send_signal(number)
    code, err = ended(process)
    assert code == expected, err
    assert number.name in err
    wait_until(lambda: processes_of(job.folder / run) == {}, "all processes gone", 20)


def test_h6_kill_nine_of_the_launcher_and_start_again(job: ToyJob) -> None:
    process = start_and_wait(job, "h6-kill")
    process.kill()
    process.communicate()
    wait_until(lambda: processes_of(job.folder / "h6-kill") == {}, "all processes gone", 20)
    code, out, err = job.run("h6-kill", "trainer.total_training_steps=1", "trainer.val_before_train=False")
    assert code == 0, out + err


def test_h6_interrupt_at_start_up_twice(job: ToyJob) -> None:
    process = job.start("h6-start", *ENDLESS)
    wait_until(lambda: len(processes_of(job.folder / "h6-start")) >= 3, "children started")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 130, err
    wait_until(lambda: processes_of(job.folder / "h6-start") == {}, "all processes gone", 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_h6_e3_ended_in_a_save(job: ToyJob, number: signal.Signals) -> None:
    """A save that was under way is dropped whole; the same command goes on from the last complete checkpoint."""
    run = f"h6-save-{number.name}"
    folder = job.folder / run
    often = ("argosy.placement=inprocess", "trainer.val_before_train=False", "trainer.save_freq=1")
    process = job.start(run, *often, "trainer.total_training_steps=100000")

    def saving() -> bool:
        return len(job.metrics(run)) >= 2 and any(folder.glob(".global_step_*.partial"))

    deadline = time.monotonic() + 120
    while not saving():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    ended(process)
    wait_until(lambda: processes_of(folder) == {}, "all processes gone", 20)
    last = job.metrics(run)[-1]["step"]
    code, out, err = job.run(run, *often, f"trainer.total_training_steps={last + 2}")
    assert code == 0, out + err
    assert "resumed from" in out
    steps = [row["step"] for row in job.metrics(run)]
    assert steps == list(range(1, last + 3)), "no step is lost, none is there twice"
    assert not list(folder.glob(".global_step_*.partial"))


@pytest.mark.soak
def test_e3_a_full_disk_ends_a_run_in_words_and_the_same_command_goes_on(job: ToyJob) -> None:
    """A synchronous run with all that it has on one disk, its etcd's data too, which is killed besides."""
    often = ("trainer.save_freq=2", "trainer.max_actor_ckpt_to_keep=2", "trainer.logger=[file]")
    with small_disk(job.folder / "disk") as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        process = start_and_wait(job, "disk/run", *often)
        wait_until(lambda: len(job.metrics("disk/run")) >= 3 or process.poll() is not None, "a checkpoint")
        fill(disk / "ballast")
        processes_of(disk / "run")["etcd"].kill()
        code, err = ended(process)
        assert code == 1, err
        assert "error: no space left while writing" in err.replace("\n", " ")
        assert "the same command resumes from it" in err
        wait_until(lambda: processes_of(disk) == {}, "all processes gone", 20)
        (disk / "ballast").unlink()
        last = job.metrics("disk/run")[-1]["step"]
        code, out, err = job.run("disk/run", *ENDLESS, *often, f"trainer.total_training_steps={last + 2}")
        assert code == 0, out + err
        assert [row["step"] for row in job.metrics("disk/run")] == list(range(1, last + 3))
        assert main(["ledger", str(disk / "run"), "--check"]) == 0
