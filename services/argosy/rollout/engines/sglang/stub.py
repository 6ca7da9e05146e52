"""A torchvision without content.

SGLang imports torchvision at its start, for models with images. PyPI's torchvision is of another build than the CPU's
torch and breaks imports; where none is installed, this stands in: every name is a class that can't be used.
"""

from __future__ import annotations

from pathlib import Path

_MODULES = ("", "io", "ops", "transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional")
_TEXT = '''"""Stands in for torchvision, which is not installed: names can be imported and not used."""

__version__ = "0.0.0"


class _Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"torchvision is not installed: no {name}")

    return _Names(name, (), {"__init__": refuse})
'''


def write_stub(folder: Path) -> Path:
    """Write the package into `folder`, which then goes on PYTHONPATH; returns the folder."""
    for module in _MODULES:
        package = folder / "torchvision" / module
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(_TEXT, encoding="utf-8")
    return folder
