from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.controller.data import PromptOptions, PromptSampler, PromptSource, build_prompts, validation_batches
from argosy.text import TextTokenizer
from argosy.types.errors import InvalidInputError
from argosy.types.ids import GroupId
from argosy.types.records import Prompt

MakeRow = Callable[..., dict[str, Any]]
Load = Callable[..., PromptSource]
Drawn = list[tuple[str, int]]


def names(batch: list[Prompt]) -> Drawn:
    return [(str(prompt.group), prompt.index) for prompt in batch]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer) -> Callable[[int], PromptSource]:
    """sources(n): n prompts; made once for each n, since a property test asks again and again."""
    folder = tmp_path_factory.mktemp("sets")
    made: dict[int, PromptSource] = {}

    def get(count: int) -> PromptSource:
        if count not in made:
            path = folder / f"{count}.jsonl"
            rows = [
                {
                    "data_source": "toy",
                    "prompt": [{"role": "user", "content": f"q{index}"}],
                    "reward_model": {"ground_truth": str(index)},
                }
                for index in range(count)
            ]
            path.write_text("\n".join(map(json.dumps, rows)))
            made[count] = build_prompts(PromptOptions(files=(str(path),)), tokenizer)
        return made[count]

    return get


def test_every_data_epoch_is_a_new_order_of_all(sources: Callable[[int], PromptSource]) -> None:
    sampler = PromptSampler(sources(10), 2, seed=1)
    assert sampler.steps_per_epoch == 5
    epochs = [[prompt for _ in range(5) for prompt in sampler.next_batch()] for _ in range(3)]
    for number, epoch in enumerate(epochs):
        assert sorted(prompt.index for prompt in epoch) == list(range(10))
        assert [prompt.group for prompt in epoch] == [GroupId(number, place) for place in range(10)]
    orders = {tuple(prompt.index for prompt in epoch) for epoch in epochs}
    assert len(orders) == 3
    assert tuple(range(10)) not in orders


def test_the_seed_makes_the_order(sources: Callable[[int], PromptSource]) -> None:
    def first(seed: int) -> Drawn:
        return names(PromptSampler(sources(10), 10, seed=seed).next_batch())

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_without_shuffling_the_order_is_the_files(sources: Callable[[int], PromptSource]) -> None:
    sampler = PromptSampler(sources(10), 5, shuffle=False)
    indices = [prompt.index for _ in range(4) for prompt in sampler.next_batch()]
    assert indices == [*range(10), *range(10)]


def test_c9_the_rest_of_a_data_epoch_is_not_drawn(sources: Callable[[int], PromptSource]) -> None:
    """10 prompts in batches of 4: two batches a data epoch, never a smaller one, never one from two data epochs."""
    sampler = PromptSampler(sources(10), 4, seed=0)
    assert sampler.steps_per_epoch == 2
    drawn = [sampler.next_batch() for _ in range(6)]
    assert {len(batch) for batch in drawn} == {4}
    assert [{prompt.group.data_epoch for prompt in batch} for batch in drawn] == [{0}, {0}, {1}, {1}, {2}, {2}]
    indices = [{prompt.index for batch in drawn[at : at + 2] for prompt in batch} for at in (0, 2, 4)]
    assert all(len(one) == 8 for one in indices)
    assert len(set.union(*indices)) == 10, "with shuffling, others are left over each time"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100, None, -1])
def test_c9_validation_reads_each_prompt_once(sources: Callable[[int], PromptSource], size: int | None) -> None:
    batches = list(validation_batches(sources(7), size))
    assert [prompt.index for batch in batches for prompt in batch] == list(range(7))
    assert [prompt.group.position for batch in batches for prompt in batch] == list(range(7))
    assert all(len(batch) == (size if size and size > 0 else 7) for batch in batches[:-1])


def test_c10_fewer_rows_than_a_batch(
    sources: Callable[[int], PromptSource], load: Load, row: MakeRow, plus_twelve: TextTokenizer
) -> None:
    with pytest.raises(InvalidInputError, match=r"has 5 prompts, fewer than one batch of 8: .*to at most 5"):
        PromptSampler(sources(5), 8)
    rows = [row(index, "x" * (1 if index % 2 else 50)) for index in range(8)]
    source = load(rows, using=plus_twelve, max_prompt_length=32, filter_overlong_prompts=True)
    with pytest.raises(InvalidInputError, match=r"has 4 prompts \(4 more were left out as too long\), fewer than .* 8"):
        PromptSampler(source, 8)
    with pytest.raises(InvalidInputError, match="is empty"):
        load([])
    assert PromptSampler(sources(5), 5).steps_per_epoch == 1
    with pytest.raises(InvalidInputError, match="must be at least 1, got 0"):
        PromptSampler(sources(5), 0)


def test_c13_steps_after_a_resume_in_a_fresh_process(
    tmp_path: Path, tokenizer: TextTokenizer, tokenizer_folder: Path, row: MakeRow
) -> None:
    """10 ids, batch 2, shuffled, 3 data epochs; stop after step 7, go on in another process: 8…15 are the same."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(row(index)) for index in range(10)))

    def sampler() -> PromptSampler:
        return PromptSampler(build_prompts(PromptOptions(files=(str(rows),)), tokenizer), 2, shuffle=True, seed=5)

    whole, stopped = sampler(), sampler()
    unbroken = [names(whole.next_batch()) for _ in range(15)]
    before = [names(stopped.next_batch()) for _ in range(7)]
    program = f"""
