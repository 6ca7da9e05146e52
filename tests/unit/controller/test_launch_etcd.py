"""etcd's start, as its user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.controller.launch.etcd import start_etcd
from argosy.controller.launch.supervisor import Supervisor
from argosy.types.errors import StorageError
from support.storm.trouble import small_disk


async def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        supervisor = Supervisor(tmp_path / "logs", grace_s=5.0)
        try:
            with pytest.raises(StorageError, match=r"no space left while writing .*: free some"):
                await start_etcd(supervisor, None, disk / "etcd", timeout_s=60)
        finally:
            await supervisor.stop()
