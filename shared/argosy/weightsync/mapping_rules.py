"""The rules of `mapping`, and the way from an engine's shapes to windows: what is where, with every misfit refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from argosy.types.errors import InvalidInputError
from argosy.weightsync.manifest import TensorShape

Shapes = dict[str, TensorShape]


@dataclass(frozen=True, slots=True)
class Rename:
    """The engine's names begin otherwise. Of several that fit, the longest `engine` prefix is taken."""

    engine: str
    """Prefix of the engine's names, such as "language_model."."""
    trainer: str
    """What the trainer's names have instead; may be empty."""


@dataclass(frozen=True, slots=True)
class Fuse:
    """The engine holds several modules of the trainer as rows of one; weights and biases alike.

    All names are the trainer's (after Rename), of modules, from any dot on: "self_attn.qkv_proj" is that of each layer.
    """

    engine: str
    """The fused module."""
    parts: tuple[str, ...]
    """The trainer's modules, in the order of the rows."""
    sizes: tuple[int, ...] = ()
    """Rows of each part, of a group; () for equal parts."""
    groups: int = 1
    """How many times the parts follow each other, each time the next rows of all: Megatron's layout has one group for
    each key/value head; 1 is one part after the other."""


@dataclass(frozen=True, slots=True)
class Split:
    """The other way round: the trainer has one module where the engine holds several."""

    trainer: str
    """The trainer's fused module."""
    parts: tuple[str, ...]
    """The engine's modules (in the trainer's naming), in the order of the rows."""
    groups: int = 1
    """See Fuse."""


@dataclass(frozen=True, slots=True)
class Pad:
    """The engine holds more rows than the trainer sends; the rest is zero."""

    name: str
    """The trainer's, of the tensor."""
    rows: int
    """That the trainer sends."""


@dataclass(frozen=True, slots=True)
class Tie:
    """The trainer's `name` is another name of `owner` and need not be sent; an engine that holds both gets both."""

    name: str
    owner: str


Rule = Rename | Fuse | Split | Pad | Tie


def llama_fused(query_rows: int, key_value_rows: int) -> tuple[Rule, ...]:
    """q, k, v and gate, up of Llama-like layers fused as vLLM and SGLang hold them on one device."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return (
        Fuse("self_attn.qkv_proj", names, (query_rows, key_value_rows, key_value_rows)),
        Fuse("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
    )


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of an engine's tensor that are rows of a trainer's. Both tensors are [groups · total, …]."""

    engine: str
    engine_rows: tuple[int, int]
    """First and behind the last, in each group."""
    trainer: str
    trainer_rows: tuple[int, int]
    groups: int = 1


@dataclass(slots=True)
class _Build:
    """What is known so far."""

    held: Shapes
    engine_names: dict[str, str]
    """In the trainer's naming → in the engine's, of tensors that no rule has taken yet."""
    shapes: Shapes = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)

    def add(self, name: str, shape: TensorShape, windows: Sequence[Window]) -> None:
        if name in self.shapes:
            raise InvalidInputError(f"two of the engine's tensors are the trainer's {name!r}")
        self.shapes[name] = shape
        self.windows.extend(windows)


def apply_rules(held: Shapes, rules: Sequence[Rule]) -> tuple[Shapes, Shapes, dict[str, str], list[Window]]:
    """The arguments of NameMap. InvalidInputError on a rule that does not fit."""
    build = _Build(held, _renamed(held, [rule for rule in rules if isinstance(rule, Rename)]))
    for rule in rules:
        if isinstance(rule, Fuse):
            _fuse(build, rule)
        elif isinstance(rule, Split):
            _split(build, rule)
        elif isinstance(rule, Pad):
            _pad(build, rule)
    for name, engine in build.engine_names.items():
        rows = (0, _row_count(held[engine]))
        build.add(name, held[engine], [Window(engine, rows, name, rows)])
    ties = _ties(build, [rule for rule in rules if isinstance(rule, Tie)])
    order = [window.trainer for window in sorted(build.windows, key=lambda w: list(held).index(w.engine))]
    shapes = {name: build.shapes[name] for name in dict.fromkeys(order)}
    return held, shapes | {name: shapes[owner] for name, owner in ties.items()}, ties, build.windows


def _renamed(held: Shapes, renames: Sequence[Rename]) -> dict[str, str]:
    found: dict[str, str] = {}
    used = set()
    for engine in held:
        fitting = [rename for rename in renames if engine.startswith(rename.engine)]
        rename = max(fitting, key=lambda rename: len(rename.engine), default=Rename("", ""))
        used.add(rename)
        name = rename.trainer + engine[len(rename.engine) :]
        if name in found:
            raise InvalidInputError(f"the engine's {found[name]!r} and {engine!r} are both the trainer's {name!r}")
        found[name] = engine
    _check_used([rename for rename in renames if rename not in used])
    return found


