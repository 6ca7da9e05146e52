"""Every algorithm trains the tiny model through real services: one fleet of processes, one short run per case.

The starting weights, the prompts and the sampling noise are the same in every case. A random model writes letters of
the alphabet's first half about one time in twenty; that share is the reward.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from argosy.algorithms.catalog import ADVANTAGES, AGGREGATION, LOSSES, ROLLOUT_CORRECTION
from support.shared_fleet import SharedFleet, shared_fleet
from support.toy import make_toy_job, write_rows

pytestmark = pytest.mark.xdist_group("algorithms")

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"
GRPO = "algorithm.adv_estimator=grpo"
ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"

REWARD_SOURCE = """
GOOD = set("abcdefghijklm")

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    share = sum(c in GOOD for c in solution_str) / max(len(solution_str), 1)
    early = sum(c in GOOD for c in solution_str[:4]) / 4
    score = float(share * 8 >= 2) if ground_truth == "two" else share
    return {"score": score, "share": share, "early": early}
"""


@dataclass(frozen=True)
class Case:
    """A run, and what must come of it."""

    overrides: tuple[str, ...]
    recipe: str | None = None
    seen: tuple[str, ...] = ()
    """Metrics that tell that this algorithm was at work: none is 0 in every step."""
    gain: float = 1.6
    """Times the first step's share of letters that the last two steps must reach."""
    steps: int = 6


def estimators() -> dict[str, Case]:
    """Each estimator under the vanilla loss."""
    more: dict[str, tuple[str, ...]] = {
        "gae": ("algorithm.lam=0.95", "critic.optim.lr=3e-3", "critic.ppo_epochs=2"),
        "gdpo": ("algorithm.gdpo_reward_keys=[share,early]",),
    }
    return {
        name: Case((f"algorithm.adv_estimator={name}", *more.get(name, ())), steps=9 if name == "remax" else 6)
        for name in ADVANTAGES
    }


def losses() -> dict[str, Case]:
    """Each policy loss on GRPO's advantages, two optimizer steps on each batch."""
    ways = {"bypass_mode": (f"{CORRECTION}.bypass_mode=true",)}
    return {name: Case((GRPO, *ways.get(name, (f"{LOSS_MODE}={name}",))), seen=("actor/pg_loss",)) for name in LOSSES}


