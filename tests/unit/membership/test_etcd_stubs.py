from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import google.protobuf
import pytest

from argosy.membership.etcd_stubs import etcdrpc, load_etcd3


def test_f4_etcd3_imports_and_its_messages_survive_the_wire() -> None:
    assert load_etcd3().__version__ == "0.12.0"
    pb = etcdrpc()
    sent = pb.TxnRequest(
        compare=[pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=b"k", create_revision=0)],
        success=[pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=b"v", lease=7))],
    )
    received = pb.TxnRequest.FromString(sent.SerializeToString())
    assert received == sent
    assert received.compare[0].WhichOneof("target_union") == "create_revision"
    for stub in ("KV", "Watch", "Lease", "Cluster", "Maintenance", "Auth"):
        assert hasattr(pb, f"{stub}Stub")


def test_f4_the_installed_protobuf_is_in_the_range_that_we_declare() -> None:
    [declared] = [line for line in importlib.metadata.requires("argosy") or () if line.startswith("protobuf")]
    assert "<8" in declared
    assert ">=5.29.6" in declared
    major, minor, *_ = (int(part) for part in google.protobuf.__version__.split("."))
    assert (5, 29) <= (major, minor) < (8, 0)


@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_f4_works_with_either_implementation_of_protobuf_in_a_fresh_process(implementation: str) -> None:
    code = (
        "from argosy.membership.etcd_stubs import etcdrpc; "
        "print(len(etcdrpc().RangeRequest(key=b'k').SerializeToString()))"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout.strip(), ran.stderr) == ("3", "")


def test_f4_our_descriptors_leave_the_default_pool_alone() -> None:
    from google.protobuf import descriptor_pool

    etcdrpc()
    for name in ("rpc.proto", "kv.proto", "auth.proto"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(name)
