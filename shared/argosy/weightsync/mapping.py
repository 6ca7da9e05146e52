"""Names and layouts of a trainer's tensors ↔ those of an engine that holds them in another form, declared as data.

Trainers send Hugging Face names. An engine may hold other names (a prefix), several of them as the rows of one tensor
(q, k and v; gate and up), one of them as several, more rows than there are tokens (a padded vocabulary), or a second
copy of a tied one. `NameMap` says which rows of which tensor are which, and moves values both ways without rounding:

>>> import torch
>>> rules = [Fuse("attn.qkv", ("attn.q", "attn.k", "attn.v"), sizes=(4, 2, 2)), Pad("embed.weight", rows=5)]
>>> held = {"attn.qkv.weight": torch.arange(16.0).reshape(8, 2), "embed.weight": torch.zeros(8, 3)}
>>> names = NameMap.build(held, rules)
>>> {name: tuple(tensor.shape) for name, tensor in names.to_trainer(held).items()}
{'attn.q.weight': (4, 2), 'attn.k.weight': (2, 2), 'attn.v.weight': (2, 2), 'embed.weight': (5, 3)}

For engines to come: those that are here take the trainer's names as they are. `names.shapes` and `names.tied` are what
such an engine's ModelFacts would tell of its model, so that `check_manifest` refuses what does not fit before the first
byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from argosy.types.errors import CorruptDataError, InvalidInputError
from argosy.weightsync.manifest import TensorShape
from argosy.weightsync.mapping_rules import Fuse, Pad, Rename, Rule, Split, Tie, Window, apply_rules, llama_fused

if TYPE_CHECKING:
    import torch

__all__ = ["Fuse", "NameMap", "Pad", "Rename", "Rule", "Split", "Tie", "Window", "llama_fused"]


class Shaped(Protocol):
    """A tensor, or what is told of one (TensorShape, TensorSpec)."""

    @property
    def shape(self) -> Sequence[int]:
        """Extents."""
        ...

    @property
    def dtype(self) -> object:
        """torch's, or its name."""
        ...


class NameMap:
    """Which rows of which engine tensor are which rows of which trainer tensor; made by `build`.

    Attributes:
        shapes: What the trainer sends, by name, tied names included.
        tied: The trainer's redundant name → owner name.
        windows: All correspondences; those of an engine's second copy of a tied tensor included.
    """

    def __init__(
        self,
        held: Mapping[str, TensorShape],
        shapes: Mapping[str, TensorShape],
        tied: Mapping[str, str],
        windows: Sequence[Window],
    ) -> None:
        self._held = dict(held)
        self.shapes = dict(shapes)
        self.tied = dict(tied)
        self.windows = tuple(windows)

    @classmethod
    def build(cls, held: Mapping[str, Shaped], rules: Iterable[Rule] = ()) -> NameMap:
        """Apply rules to an engine's tensors (or their shapes).

        Raises:
            InvalidInputError: a rule fits no tensor, sizes don't add up, a part is missing, two tensors get one name.
        """
        return cls(*apply_rules({name: shape_of(tensor) for name, tensor in held.items()}, tuple(rules)))

    def to_trainer(self, held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The trainer's tensors out of an engine's: views where rows lie together, else copies; tied names share.

        Raises:
            InvalidInputError: a tensor is missing or of another shape than at `build`.
            CorruptDataError: the engine's copies of a tied tensor differ (case D2).
        """
        import torch

        self._check_held(held)
        found: dict[str, torch.Tensor] = {}
        for name, windows in self._by_trainer().items():
            pieces = [_rows(held[w.engine], w.engine_rows, w.groups) for w in windows]
            whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
            found[name] = whole.reshape(self.shapes[name].shape)
        for name, owner in self.tied.items():
            if name in found and not torch.equal(found[name], found[owner]):
                raise CorruptDataError(f"the engine holds {name!r} with other values than {owner!r}, its owner")
            found[name] = found[owner]
        return found

    def to_engine(self, sent: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The engine's tensors, in new memory of the sent tensors' dtype; padding is zero."""
        import torch

        self._check_sent(sent)
        found: dict[str, torch.Tensor] = {}
        for name, windows in self._by_engine().items():
            like = sent[self._owner(windows[0].trainer)]
            found[name] = torch.empty(self._held[name].shape, dtype=like.dtype, device=like.device)
        self.load(found, sent)
        return found

    def load(self, held: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> None:
        """Copy the trainer's tensors (tied names may be left out) into an engine's memory, in place.

        All is checked before the first value is written. Raises InvalidInputError.
        """
        self._check_held(held)
        self._check_sent(sent)
        for name, windows in self._by_engine().items():
            total = held[name].shape[0] if held[name].ndim else 1
            if sum(w.groups * (w.engine_rows[1] - w.engine_rows[0]) for w in windows) < total:
                held[name].zero_()
            for window in windows:
                values = _rows(sent[self._owner(window.trainer)], window.trainer_rows, window.groups)
                _rows(held[name], window.engine_rows, window.groups).copy_(values)

    def _owner(self, name: str) -> str:
        return self.tied.get(name, name)

    def _by_trainer(self) -> dict[str, list[Window]]:
        found: dict[str, list[Window]] = {}
        for window in sorted(self.windows, key=lambda window: window.trainer_rows):
            found.setdefault(window.trainer, []).append(window)
        return {name: found[name] for name in self.shapes if name in found}

    def _by_engine(self) -> dict[str, list[Window]]:
        found: dict[str, list[Window]] = {}
        for window in self.windows:
            found.setdefault(window.engine, []).append(window)
        return found

    def _check_held(self, held: Mapping[str, torch.Tensor]) -> None:
        faults = _differences("the engine", {name: shape.shape for name, shape in self._held.items()}, held)
        if faults:
            raise InvalidInputError("; ".join(faults[:10]))

    def _check_sent(self, sent: Mapping[str, torch.Tensor]) -> None:
        """A redundant tensor that is sent must equal its owner: one of the two would be lost in silence."""
        import torch

        needed = {name: shape.shape for name, shape in self.shapes.items() if name not in self.tied}
        faults = _differences("the trainer", needed, {name: t for name, t in sent.items() if name not in self.tied})
        for name in [name for name in self.tied if name in sent and not faults]:
            redundant, owner = sent[name], sent[self.tied[name]]
            if redundant.data_ptr() != owner.data_ptr() and not torch.equal(redundant, owner):
                faults.append(f"{name!r} is tied to {self.tied[name]!r} but sent with other values")
        if faults:
            raise InvalidInputError("; ".join(faults[:10]))


def shape_of(tensor: Shaped) -> TensorShape:
    """Shape and dtype's name of a tensor, or of what tells of one."""
    return TensorShape(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _rows(tensor: torch.Tensor, rows: tuple[int, int], groups: int) -> torch.Tensor:
    """[groups, rows, …]: the given rows of each group of a tensor [groups · total, …]; a view of a contiguous one."""
    flat = tensor if tensor.ndim else tensor.reshape(1)
    return flat.reshape(groups, flat.shape[0] // groups, *flat.shape[1:])[:, rows[0] : rows[1]]


def _differences(whose: str, needed: Mapping[str, tuple[int, ...]], given: Mapping[str, torch.Tensor]) -> list[str]:
    faults = [f"{whose} has no tensor {name!r}" for name in needed if name not in given]
    faults += [f"{whose} has a tensor {name!r} that this map doesn't know" for name in given if name not in needed]
    faults += [
        f"{name!r} of {whose} is of shape {tuple(given[name].shape)}, {shape} was declared"
        for name, shape in needed.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    return faults
