"""Case G11 on a whole run: one of two reward servers is killed, and the run goes on with the other."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml

from chaos.test_run_ends import END_BOUND_S, ended, processes_of, start_and_wait, wait_until
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("chaos-reward"))


def two_replicas(job: ToyJob) -> tuple[str, ...]:
    path: Path = job.folder / "two.yaml"
    letters = {"count": 2, "custom_reward_function": {"path": f"{job.folder}/reward.py"}}
    path.write_text(yaml.safe_dump({"argosy": {"reward": {"services": {"letters": letters}}}}))
    return ("custom_reward_function.path=null", "argosy.restart.limit=0", "--config", str(path))


def test_g11_kill_nine_of_one_of_two_reward_servers_costs_no_sample(job: ToyJob) -> None:
    run = "g11"
    process = start_and_wait(job, run, *two_replicas(job))
    try:
        before = len(job.metrics(run))
        members: dict[str, psutil.Process] = processes_of(job.folder / run)
        members["reward-letters-0"].kill()
        wait_until(lambda: len(job.metrics(run)) >= before + 5 or process.poll() is not None, "five more steps")
        assert process.poll() is None, process.communicate()
        rows = job.metrics(run)
        assert all(row["reward/toy/failed"] == 0 for row in rows), "what the dead one had went to the other"
        assert all(row["reward/failed_fraction"] == 0 for row in rows)
        wait_until(lambda: job.metrics(run)[-1]["reward_service/letters/replicas"] == 1, "its lease to end", 60)
        # The last one is one too many: the run ends and names it.
        members["reward-letters-1"].kill()
        code, err = ended(process)
        assert code == 1, err
        assert "reward-letters-1 died: killed by SIGKILL" in err
    finally:
        process.kill()
    wait_until(lambda: processes_of(job.folder / run) == {}, "all processes gone", END_BOUND_S)
