"""Typed configuration with verl's key names. Importing it loads neither torch nor hydra.

    cfg = load(["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", ...])   # keys and types
    validate(cfg)                                                                         # sense, files
    cfg.save(cfg.run_folder / "config.yaml")
    load_resolved(path)                                                                   # in each service

Everything that is wrong is one `argosy.types.errors.ConfigError`: a line per problem.
"""

from argosy.config.load import load
from argosy.config.resolved import load_resolved
from argosy.config.schema import Config
from argosy.config.validate import find_problems, validate, validate_row_count

__all__ = ["Config", "find_problems", "load", "load_resolved", "validate", "validate_row_count"]
