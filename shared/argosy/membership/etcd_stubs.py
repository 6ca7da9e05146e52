"""Lets the unmodified `etcd3` 0.12.0 run on today's protobuf (case F4).

etcd3 ships modules generated for protobuf 3, which newer runtimes refuse to import ("Descriptors cannot be created
directly"). The serialized file descriptors inside them are as good as ever, so we read those from the package's source,
build message classes and stubs from them, and put the result where `import etcd3` looks: `sys.modules`.

The descriptors go into a pool of their own: their file names ("rpc.proto", "kv.proto") are too common for the default
pool, and another etcd client in the process must not collide with them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from argosy.types.errors import UnavailableError

_MODULE = "etcd3.etcdrpc"
_FILES = ("kv", "auth", "rpc")  # in the order of their imports of each other


def load_etcd3() -> Any:
    """Import and return `etcd3` with working stubs. Cheap after the first call."""
    if "etcd3" not in sys.modules:
        sys.modules[_MODULE] = _build_etcdrpc()
    return importlib.import_module("etcd3")


def etcdrpc() -> Any:
    """The stub module that etcd3 uses: messages of rpc.proto and `KVStub`, `WatchStub`, `LeaseStub` …"""
    load_etcd3()
    return sys.modules[_MODULE]


def _build_etcdrpc() -> types.ModuleType:
    pool = descriptor_pool.DescriptorPool()
    module = types.ModuleType(_MODULE, "Built by argosy.membership.etcd_stubs from etcd3's own descriptors.")
    names: list[str] = []
    for stem in _FILES:
        serialized = _serialized_descriptor(_stub_folder() / f"{stem}_pb2.py")
        file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
        pool.AddSerializedFile(serialized)
        names.append(file.name)
    classes = message_factory.GetMessageClassesForFiles(names, pool)
    _add_messages(module, file, classes)
    for service in file.service:
        setattr(module, f"{service.name}Stub", _stub_class(file.package, service, classes))
    return module


def _stub_folder() -> Path:
    spec = importlib.util.find_spec("etcd3")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        raise UnavailableError("the Python package etcd3 is not installed: pip install 'etcd3==0.12.0'")
    return Path(spec.origin).parent / "etcdrpc"


def _serialized_descriptor(source: Path) -> bytes:
    """The bytes behind `serialized_pb=_b('…')` of a module generated for protobuf 3, without running it."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            literal = ast.literal_eval(node.value.args[0])
            return literal if isinstance(literal, bytes) else str(literal).encode("latin1")
    raise UnavailableError(
        f"{source} holds no serialized descriptor; Argosy knows etcd3 0.12.0, reinstall that version"
    )


def _add_messages(module: types.ModuleType, file: descriptor_pb2.FileDescriptorProto, classes: dict[str, Any]) -> None:
    for message in file.message_type:
        setattr(module, message.name, classes[f"{file.package}.{message.name}"])
    for enum in file.enum_type:
        for value in enum.value:
            setattr(module, value.name, value.number)


def _stub_class(package: str, service: descriptor_pb2.ServiceDescriptorProto, classes: dict[str, Any]) -> type:
    """A class like a generated stub: one callable attribute per method, made from a channel."""

    def __init__(self: Any, channel: grpc.Channel) -> None:
        for method in service.method:
            arity = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
            connect = getattr(channel, "_".join(arity))
            call = connect(
                f"/{package}.{service.name}/{method.name}",
                request_serializer=classes[method.input_type.lstrip(".")].SerializeToString,
                response_deserializer=classes[method.output_type.lstrip(".")].FromString,
            )
            setattr(self, method.name, call)

    return type(f"{service.name}Stub", (), {"__init__": __init__, "__doc__": f"Client of etcd's {service.name}."})