def _modules(build: _Build, module: str) -> Iterator[tuple[str, str, str]]:
    """Names that are a parameter of such a module: (whole name, what stands before the module, parameter)."""
    for name in list(build.engine_names):
        path, _, parameter = name.rpartition(".")
        if path == module or path.endswith(f".{module}"):
            yield name, path[: len(path) - len(module)], parameter


def _fuse(build: _Build, rule: Fuse) -> None:
    found = list(_modules(build, rule.engine))
    for name, before, parameter in found:
        engine = build.engine_names.pop(name)
        held = build.held[engine]
        total = _grouped(name, _row_count(held), rule.groups)
        sizes = rule.sizes or _equal(name, total, len(rule.parts))
        if len(sizes) != len(rule.parts) or sum(sizes) != total or min(sizes) < 1:
            raise InvalidInputError(
                f"{name!r} has {total} rows a group, which {len(rule.parts)} parts of {sizes} rows don't make up"
            )
        start = 0
        for part, size in zip(rule.parts, sizes, strict=True):
            shape = TensorShape((rule.groups * size, *held.shape[1:]), held.dtype)
            target = f"{before}{part}.{parameter}"
            build.add(target, shape, [Window(engine, (start, start + size), target, (0, size), rule.groups)])
            start += size
    _check_used([] if found else [rule])


def _split(build: _Build, rule: Split) -> None:
    found = list(_modules(build, rule.parts[0]))
    for _, before, parameter in found:
        target = f"{before}{rule.trainer}.{parameter}"
        windows, start, rests = [], 0, set()
        for part in rule.parts:
            engine = build.engine_names.pop(f"{before}{part}.{parameter}", None)
            if engine is None:
                raise InvalidInputError(f"the engine has no {before}{part}.{parameter}, a part of {target!r}")
            held = build.held[engine]
            size = _grouped(engine, _row_count(held), rule.groups)
            windows.append(Window(engine, (0, size), target, (start, start + size), rule.groups))
            start += size
            rests.add((held.shape[1:], held.dtype))
        if len(rests) > 1:
            raise InvalidInputError(
                f"the parts of {target!r} differ in more than their rows: {sorted(map(str, rests))}"
            )
        rest, dtype = rests.pop()
        build.add(target, TensorShape((rule.groups * start, *rest), dtype), windows)
    _check_used([] if found else [rule])


def _pad(build: _Build, rule: Pad) -> None:
    engine = build.engine_names.pop(rule.name, None)
    if engine is None:
        _check_used([rule])
        return
    held = build.held[engine]
    if not 0 < rule.rows <= _row_count(held) or not held.shape:
        raise InvalidInputError(f"{engine!r} of shape {held.shape} can't hold {rule.rows} rows and padding")
    shape = TensorShape((rule.rows, *held.shape[1:]), held.dtype)
    build.add(rule.name, shape, [Window(engine, (0, rule.rows), rule.name, (0, rule.rows))])


def _ties(build: _Build, rules: Sequence[Tie]) -> dict[str, str]:
    owners = {rule.name: rule.owner for rule in rules}
    for name, owner in owners.items():
        if owner not in build.shapes or owner in owners:
            raise InvalidInputError(f"{name!r} is tied to {owner!r}, which is not an owner among the engine's tensors")
        if name in build.shapes and build.shapes[name] != build.shapes[owner]:
            raise InvalidInputError(f"{name!r} is tied to {owner!r} but of another shape or dtype")
    return owners


def _row_count(shape: TensorShape) -> int:
    return shape.shape[0] if shape.shape else 1


def _grouped(name: str, rows: int, groups: int) -> int:
    if groups < 1 or rows % groups:
        raise InvalidInputError(f"the {rows} rows of {name!r} don't divide into {groups} groups")
    return rows // groups


def _equal(name: str, total: int, parts: int) -> tuple[int, ...]:
    if total % parts:
        raise InvalidInputError(f"the {total} rows of {name!r} don't divide into {parts} equal parts")
    return (total // parts,) * parts


def _check_used(unused: Sequence[Rule]) -> None:
    """A rule that fits nothing is a misspelt name: its tensors would be sent under the wrong one."""
    if unused:
        raise InvalidInputError(f"no tensor of the engine fits {unused[0]}")
