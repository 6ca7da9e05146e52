"""A running job seen and steered from outside, over gRPC."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from argosy.cli.main import main
from argosy.rpc.clients.controller import ControllerClient
from support.toy import ToyJob


async def endpoint(folder: Path, timeout_s: float = 90) -> str:
    deadline = time.monotonic() + timeout_s
    while not (folder / "endpoint.json").exists():
        assert time.monotonic() < deadline, "the controller did not come up"
        await asyncio.sleep(0.1)
    return str(json.loads((folder / "endpoint.json").read_text())["address"])


async def steer(folder: Path) -> None:
    client = ControllerClient(await endpoint(folder))
    try:
        run = await client.get_run()
        assert run.total_steps == 100000
        [member] = await client.list_members("controller")
        assert member.member_id == "controller-0"
        for command in ("status", "members"):
            assert await asyncio.to_thread(main, [command, "--run", str(folder), "--json"]) == 0
        await client.pause()
        async for seen in client.watch_run():
            if seen.stage == "paused":
                break
        step = (await client.get_run()).step
        await asyncio.sleep(0.5)
        still = await client.get_run()
        assert (still.step, still.state) == (step, "paused")
        assert "critic/score/mean" in still.metrics
        await client.resume()
        async for seen in client.watch_run():
            if seen.step > step:
                break
        stopping = await client.stop("enough seen")
        assert stopping.message == "enough seen"
    finally:
        await client.close()


def test_watch_pause_resume_and_stop(toy_job: ToyJob) -> None:
    process = toy_job.start(
        "steered", "argosy.placement=inprocess", "trainer.total_training_steps=100000", "trainer.val_before_train=False"
    )
    try:
        asyncio.run(asyncio.wait_for(steer(toy_job.folder / "steered"), 120))
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    steps = [row["step"] for row in toy_job.metrics("steered")]
    assert (toy_job.folder / "steered" / f"global_step_{steps[-1]}" / "manifest.json").exists(), "a stop keeps the work"
    assert not (toy_job.folder / "steered" / "endpoint.json").exists()
