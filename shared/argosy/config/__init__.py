"""Typed configuration with verl's key names. Importing it loads neither torch nor hydra.

`load(overrides)` makes a Config from what is typed; `load_resolved(path)` reads back what `Config.save` wrote.
"""

from argosy.config.resolved import load_resolved
from argosy.config.schema import Config

__all__ = ["Config", "load_resolved"]
