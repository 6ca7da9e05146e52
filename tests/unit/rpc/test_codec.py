from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.api.common.v1 import ids_pb2, values_pb2
from argosy.api.controller.v1 import controller_service_pb2
from argosy.rpc.codec import common, controller, reward
from argosy.types.errors import InternalError, InvalidInputError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import (
    Member,
    MemberState,
    RewardCapabilities,
    RunStatus,
    ScoreRequest,
    TensorSpec,
    VersionRun,
    WeightChunk,
    WeightsManifest,
)

VERSION = PolicyVersion("main", 0, "abc")
counts = st.integers(0, 2**62)


@given(st.builds(SampleId, counts, counts, counts, counts))
def test_sample_ids(sample: SampleId) -> None:
    assert common.sample_id_from_pb(common.sample_id_to_pb(sample)) == sample


def test_versions_need_lineage_and_digest() -> None:
    assert common.version_from_pb(common.version_to_pb(VERSION)) == VERSION
    for message in (ids_pb2.PolicyVersion(digest="a"), ids_pb2.PolicyVersion(lineage="a")):
        with pytest.raises(InvalidInputError, match="lineage and digest"):
            common.version_from_pb(message)
    runs = (VersionRun(VERSION, 3), VersionRun(PolicyVersion("main", 1, "d"), 1))
    assert common.version_runs_from_pb(common.version_runs_to_pb(runs)) == runs


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_are_int32_little_endian(ids: list[int]) -> None:
    data = common.int32s_to_bytes(ids)
    assert data == b"".join(value.to_bytes(4, "little", signed=True) for value in ids)
    assert common.int32s_from_bytes(data, "ids") == tuple(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_log_probs_come_back_bit_for_bit(values: list[float]) -> None:
    assert common.float32s_from_bytes(common.float32s_to_bytes(values), "x") == tuple(values)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="int32"):
        common.int32s_to_bytes([2**31])
    with pytest.raises(InvalidInputError, match="prompt_ids has 5 bytes, not a multiple of 4"):
        common.int32s_from_bytes(b"12345", "prompt_ids")
    with pytest.raises(InvalidInputError, match="log_probs has 3 bytes"):
        common.float32s_from_bytes(b"123", "log_probs")


def test_scalars_keep_their_kind() -> None:
    values: dict[str, float | str | bool] = {"a": 1.5, "b": True, "c": "x", "d": False}
    got = common.scalars_from_pb(common.scalars_to_pb(values))
    assert got == values
    assert {name: type(value) for name, value in got.items()} == {"a": float, "b": bool, "c": str, "d": bool}
    numpy_values: Any = {"a": np.float32(0.5), "b": np.bool_(True), "c": np.int64(3)}
    assert common.scalars_from_pb(common.scalars_to_pb(numpy_values)) == {"a": 0.5, "b": True, "c": 3.0}
    with pytest.raises(InvalidInputError, match="'a'"):
        common.scalars_to_pb({"a": [1]})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="'a' has no value"):
        common.scalars_from_pb({"a": values_pb2.ScalarValue()})


def test_manifests_and_chunks() -> None:
    tensors = (TensorSpec("a", (2, 3), "float32", "0a0b0c0d"), TensorSpec("b", (), "bfloat16", "00000000", "a"))
    manifest = WeightsManifest(VERSION, tensors)
    assert common.manifest_from_pb(common.manifest_to_pb(manifest)) == manifest
    chunk = WeightChunk("a", 0, b"\x00\x01", 0)
    assert common.weight_chunk_from_pb(common.weight_chunk_to_pb(chunk)) == chunk


def test_durations() -> None:
    for seconds in (0.0, 0.25, 600.0, 1e-9, 86400.5):
        assert common.duration_from_pb(common.duration_to_pb(seconds)) == pytest.approx(seconds, abs=1e-9)


def item(**fields: Any) -> ScoreRequest:
    given: dict[str, Any] = {"ground_truth": "4", "extra_info": {}} | fields
    return ScoreRequest(SampleId(0, 1, 2), "gsm8k", "What is 2+2?", "4", **given)


def test_items_carry_ids_only_where_they_are_wanted() -> None:
    full = item(prompt_ids=(1, 2), response_ids=(3,), valid_response=False)
    assert reward.item_from_pb(reward.item_to_pb(full, with_ids=True)) == full
    bare = reward.item_from_pb(reward.item_to_pb(full, with_ids=False))
    assert (bare.prompt_ids, bare.response_ids, bare.valid_response) == ((), (), False)


