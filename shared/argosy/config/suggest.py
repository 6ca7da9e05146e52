"""What a user may have meant by a key that isn't there."""

from __future__ import annotations

import difflib
import functools

_OTHER_NAMES = {
    "learning_rate": "actor_rollout_ref.actor.optim.lr",
    "lr": "actor_rollout_ref.actor.optim.lr",
    "num_epochs": "trainer.total_epochs",
    "epochs": "trainer.total_epochs",
    "max_steps": "trainer.total_training_steps",
    "num_train_epochs": "trainer.total_epochs",
    "batch_size": "data.train_batch_size",
    "num_generations": "actor_rollout_ref.rollout.n",
    "group_size": "actor_rollout_ref.rollout.n",
    "model_path": "actor_rollout_ref.model.path",
    "model_name_or_path": "actor_rollout_ref.model.path",
    "model": "actor_rollout_ref.model.path",
    "max_new_tokens": "data.max_response_length",
    "max_completion_length": "data.max_response_length",
    "max_tokens": "data.max_response_length",
    "beta": "actor_rollout_ref.actor.kl_loss_coef",
    "kl_coef": "algorithm.kl_ctrl.kl_coef",
    "output_dir": "trainer.default_local_dir",
    "save_dir": "trainer.default_local_dir",
    "save_steps": "trainer.save_freq",
    "eval_steps": "trainer.test_freq",
    "report_to": "trainer.logger",
    "run_name": "trainer.experiment_name",
    "resume": "trainer.resume_mode",
    "resume_from_checkpoint": "trainer.resume_from_path",
    "warmup_steps": "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "max_grad_norm": "actor_rollout_ref.actor.grad_clip",
    "reward_function": "custom_reward_function.path",
    "dataset": "data.train_files",
    "files": "data.train_files",
}
"""What other trainers call it."""

_COUNTS = ("count", "servers", "num_servers", "server_count", "replicas", "num_replicas", "instances", "workers")
_COUNTED = {
    "rollout": "Rollout servers are counted by pool: 'argosy.pools={NAME: {count: 2}}' (docs/placement.md).",
    "reward": "Reward servers are counted by service: 'argosy.reward.services={NAME: {count: 2}}' "
    "(docs/rewards-services.md); argosy.reward.worker_count is the processes of one.",
    "trainer": "The trainer's processes are its ranks: trainer.n_gpus_per_node.",
}
"""Where one says how many servers of a role there are, which nobody's likeness to another key could tell."""

_SHOWN = 3


def suggest(path: str) -> str:
    """One sentence: the keys that come nearest, or where the list of keys is.

    >>> suggest("argosy.services.rollout.count")
    "Rollout servers are counted by pool: 'argosy.pools={NAME: {count: 2}}' (docs/placement.md)."
    """
    section, _, name = path.lower().rpartition(".")
    role = section.removeprefix("argosy.").removeprefix("services.")
    if name in _COUNTS and role in _COUNTED:
        return _COUNTED[role]
    found = nearest(path)
    if not found:
        return "`argosy config docs` lists every key."
    return f"Did you mean {' or '.join(found)}?"


def nearest(path: str) -> list[str]:
    """Up to three known keys, the likeliest first.

    >>> nearest("trainer.total-epochs")
    ['trainer.total_epochs']
    """
    wanted = path.lower().replace("-", "_")
    known = _known()
    if wanted in known:
        return [wanted]
    section, _, name = wanted.rpartition(".")
    elsewhere = [key for key in known if key.rpartition(".")[2] == name]
    if elsewhere:
        return _by_likeness(elsewhere, wanted)
    close = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in known}, n=_SHOWN, cutoff=0.75)
    close += difflib.get_close_matches(name, _OTHER_NAMES, n=1, cutoff=0.85)
    if not close:
        return difflib.get_close_matches(wanted, known, n=_SHOWN, cutoff=0.75)
    best = max(close, key=lambda other: difflib.SequenceMatcher(None, name, other).ratio())
    if best in _OTHER_NAMES and not section:
        return [_OTHER_NAMES[best]]
    candidates = [key for key in known if key.rpartition(".")[2] in close] or [_OTHER_NAMES[best]]
    ranked = _by_likeness(candidates, wanted)
    same_section = [key for key in ranked if key.rpartition(".")[0] == section]
    return same_section[:1] or ranked


def _by_likeness(keys: list[str], wanted: str) -> list[str]:
    other = _OTHER_NAMES.get(wanted)
    if other:
        return [other]
    ranked = sorted(keys, key=lambda key: -difflib.SequenceMatcher(None, wanted, key).ratio())
    return ranked[:_SHOWN]


@functools.cache
def _known() -> tuple[str, ...]:
    """Every key that does something here, then those that the table knows."""
    from argosy.config.convert import leaves
    from argosy.config.keys import HONOURED, WARNED

    ours = [path for path, _ in leaves()]
    named = [path for path in [*HONOURED, *WARNED] if not path.endswith(".*")]
    return tuple(dict.fromkeys([*ours, *named]))
