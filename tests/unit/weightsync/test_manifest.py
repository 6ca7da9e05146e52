from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
import torch

from argosy.types.errors import InvalidInputError, WeightsRefusedError
from argosy.types.records import TensorSpec, WeightsManifest
from argosy.weightsync import TensorShape, build_manifest, check_manifest, find_tied, manifest_digest, shapes_of

State = dict[str, torch.Tensor]
TIED = {"head.weight": "embed.weight"}


def changed(manifest: WeightsManifest, name: str, /, **fields: object) -> WeightsManifest:
    """The manifest with one tensor changed (or dropped, with no field) and the digest made right again."""
    tensors = [
        dataclasses.replace(spec, **fields) if spec.name == name else spec  # type: ignore[arg-type]
        for spec in manifest.tensors
        if spec.name != name or fields
    ]
    version = dataclasses.replace(manifest.version, digest=manifest_digest(tensors))
    return WeightsManifest(version, tuple(tensors))


def test_checksums_are_of_the_little_endian_bytes_bf16_too() -> None:
    values = torch.tensor([[1.0, -2.5], [3.25, 0.0]])
    manifest = build_manifest("main", 0, {"f": values, "b": values.to(torch.bfloat16), "t": values.t()})
    checksums = {spec.name: spec.checksum for spec in manifest.tensors}
    numbers = values.numpy().astype("<f4")
    assert checksums["f"] == f"{zlib.crc32(numbers.tobytes()):08x}"
    # These values are exact in bf16, whose bytes are the upper half of fp32's.
    upper = (numbers.view("<u4") >> 16).astype("<u2")
    assert checksums["b"] == f"{zlib.crc32(upper.tobytes()):08x}"
    assert checksums["t"] == f"{zlib.crc32(np.ascontiguousarray(numbers.T).tobytes()):08x}"


def test_equal_weights_have_equal_digests_whatever_version_and_order(state: State) -> None:
    first = build_manifest("main", 1, state, TIED)
    again = build_manifest("rollback", 7, dict(reversed(state.items())), TIED)
    assert first.version.digest == again.version.digest
    state["layer.scale"] += 1e-6
    assert build_manifest("main", 1, state, TIED).version.digest != first.version.digest


def test_the_digest_sees_name_shape_and_dtype() -> None:
    digests = {
        manifest_digest([TensorSpec(name, shape, dtype, "00000000")])
        for name, shape, dtype in [
            ("a", (2, 3), "float32"),
            ("b", (2, 3), "float32"),
            ("a", (3, 2), "float32"),
            ("a", (2, 3), "int32"),
        ]
    }
    assert len(digests) == 4


def test_a_manifest_that_fits_is_accepted(state: State, manifest: WeightsManifest) -> None:
    check_manifest(manifest, shapes_of(state), TIED)


def test_d10_misspelt_name_wrong_shape_wrong_dtype_and_missing_tensor_are_all_listed(state: State) -> None:
    sent = {
        "embed.weight": state["embed.weight"],
        "layer.wieght": state["layer.weight"],
        "layer.scale": torch.zeros(2),
        "layer.empty": state["layer.empty"].to(torch.float64),
    }
    with pytest.raises(WeightsRefusedError) as caught:
        check_manifest(build_manifest("main", 2, sent), shapes_of(state), TIED)
    message = caught.value.message
    assert caught.value.metadata["fault_count"] == "4"
    assert "layer.wieght: unknown to this model" in message
    assert "layer.weight: missing from the manifest" in message
    assert "layer.scale: shape (2,) sent, () held" in message
    assert "layer.empty: dtype float64 sent, float32 held" in message
    assert "the old version goes on" in message


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("layer.weight", {"name": "layer.wieght"}),
        ("layer.weight", {"shape": (7, 33)}),
        ("layer.weight", {"dtype": "float16"}),
        ("layer.weight", {}),
        ("layer.weight", {"dtype": "complex64"}),
        ("layer.weight", {"checksum": "xyz"}),
        ("layer.weight", {"shape": (-33, -7)}),
        ("layer.weight", {"name": "layer.scale"}),
        ("head.weight", {"tied_to": "nothing"}),
        ("head.weight", {"tied_to": "head.weight"}),
        ("head.weight", {"tied_to": "layer.scale"}),
    ],
)
def test_d10_each_fault_alone_is_refused(
    state: State, manifest: WeightsManifest, name: str, fields: dict[str, object]
) -> None:
    with pytest.raises(WeightsRefusedError):
        check_manifest(changed(manifest, name, **fields), shapes_of(state), TIED)