def test_items_carry_messages_only_where_they_are_wanted() -> None:
    asked = item(messages=({"role": "system", "content": ""}, {"role": "user", "content": "2+2? 𝔸\0"}))
    assert reward.item_from_pb(reward.item_to_pb(asked, with_ids=False, with_messages=True)) == asked
    assert reward.item_from_pb(reward.item_to_pb(asked, with_ids=True)).messages == ()
    assert reward.item_to_pb(item(), with_ids=False, with_messages=True).messages_json == ""
    with pytest.raises(InvalidInputError, match="messages of e0-p1-k2-a0 is not JSON"):
        reward.item_to_pb(item(messages=({"role": object()},)), with_ids=False, with_messages=True)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '"text"', "null"])
def test_messages_that_are_no_list_of_objects_are_refused(text: str) -> None:
    message = reward.item_to_pb(item(), with_ids=False)
    message.messages_json = text
    with pytest.raises(InvalidInputError, match="messages of e0-p1-k2-a0"):
        reward.item_from_pb(message)


def test_numpy_values_of_parquet_rows_become_json() -> None:
    extra = {"list": np.array([1, 2]), "number": np.int64(7), "nested": [np.array(["a"], object)]}
    got = reward.item_from_pb(
        reward.item_to_pb(item(ground_truth=np.array(["4", "four"], object), extra_info=extra), with_ids=False)
    )
    assert got.ground_truth == ["4", "four"]
    assert got.extra_info == {"list": [1, 2], "number": 7, "nested": [["a"]]}


@pytest.mark.parametrize("value", [float("nan"), object(), b"bytes", {1, 2}])
def test_what_is_not_json_is_refused_with_the_sample_s_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="ground_truth of e0-p1-k2-a0 is not JSON"):
        reward.item_to_pb(item(ground_truth=value), with_ids=False)
    with pytest.raises(InvalidInputError, match="extra_info of e0-p1-k2-a0 is not JSON"):
        reward.item_to_pb(item(extra_info={"a": value}), with_ids=False)


@pytest.mark.parametrize("text", ["{", "[1]", "nul", "[" * 100_000])
def test_extra_info_that_is_no_object_is_refused(text: str) -> None:
    message = reward.item_to_pb(item(), with_ids=False)
    message.extra_info_json = text
    with pytest.raises(InvalidInputError, match="extra_info of e0-p1-k2-a0"):
        reward.item_from_pb(message)


def test_capabilities() -> None:
    capabilities = RewardCapabilities(("gsm8k", "math"), True, 3, True, True, "judge", "1.2")
    assert reward.capabilities_from_pb(reward.capabilities_to_pb(capabilities)) == capabilities
    empty = reward.capabilities_to_pb(RewardCapabilities(()))
    empty.max_batch_size = 0
    assert reward.capabilities_from_pb(empty) == RewardCapabilities((), max_batch_size=256)


@pytest.mark.parametrize("state", ["starting", "running", "paused", "stopping", "finished", "failed"])
def test_runs(state: str) -> None:
    for version in (None, VERSION):
        run = RunStatus("run", state, 0, 10, 1, version, "rollout", {"a": 0.0}, "")
        assert controller.run_from_pb(controller.run_to_pb(run)) == run
        run = replace(run, stage_since=1.7e9 + 0.25, stall="rollout-1 has given nothing")
        assert controller.run_from_pb(controller.run_to_pb(run)) == run


@pytest.mark.parametrize("state", list(MemberState))
def test_members(state: MemberState) -> None:
    member = Member("rollout-0", "rollout", "h:1", "x", "default", "hf", {"a": "b"}, state, VERSION)
    assert controller.member_from_pb(controller.member_to_pb(member)) == member
    member = replace(member, sample_count=3, idle_s=0.5, error="gone", error_at=1.7e9 + 0.125)
    assert controller.member_from_pb(controller.member_to_pb(member)) == member


def test_states_that_are_unknown_here_are_refused() -> None:
    with pytest.raises(InternalError, match="state 0"):
        controller.run_from_pb(controller_service_pb2.Run())
    with pytest.raises(InternalError, match="state 0"):
        controller.member_from_pb(controller_service_pb2.Member())