def corrections() -> dict[str, Case]:
    """Importance weights and rejection, each name of the catalog once.

    The engine runs in bfloat16, the trainer in float32: log-ratios of a token spread by about 1e-3, so do thresholds.
    """
    weights, rejection = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_rs"

    def rejecting(names: str, thresholds: str) -> Case:
        words = (GRPO, f"{rejection}='{names}'", f"{rejection}_threshold='{thresholds}'")
        return Case(words, seen=("rollout_corr/rollout_rs_masked_fraction",))

    return {
        "token": Case((GRPO, f"{weights}=token"), seen=("rollout_corr/rollout_is_std",)),
        "icepop": Case(
            (GRPO, f"{weights}=token", f"{weights}_threshold=0.998_1.002"), seen=("rollout_corr/rollout_is_oob_ratio",)
        ),
        "sequence": Case(
            (GRPO, f"{weights}=sequence", f"{weights}_batch_normalize=true"),
            seen=("rollout_corr/rollout_is_seq_max_deviation",),
        ),
        "token_rejection": rejecting("token_k1,token_k2,token_k3", "0.9985_1.0015,2e-6,2e-6"),
        "sum_rejection": rejecting("seq_sum_k1,seq_sum_k2,seq_sum_k3", "0.997_1.003,4e-6,4e-6"),
        "mean_rejection": rejecting("seq_mean_k1,seq_mean_k2,seq_mean_k3", "0.9992_1.0008,2e-6,2e-6"),
        "max_rejection": rejecting("seq_max_k2,seq_max_k3", "3e-6,3e-6"),
        "bypass_reinforce": Case(
            (GRPO, f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.loss_type=reinforce", f"{weights}=token"),
            seen=("actor/pg_loss",),
        ),
    }


def leashes() -> dict[str, Case]:
    """KL as a loss and in the reward, and the aggregations."""
    kl = (GRPO, f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.01")
    in_reward = (GRPO, "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive")
    cases = {f"kl_loss_{kind}": Case((*kl, f"{ACTOR}.kl_loss_type={kind}"), seen=("actor/kl_loss",)) for kind in KINDS}
    cases["kl_in_reward"] = Case((*in_reward, "algorithm.kl_penalty=low_var_kl"), seen=("actor/reward_kl_penalty",))
    return cases | {name: Case((GRPO, f"{ACTOR}.loss_agg_mode={name}")) for name in AGGREGATION}


KINDS = ("k1+", "abs", "k2", "low_var_kl", "k3+")

SMALL = (
    "data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=8",
    f"{ACTOR}.ppo_mini_batch_size=2", f"{ROLLOUT}.n=8", f"{ACTOR}.optim.lr=1e-2", f"{ACTOR}.optim.lr_warmup_steps=0",
)  # fmt: skip


def recipes() -> dict[str, Case]:
    """examples/recipes on a small scale."""
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    filtered = ("data.train_files={folder}/two.jsonl", "data.gen_batch_size=6", f"{buffer}.len=4", f"{buffer}.log=true")
    alone = ("data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=16", f"{ROLLOUT}.n=1")
    critic = ("critic.ppo_mini_batch_size=16", "critic.optim.lr=3e-3")
    return {
        "recipe_dapo": Case(filtered, "dapo", ("filter_groups/flat_groups", "reward/overlong_reward/mean")),
        "recipe_dr_grpo": Case((), "dr_grpo"),
        "recipe_grpo": Case((), "grpo", ("actor/kl_loss",)),
        "recipe_remax": Case(alone, "remax", ("critic/baseline/mean",), steps=14),
        "recipe_ppo": Case((*alone, *critic), "ppo", ("critic/vf_loss", "actor/reward_kl_penalty"), steps=8),
    }


CASES: dict[str, Case] = (
    {f"advantage_{name}": case for name, case in estimators().items()}
    | {f"loss_{name}": case for name, case in losses().items()}
    | {f"correction_{name}": case for name, case in corrections().items()}
    | leashes()
    | recipes()
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedFleet]:
    folder = tmp_path_factory.mktemp("algorithms")
    make_toy_job(folder)
    (folder / "reward.py").write_text(REWARD_SOURCE)
    write_rows(folder / "two.jsonl", [f"say something {i}" for i in range(200)], ground_truth="two")
    base = [
        *SMALL, f"actor_rollout_ref.model.path={folder}/model", f"data.train_files={folder}/train.jsonl",
        f"custom_reward_function.path={folder}/reward.py", f"{ACTOR}.use_dynamic_bsz=true",
        "trainer.val_before_train=false", "trainer.test_freq=-1",
        "trainer.logger=[]", "argosy.rollout.dtype=bfloat16",
    ]  # fmt: skip
    everything = ("algorithm.adv_estimator=gae", f"{ACTOR}.use_kl_loss=true", "critic.optim.lr=3e-3")
    async with shared_fleet(base, *everything, folder=folder) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", sorted(CASES))
async def test_it_learns(fleet: SharedFleet, name: str) -> None:
    case = CASES[name]
    recipe = None if case.recipe is None else RECIPES / f"{case.recipe}.yaml"
    words = [word.replace("{folder}", str(fleet.folder)) for word in case.overrides]
    rows = await fleet.train(*words, f"trainer.total_training_steps={case.steps}", recipe=recipe)
    shares = [row["reward/share/mean"] for row in rows]
    assert len(shares) == case.steps
    assert sum(shares[-2:]) / 2 > case.gain * shares[0], shares
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    assert [metric for metric in case.seen if not any(row[metric] for row in rows)] == []


def test_nothing_is_left_out() -> None:
    assert {f"advantage_{name}" for name in ADVANTAGES} <= set(CASES)
    assert {f"loss_{name}" for name in LOSSES} <= set(CASES)
    words = " ".join(word for case in CASES.values() for word in case.overrides)
    assert [name for name in ROLLOUT_CORRECTION if name not in words] == []
    assert {path.stem for path in RECIPES.glob("*.yaml")} == {case.recipe for case in CASES.values() if case.recipe}
