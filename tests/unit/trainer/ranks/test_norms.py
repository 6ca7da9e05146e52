"""Case E8: a norm of shards is that of all of them, on every rank."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from argosy.trainer.sharded import global_norm, total_over_ranks
from support.ranks import run_ranks

pytestmark = pytest.mark.xdist_group("ranks")


def sharded(mesh: Any, *pieces: list[float]) -> Tensor:
    """A DTensor whose piece on rank r is the r-th of `pieces`."""
    from torch.distributed.tensor import DTensor, Shard

    total = sum(map(len, pieces))
    local = torch.tensor(pieces[mesh.get_local_rank()])
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size([total]), stride=(1,))


def norms_on_two_ranks() -> dict[str, list[float]]:
    """What each rank finds; the same names on both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    case = [sharded(mesh, [3.0, 0.0], [0.0, 4.0])]
    empty = [sharded(mesh, [3.0], []), sharded(mesh, [], [4.0])]
    nan = [sharded(mesh, [1.0], [math.nan])]
    large = [sharded(mesh, [math.inf], [1.0])]
    copies = [distribute_tensor(torch.tensor([12.0]), mesh, [Replicate()]), torch.tensor([3.0]), *case]
    found = {"counts": total_over_ranks([1.0, 2.0], case)}
    for name, tensors in {"case": case, "empty": empty, "nan": nan, "inf": large, "copies": copies}.items():
        found[name] = [float(global_norm(tensors)), float(global_norm(tensors, math.inf))]
    return found


def clipped_on_two_ranks() -> dict[str, Any]:
    """One optimizer step per case: this rank's moment (a tenth of the clipped gradient) and the outcome."""
    from torch.distributed.device_mesh import init_device_mesh

    from argosy.trainer.optimizer import MasterOptimizer
    from argosy.trainer.options import OptimizerOptions
    from argosy.trainer.schedule import Schedule

    mesh = init_device_mesh("cpu", (2,))
    parameter = nn.Parameter(sharded(mesh, [1.0, 1.0], [1.0, 1.0]))
    optimizer = MasterOptimizer({"w": parameter}, OptimizerOptions(Schedule(1.0), weight_decay=0.0, grad_clip=1.0))
    parameter.grad = sharded(mesh, [3.0, 0.0], [0.0, 4.0])
    outcome = optimizer.step(0.1)
    moment = optimizer.state_tensors()["exp_avg/w"].to_local() * 10  # type: ignore[attr-defined]
    parameter.grad = sharded(mesh, [3.0, 0.0], [0.0, math.nan])
    skipped = optimizer.step(0.1)
    weights = parameter.detach().to_local()  # type: ignore[attr-defined]
    return {
        "norm": outcome.grad_norm,
        "changed": outcome.changed_share,
        "clipped": moment.tolist(),
        "skipped": [skipped.skipped, math.isnan(skipped.grad_norm), optimizer.skipped_steps],
        "finite": bool(torch.isfinite(weights).all()),
    }


def test_e8_norms_are_of_all_ranks_shards() -> None:
    for found in run_ranks(2, norms_on_two_ranks):
        assert found["case"] == [5.0, 4.0]
        assert found["empty"] == [5.0, 4.0], "an empty shard counts as nothing"
        assert all(map(math.isnan, found["nan"])), "also where the library's maximum would drop it"
        assert found["inf"] == [math.inf, math.inf]
        assert found["copies"] == pytest.approx([math.sqrt(144 + 9 + 25), 12.0]), "copies count once"
        assert found["counts"] == [2.0, 4.0]


def test_e8_gradients_are_scaled_by_the_norm_of_all_and_nan_on_one_rank_skips_on_both() -> None:
    first, second = run_ranks(2, clipped_on_two_ranks)
    assert (first["norm"], second["norm"]) == (5.0, 5.0)
    assert first["clipped"] == pytest.approx([0.6, 0.0], abs=1e-6)
    assert second["clipped"] == pytest.approx([0.0, 0.8], abs=1e-6)
    assert first["changed"] == second["changed"] == 0.5
    assert first["skipped"] == second["skipped"] == [True, True, 1]
    assert first["finite"]
    assert second["finite"]


def test_plain_tensors_are_their_own() -> None:
    assert float(global_norm([torch.tensor([3.0, 4.0])])) == 5.0
    assert total_over_ranks([2.0], [torch.zeros(1)]) == [2.0]