import json, sys
sys.modules["torch"] = None  # not needed, and slow to import
from argosy.controller.data import PromptOptions, PromptSampler, build_prompts
from argosy.text import load_tokenizer
source = build_prompts(PromptOptions(files=({str(rows)!r},)), load_tokenizer({str(tokenizer_folder)!r}))
sampler = PromptSampler(source, 2, shuffle=True, seed=5)
sampler.restore(json.loads(sys.argv[1]))
print(json.dumps([[(str(p.group), p.index) for p in sampler.next_batch()] for _ in range(8)]))
"""
    command = [sys.executable, "-c", program, json.dumps(stopped.state())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    after = [[(name, index) for name, index in step] for step in json.loads(done.stdout)]
    assert before + after == unbroken
    assert len({tuple(step) for step in unbroken}) == 15


def test_c13_at_the_boundary_of_a_data_epoch(sources: Callable[[int], PromptSource]) -> None:
    whole = PromptSampler(sources(10), 2, seed=3)
    steps = [names(whole.next_batch()) for _ in range(12)]
    sampler = PromptSampler(sources(10), 2, seed=3)
    for _ in range(5):
        sampler.next_batch()
    resumed = PromptSampler(sources(10), 2, seed=3)
    resumed.restore(sampler.state())
    assert resumed.data_epoch == 1
    assert [names(resumed.next_batch()) for _ in range(7)] == steps[5:]


@settings(deadline=None)  # a busy machine is no fault of the sampler
@given(
    count=st.integers(1, 12),
    batch_size=st.integers(1, 12),
    draws=st.lists(st.integers(1, 3), max_size=8),
    cut=st.integers(0, 8),
    seed=st.integers(0, 2**31),
    shuffle=st.booleans(),
)
def test_c13_any_cut_of_any_run(
    sources: Callable[[int], PromptSource],
    count: int,
    batch_size: int,
    draws: list[int],
    cut: int,
    seed: int,
    shuffle: bool,
) -> None:
    """`draws` is how many batches each step takes: more than one when rounds are filtered out in between."""
    batch_size = min(batch_size, count)

    def steps(sampler: PromptSampler, amounts: list[int]) -> list[Drawn]:
        return [[name for _ in range(amount) for name in names(sampler.next_batch())] for amount in amounts]

    def fresh() -> PromptSampler:
        return PromptSampler(sources(count), batch_size, shuffle=shuffle, seed=seed)

    unbroken = steps(fresh(), draws)
    first = fresh()
    before = steps(first, draws[:cut])
    second = fresh()
    second.restore(json.loads(json.dumps(first.state())))
    assert before + steps(second, draws[cut:]) == unbroken
    for step in unbroken:
        for name, index in step:
            assert fresh().prompt(GroupId.parse(name)).index == index


def test_another_batch_size_goes_on_from_the_same_place(sources: Callable[[int], PromptSource]) -> None:
    sampler = PromptSampler(sources(10), 2, seed=3)
    drawn = names(sampler.next_batch())
    wider = PromptSampler(sources(10), 4, seed=3)
    wider.restore(sampler.state())
    drawn += names(wider.next_batch()) + names(wider.next_batch())
    assert [name for name, _ in drawn] == [f"e0-p{place}" for place in range(10)]
    assert sorted(index for _, index in drawn) == list(range(10))


def test_another_order_is_refused(sources: Callable[[int], PromptSource]) -> None:
    state = PromptSampler(sources(10), 2, seed=3).state()
    with pytest.raises(InvalidInputError, match="seed was 3, is 4"):
        PromptSampler(sources(10), 2, seed=4).restore(state)
    with pytest.raises(InvalidInputError, match="shuffle was True, is False"):
        PromptSampler(sources(10), 2, seed=3, shuffle=False).restore(state)
    with pytest.raises(InvalidInputError, match="prompt_count was 10, is 9"):
        PromptSampler(sources(9), 2, seed=3).restore(state)
    with pytest.raises(InvalidInputError, match="lacks digest, position"):
        PromptSampler(sources(10), 2, seed=3).restore(
            {name: value for name, value in state.items() if name not in ("digest", "position")}
        )
    with pytest.raises(InvalidInputError, match="position 11 is outside the 10 prompts"):
        PromptSampler(sources(10), 2, seed=3).restore({**state, "position": 11})


def test_a_group_that_does_not_exist(sources: Callable[[int], PromptSource]) -> None:
    with pytest.raises(InvalidInputError, match="no group e0-p10"):
        PromptSampler(sources(10), 2).prompt(GroupId(0, 10))


def test_the_first_prompts_are_the_same_whatever_was_drawn(sources: Callable[[int], PromptSource]) -> None:
    sampler = PromptSampler(sources(7), 3, seed=5)
    before, state = names(sampler.first_prompts(2)), sampler.state()
    assert before == names(list(sources(7).in_order())[:2])
    assert sampler.state() == state, "looking draws nothing"
    sampler.next_batch()
    assert names(sampler.first_prompts(2)) == before
    assert len(sampler.first_prompts(100)) == 7
