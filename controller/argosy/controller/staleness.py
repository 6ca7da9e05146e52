"""How old what is trained may be: deadlines of groups, which of them a step takes, and how old they were.

Step s trains the weights of step s - 1 to those of s. A token's *staleness* at step s is s - 1 - (step of the weights
that sampled it), a sample's that of its oldest token. With K = `argosy.max_staleness`, a group whose oldest token is of
step v can be trained until step v + K + 1: its *deadline*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from argosy.types.ids import SampleId
from argosy.types.records import Completion


def deadline_of(oldest_step: int, max_staleness: int) -> int:
    """The last step that may train a group whose oldest token is of `oldest_step`.

    >>> deadline_of(oldest_step=4, max_staleness=1)
    6
    """
    return oldest_step + max_staleness + 1


def room(
    open_count: int, synced_step: int, taken_steps: int, batch_size: int, max_staleness: int, spare: int = 0
) -> int:
    """How many more groups the gate lets in: as many as the steps that the present weights may still be trained in.

    `taken_steps`: Steps that have their groups. `spare`: Groups beyond those that steps take (over-sampling). Below 0
    where more are under way than a run with these settings would have begun: it was resumed with others.

    >>> room(open_count=0, synced_step=0, taken_steps=0, batch_size=4, max_staleness=1)
    8
    >>> room(open_count=4, synced_step=0, taken_steps=1, batch_size=4, max_staleness=1)  # step 1 is trained
    0
    >>> room(open_count=4, synced_step=1, taken_steps=1, batch_size=4, max_staleness=1)
    4
    """
    steps = synced_step + max_staleness + 1 - taken_steps
    return steps * batch_size + (spare if steps > 0 else 0) - open_count


def choose(
    step: int, batch_size: int, finished: Sequence[int], unfinished: Iterable[int], spare: int = 0
) -> list[int] | None:
    """Which groups a step takes, as places in `finished`; None while it must wait for others.

    `finished` and `unfinished` are deadlines, the former in the order in which the groups were done. For each deadline
    d the steps until d can train (d - step + 1)·B groups. Where as many are open (`spare` more may be left over), this
    step must take its share of them: what is open until d, less what the steps after this one can do. The rest of the
    step is whatever was done first. docs/adr/0024 shows that this always works out under the gate (`room`).

    >>> choose(step=2, batch_size=1, finished=[4, 3], unfinished=[3])  # two must be trained until 3: one of them now
    [1]
    >>> choose(step=2, batch_size=1, finished=[4], unfinished=[3, 3]) is None
    True
    """
    counts = Counter(finished)
    counts.update(unfinished)
    chosen: list[int] = []
    taken: set[int] = set()
    opened = 0
    for deadline in sorted(counts):
        opened += counts[deadline]
        least = min(batch_size, opened - spare - (deadline - step) * batch_size)
        if least <= len(chosen):
            continue
        for place, own in enumerate(finished):
            if own <= deadline and place not in taken:
                chosen.append(place)
                taken.add(place)
                if len(chosen) == least:
                    break
        else:
            return None
    chosen += [place for place in range(len(finished)) if place not in taken][: batch_size - len(chosen)]
    return chosen if len(chosen) == batch_size else None


def is_ready(
    step: int, batch_size: int, finished: Mapping[int, int], unfinished: Mapping[int, int], spare: int = 0
) -> bool:
    """Whether `choose` would find a step, from how many groups have each deadline: cheap, however many they are.

    >>> is_ready(step=2, batch_size=1, finished={4: 1, 3: 1}, unfinished={3: 1})
    True
    >>> is_ready(step=2, batch_size=1, finished={4: 1}, unfinished={3: 2})
    False
    """
    opened = done = 0
    for deadline in sorted(finished.keys() | unfinished.keys()):
        done += finished.get(deadline, 0)
        opened += finished.get(deadline, 0) + unfinished.get(deadline, 0)
        if min(batch_size, opened - spare - (deadline - step) * batch_size) > done:
            return False
    return done >= batch_size


def staleness_metrics(step: int, completions: Mapping[SampleId, Completion]) -> dict[str, float]:
    """How old the tokens of a step were, in policy versions, and how many samples are of several.

    `staleness/max` and `staleness/sample_mean` are of samples by their oldest token, `staleness/mean` of tokens.
    """
    ages: list[int] = []
    weights: list[int] = []
    oldest: list[int] = []
    mixed = 0
    for completion in completions.values():
        runs = [run for run in completion.versions if run.token_count]
        if not runs:
            continue
        ages += [step - 1 - run.version.step for run in runs]
        weights += [run.token_count for run in runs]
        oldest.append(step - 1 - min(run.version.step for run in runs))
        mixed += len({run.version for run in runs}) > 1
    if not oldest:
        return {}
    return {
        "staleness/mean": float(np.average(ages, weights=weights)),
        "staleness/max": float(max(oldest)),
        "staleness/sample_mean": float(np.mean(oldest)),
        "staleness/mixed_version_fraction": mixed / len(oldest),
    }