def test_d10_a_digest_that_is_not_that_of_the_tensors_is_refused(state: State, manifest: WeightsManifest) -> None:
    forged = WeightsManifest(dataclasses.replace(manifest.version, digest="0" * 64), manifest.tensors)
    with pytest.raises(WeightsRefusedError, match="digest"):
        check_manifest(forged, shapes_of(state), TIED)


def test_a_long_list_of_faults_is_cut_but_counted() -> None:
    expected = {f"tensor.{index}": TensorShape((1,), "float32") for index in range(500)}
    with pytest.raises(WeightsRefusedError) as caught:
        check_manifest(build_manifest("main", 0, {}), expected)
    assert caught.value.metadata["fault_count"] == "500"
    assert "and 480 more" in caught.value.message
    assert len(caught.value.message) < 2000


def test_only_declared_casts_are_accepted(state: State, manifest: WeightsManifest) -> None:
    held = shapes_of(state) | {"embed.weight": TensorShape((700, 500), "bfloat16")}
    with pytest.raises(WeightsRefusedError, match="no such cast"):
        check_manifest(manifest, held)
    check_manifest(manifest, held, casts={("float32", "bfloat16")})


@pytest.mark.parametrize("redundant", ["omitted", "tied", "carried"])
def test_d2_a_tied_receiver_takes_the_head_omitted_tied_or_carried(state: State, redundant: str) -> None:
    sent = dict(state)
    if redundant == "omitted":
        del sent["head.weight"]
    manifest = build_manifest("main", 1, sent, TIED if redundant == "tied" else None)
    sends = {spec.name for spec in manifest.tensors if not spec.tied_to}
    assert ("head.weight" in sends) == (redundant == "carried")
    check_manifest(manifest, shapes_of(state), TIED)
    without_head = {name: shape for name, shape in shapes_of(state).items() if name != "head.weight"}
    check_manifest(manifest, without_head, TIED)


def test_d2_a_redundant_head_with_other_values_is_refused(state: State) -> None:
    state["head.weight"] = state["embed.weight"] + 1
    with pytest.raises(WeightsRefusedError, match=r"head\.weight: tied to 'embed\.weight' in this model but sent with"):
        check_manifest(build_manifest("main", 1, state), shapes_of(state), TIED)


def test_d2_an_untied_receiver_needs_a_head(state: State) -> None:
    sent = {name: tensor for name, tensor in state.items() if name != "head.weight"}
    with pytest.raises(WeightsRefusedError, match=r"head\.weight: missing"):
        check_manifest(build_manifest("main", 1, sent), shapes_of(state))


def test_d2_a_sender_whose_tie_is_a_lie_is_refused(state: State) -> None:
    state["head.weight"] = state["embed.weight"] + 1
    with pytest.raises(InvalidInputError, match="holds other values"):
        build_manifest("main", 1, state, TIED)
    with pytest.raises(InvalidInputError, match="not an owner"):
        build_manifest("main", 1, state, {"head.weight": "no.such"})


def test_ties_are_found_by_shared_storage(state: State) -> None:
    assert find_tied(state) == TIED
    state["head.weight"] = state["head.weight"].clone()
    assert find_tied(state) == {}
    shared = torch.zeros(4, 4)
    assert find_tied({"a": shared, "b": shared.t(), "c": shared[:2]}) == {}


def test_a_dtype_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="bool"):
        build_manifest("main", 0, {"mask": torch.ones(2, dtype=torch.bool)})
