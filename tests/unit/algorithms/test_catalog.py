from __future__ import annotations

import pytest

from argosy.algorithms.families import FAMILIES, NEEDS
from argosy.config.docs import key_doc
from argosy.config.validate.rules import CHOICES

ENTRIES = [(family, name) for family, its in FAMILIES.items() for name in its.entries]


@pytest.mark.parametrize(("family", "name"), ENTRIES)
def test_every_entry_is_whole(family: str, name: str) -> None:
    entry = FAMILIES[family].entries[name]
    assert entry.summary.endswith(".")
    assert entry.formula
    assert entry.paper
    assert "\n" not in entry.formula + entry.summary + entry.paper
    assert entry.needs <= set(NEEDS)
    for path in entry.keys:
        assert key_doc(path).meaning, path


@pytest.mark.parametrize(
    "key", sorted({key for family in FAMILIES.values() for key in family.chosen_by} & set(CHOICES))
)
def test_what_a_key_accepts_comes_from_the_catalog(key: str) -> None:
    (family,) = [family for family in FAMILIES.values() if key in family.chosen_by]
    assert {choice.removesuffix("+") for choice in CHOICES[key]} <= set(family.entries)


def test_most_choosing_keys_are_checked_that_way() -> None:
    checked = {key for family in FAMILIES.values() for key in family.chosen_by} & set(CHOICES)
    assert {"algorithm.adv_estimator", "actor_rollout_ref.actor.policy_loss.loss_mode"} <= checked
