"""gRPC: the only place, with the `service.py` files, that knows of channels, servers and protobuf messages.

Service authors start at `argosy.rpc.interceptors`, client authors at `argosy.rpc.channel`.
"""
