"""What loops, tools and policies put into messages can be saved, dumped and sent, whatever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from argosy.controller.dumps import write_dump
from argosy.controller.plain import MAX_DEPTH, cleaned, refusal
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, FinishReason, Prompt, Scored

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs"]))
    | st.binary()
    | st.none().map(lambda _: 10**5000),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_a_cleaned_value_can_be_carried(value: Any) -> None:
    made = cleaned(value)
    assert refusal(made) == ""
    json.dumps(made, allow_nan=False, ensure_ascii=False).encode()
    if refusal(value) == "":
        assert json.dumps(made) == json.dumps(value)


def test_endless_nesting_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert f"more than {MAX_DEPTH} deep" in refusal(value)
    assert refusal(cleaned(value)) == ""


def test_a_dump_holds_half_a_character(tmp_path: Path) -> None:
    sample, group = SampleId(0, 0, 0), GroupId(0, 0)
    completion = Completion(sample, (1,), (0.0,), (), FinishReason.STOP, text="half \ud800")
    prompt = Prompt(group, (1,), "q", "1")
    path = write_dump(tmp_path, 1, [prompt], {sample: completion}, {sample: Scored(1.0)})
    assert json.loads(path.read_text(encoding="utf-8"))["output"] == "half \ud800"
