from __future__ import annotations

import numpy as np

from argosy.rollout.engines.sampling.noise import noise_key, uniforms
from argosy.types.ids import SampleId


def test_every_part_of_the_key_matters() -> None:
    base = noise_key(7, "train", SampleId(0, 1, 2, 0))
    others = [
        noise_key(8, "train", SampleId(0, 1, 2, 0)),
        noise_key(7, "val", SampleId(0, 1, 2, 0)),
        noise_key(7, "train", SampleId(1, 1, 2, 0)),
        noise_key(7, "train", SampleId(0, 2, 2, 0)),
        noise_key(7, "train", SampleId(0, 1, 3, 0)),
        noise_key(7, "train", SampleId(0, 1, 2, 1)),
    ]
    assert len({base, *others}) == 7


def test_known_values_never_change() -> None:
    """A change of the noise would change every resumed run: it must be noticed."""
    key = noise_key(7, "train", SampleId(0, 12, 3))
    drawn = uniforms(np.array([key, key], np.uint64), np.array([0, 1], np.int64))
    assert key == 3364625983645141228
    np.testing.assert_allclose(drawn, [0.27272218466448755, 0.044218674753433385], rtol=0)


def test_numbers_are_uniform_and_open() -> None:
    keys = np.array([noise_key(0, "train", SampleId(0, 0, k)) for k in range(200)], np.uint64)
    drawn = np.concatenate([uniforms(keys, np.full(200, place, np.int64)) for place in range(100)])
    assert 0 < drawn.min() < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert np.abs(counts - 1000).max() < 150  # about five standard deviations


def test_positions_and_keys_are_independent_of_batch() -> None:
    keys = np.arange(1, 50, dtype=np.uint64)
    places = np.arange(49, dtype=np.int64)
    together = uniforms(keys, places)
    alone = [uniforms(keys[i : i + 1], places[i : i + 1])[0] for i in range(49)]
    assert together.tolist() == alone
