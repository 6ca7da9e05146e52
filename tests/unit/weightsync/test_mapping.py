"""Names and layouts both ways: exact round trips for random layouts, and misfits refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.types.errors import CorruptDataError, InvalidInputError, WeightsRefusedError
from argosy.weightsync import Snapshot, check_manifest
from argosy.weightsync.mapping import Fuse, NameMap, Pad, Rename, Rule, Split, Tie, llama_fused

State = dict[str, torch.Tensor]


def numbered(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> State:
    """Tensors in which no two elements are equal."""
    found, start = {}, 1
    for name, shape in shapes.items():
        count = int(torch.Size(shape).numel())
        found[name] = torch.arange(start, start + count).to(dtype).reshape(shape)
        start += count
    return found


def equal(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_fused_rows_are_the_parts_one_after_the_other() -> None:
    names = NameMap.build(
        numbered({"layers.0.self_attn.qkv_proj.weight": (8, 3), "layers.0.mlp.gate_up_proj.weight": (6, 3)}),
        llama_fused(query_rows=4, key_value_rows=2),
    )
    sent = numbered({name: shape.shape for name, shape in names.shapes.items()})
    assert list(sent) == [
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.v_proj.weight",
        "layers.0.mlp.gate_proj.weight",
        "layers.0.mlp.up_proj.weight",
    ]
    held = names.to_engine(sent)
    q, k, v, gate, up = sent.values()
    assert torch.equal(held["layers.0.self_attn.qkv_proj.weight"], torch.cat([q, k, v]))
    assert torch.equal(held["layers.0.mlp.gate_up_proj.weight"], torch.cat([gate, up]))


def test_groups_interleave_the_parts_as_megatron_has_them() -> None:
    """Two key/value heads of one row, two query heads each: q q k v q q k v."""
    names = NameMap.build({"qkv.weight": torch.empty(8, 1)}, [Fuse("qkv", ("q", "k", "v"), (2, 1, 1), groups=2)])
    sent = {
        "q.weight": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
        "k.weight": torch.tensor([[5.0], [6.0]]),
        "v.weight": torch.tensor([[7.0], [8.0]]),
    }
    held = names.to_engine(sent)
    assert held["qkv.weight"].flatten().tolist() == [1, 2, 5, 7, 3, 4, 6, 8]
    assert equal(names.to_trainer(held), sent)


def test_padded_rows_are_zero_and_never_sent() -> None:
    names = NameMap.build({"embed.weight": torch.full((8, 2), 9.0)}, [Pad("embed.weight", rows=5)])
    assert names.shapes["embed.weight"].shape == (5, 2)
    held = {"embed.weight": torch.full((8, 2), 9.0)}
    names.load(held, {"embed.weight": torch.ones(5, 2)})
    assert held["embed.weight"].sum(1).tolist() == [2] * 5 + [0] * 3


def test_d2_a_head_that_the_engine_holds_apart_gets_the_embedding() -> None:
    held = numbered({"embed.weight": (4, 2), "head.weight": (4, 2)})
    names = NameMap.build(held, [Tie("head.weight", "embed.weight")])
    with pytest.raises(CorruptDataError, match=r"head\.weight"):
        names.to_trainer(held)
    names.load(held, {"embed.weight": torch.ones(4, 2)})
    assert torch.equal(held["head.weight"], torch.ones(4, 2))
    assert names.to_trainer(held)["head.weight"].data_ptr() == held["embed.weight"].data_ptr()
    assert names.tied == {"head.weight": "embed.weight"}
    with pytest.raises(InvalidInputError, match="other values"):
        names.load(held, {"embed.weight": torch.ones(4, 2), "head.weight": torch.zeros(4, 2)})


def test_an_engine_without_the_tied_head_takes_a_manifest_with_it() -> None:
    """A ModelFacts made of the map takes what a trainer sends, and refuses another head before the first byte."""
    names = NameMap.build(
        {"lm.embed.weight": torch.empty(6, 2)},
        [
            Rename("lm.", "model."),
            Pad("model.embed.weight", 4),
            Tie("lm_head.weight", "model.embed.weight"),
        ],
    )
    embed = torch.ones(4, 2)
    ties = {"lm_head.weight": "model.embed.weight"}
    state = {"model.embed.weight": embed, "lm_head.weight": embed}
    check_manifest(Snapshot.freeze("main", 1, state, ties).manifest, names.shapes, names.tied)
    other = Snapshot.freeze("main", 1, state | {"lm_head.weight": embed + 1}).manifest
    with pytest.raises(WeightsRefusedError, match=r"lm_head\.weight"):
        check_manifest(other, names.shapes, names.tied)
    padded = Snapshot.freeze("main", 1, {"model.embed.weight": torch.ones(6, 2)}).manifest
    with pytest.raises(WeightsRefusedError, match="shape"):
        check_manifest(padded, names.shapes, names.tied)


def test_the_longest_prefix_is_taken() -> None:
    held = numbered({"language_model.model.norm": (2,), "language_model.head": (3,), "other": ()})
    names = NameMap.build(held, [Rename("language_model.", ""), Rename("language_model.model.", "model.")])
    assert list(names.shapes) == ["model.norm", "head", "other"]
    assert equal(names.to_engine(names.to_trainer(held)), held)


def test_a_trainer_with_fused_layers_feeds_an_engine_with_split_ones() -> None:
    held = numbered({"l.0.gate.weight": (4, 2), "l.0.up.weight": (4, 2), "l.0.gate.bias": (4,), "l.0.up.bias": (4,)})
    names = NameMap.build(held, [Split("gate_up", ("gate", "up"))])
    sent = names.to_trainer(held)
    assert torch.equal(sent["l.0.gate_up.weight"], torch.cat([held["l.0.gate.weight"], held["l.0.up.weight"]]))
    assert torch.equal(sent["l.0.gate_up.bias"], torch.cat([held["l.0.gate.bias"], held["l.0.up.bias"]]))
    assert equal(names.to_engine(sent), held)


def test_nothing_is_written_when_a_tensor_is_missing_or_misshapen() -> None:
    held = numbered({"qkv.weight": (6, 2), "norm": (2,)})
    before = {name: tensor.clone() for name, tensor in held.items()}
    names = NameMap.build(held, [Fuse("qkv", ("q", "k", "v"))])
    sent = numbered({name: shape.shape for name, shape in names.shapes.items()})
    for fault in ({"norm": torch.zeros(3)}, {"extra": torch.zeros(1)}):
        with pytest.raises(InvalidInputError, match=next(iter(fault))):
            names.load(held, sent | fault)
    with pytest.raises(InvalidInputError, match=r"no tensor 'v\.weight'"):
        names.load(held, {name: tensor for name, tensor in sent.items() if name != "v.weight"})
    assert equal(held, before)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([Fuse("qvk", ("q", "k", "v"))], "no tensor of the engine fits"),
        ([Fuse("qkv", ("q", "k"), (4, 3))], "don't make up"),
        ([Fuse("qkv", ("q", "k", "v", "w"))], "equal parts"),
        ([Fuse("qkv", ("q", "k", "v"), groups=4)], "4 groups"),
        ([Fuse("qkv", ("q", "norm", "v")), Rename("norm", "norm.weight")], "two of the engine's tensors"),
        ([Rename("", "a."), Rename("lm.", "b.")], "no tensor of the engine fits"),
        ([Rename("qkv.weight", "norm")], "both the trainer's"),
        ([Pad("norm", 3)], "padding"),
        ([Pad("nrom", 1)], "no tensor of the engine fits"),
        ([Split("x", ("qkv", "missing"))], "no missing"),
        ([Tie("a", "b")], "not an owner"),
        ([Tie("norm", "qkv.weight")], "another shape"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rules: Sequence[Rule], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        NameMap.build(numbered({"qkv.weight": (6, 2), "norm": (2,)}), rules)


LAYOUT = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "groups": st.integers(1, 4),
        "sizes": st.tuples(*[st.integers(1, 5)] * 3),
        "width": st.integers(1, 4),
        "vocabulary": st.integers(1, 9),
        "padding": st.integers(0, 5),
        "bias": st.booleans(),
        "apart": st.booleans(),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    }
)


@settings(max_examples=80, deadline=None)
@given(LAYOUT)
def test_every_layout_goes_round_exactly(layout: dict[str, int]) -> None:
    """trainer → engine → trainer and engine → trainer → engine leave every bit in place, whatever the layout."""
    sizes, groups = layout["sizes"], layout["groups"]
    assert isinstance(sizes, tuple)
    rows, width = groups * sum(sizes), layout["width"]
    shapes: dict[str, tuple[int, ...]] = {"lm.embed.weight": (layout["vocabulary"] + layout["padding"], width)}
    for layer in range(layout["layers"]):
        shapes[f"lm.{layer}.qkv.weight"] = (rows, width)
        shapes |= {f"lm.{layer}.qkv.bias": (rows,)} if layout["bias"] else {}
        shapes[f"lm.{layer}.gate.weight"] = shapes[f"lm.{layer}.up.weight"] = (2 * groups, width)
        shapes[f"lm.{layer}.scale"] = ()
    if layout["apart"]:
        shapes["head.weight"] = shapes["lm.embed.weight"]
    padded = [Pad("embed.weight", layout["vocabulary"])]
    padded += [Pad("head.weight", layout["vocabulary"])] if layout["apart"] else []
    names = NameMap.build(
        {name: torch.empty(shape) for name, shape in shapes.items()},
        [
            Rename("lm.", ""),
            Fuse("qkv", ("q", "k", "v"), sizes, groups),
            Split("gate_up", ("gate", "up"), groups),
            *padded,
            Tie("head.weight", "embed.weight"),
        ],
    )
    dtype = layout["dtype"]
    assert isinstance(dtype, torch.dtype)
    sent = numbered({name: shape.shape for name, shape in names.shapes.items() if name not in names.tied}, dtype)
    held = names.to_engine(sent)
    assert {name: tuple(tensor.shape) for name, tensor in held.items()} == shapes
    back = names.to_trainer(held)
    assert equal({name: back[name] for name in sent}, sent)
    assert equal({"head.weight": back["head.weight"]}, {"head.weight": sent["embed.weight"]})
    again = {name: torch.full(shape, 7, dtype=dtype) for name, shape in shapes.items()}
    names.load(again, back)
    assert equal(again, held)
