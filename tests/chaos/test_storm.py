"""A seeded storm of faults over one real run: nothing is lost or done twice, nothing is left, and the policy learns.

`ARGOSY_FAULTS` sets how many faults there are (`make chaos`), `ARGOSY_STORM` the seed, `ARGOSY_ONLY` a word that the
wanted faults have in their names. Recoveries are told in a table, and in a line for `support.storm.table`; the bounds
that are asserted are hang guards only.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment, steps_in
from support.etcd_cluster import EtcdCluster, etcd_cluster
from support.storm.faults import DISK_FULL, schedule
from support.storm.live import LiveRun, processes_of, until
from support.storm.table import line, table
from support.storm.trouble import small_disk
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("storm")]

COUNT = int(os.environ.get("ARGOSY_FAULTS", "5"))
SEED = int(os.environ.get("ARGOSY_STORM", "29"))
ONLY = os.environ.get("ARGOSY_ONLY", "")
OVERRIDES = (
    "trainer.total_training_steps=100000", "trainer.val_before_train=False", "trainer.test_freq=-1",
    "trainer.save_freq=10", "trainer.max_actor_ckpt_to_keep=2", "trainer.logger=[file]", "argosy.export_hf=false",
    "argosy.deterministic=false", "argosy.max_staleness=1", "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.actor.optim.lr=2e-3", "data.max_response_length=24", "argosy.rollout.slot_count=16",
    "argosy.pools={main: {count: 2}}", "argosy.restart.limit=100000", "argosy.rpc.deadline_s=20",
    "custom_reward_function.path=null", "argosy.membership.lease_ttl_s=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    made = make_toy_job(tmp_path_factory.mktemp("storm"))
    function = {"path": str(made.folder / "reward.py"), "name": "compute_score"}
    service = {"data_sources": ["*"], "count": 2, "custom_reward_function": function}
    text = json.dumps({"argosy": {"reward": {"services": {"letters": service}}}})
    (made.folder / "rewards.yaml").write_text(text)
    return made


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def disk(job: ToyJob) -> Iterator[Path | None]:
    with small_disk(job.folder / "disk") as mounted:
        yield mounted


@pytest.mark.timeout(300 + 60 * COUNT)
def test_a_storm_of_faults(
    job: ToyJob, etcd: EtcdCluster, disk: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LiveRun(job, "disk/storm", ("--config", f"{job.folder}/rewards.yaml", *OVERRIDES), etcd, disk)
    faults, source = schedule(SEED, COUNT, only=ONLY, without=[] if disk else [DISK_FULL])
    found: list[tuple[str, float]] = []
    began = time.monotonic()
    try:
        run.until_step()
        for fault in faults:
            time.sleep(source.uniform(0.0, 1.5))
            found.append((fault.name, fault.do(run, source)))
            with capsys.disabled():
                print(f"\n{len(found):4} {fault.name}: {found[-1][1]:.1f} s, step {run.step_count}", end="", flush=True)
        until(lambda: has_learnt(job), f"it has learnt\n{run.said}", pause_s=0.5)
        assert run.stop() == 130, run.said
    finally:
        run.process.kill()
        run.process.wait()
        seconds = time.monotonic() - began
        without = "" if disk else ", none of a full disk: this machine mounts nothing"
        with capsys.disabled():
            print(f"\n\n{len(found)} faults in {seconds:.0f} s, seed {SEED}{without}\n\n{table(found)}\n")
            print(line(found, SEED, seconds))
    until(lambda: processes_of(run.folder) == [], "all processes gone", 30)
    assert main(["ledger", str(run.folder), "--check"]) == 0
    books = run.folder / "ledger"
    rows = [row for step in steps_in(books) for row in read_segment(books, step)]
    trained = Counter(row["sample_id"] for row in rows if row["state"] == "trained")
    assert max(trained.values()) == 1
    assert len(trained) == 64 * len(steps_in(books)), "none lost"


def has_learnt(job: ToyJob) -> bool:
    scores = [row["critic/score/mean"] for row in job.metrics("disk/storm")]
    return len(scores) >= 10 and sum(scores[-5:]) > 1.2 * sum(scores[:5])
