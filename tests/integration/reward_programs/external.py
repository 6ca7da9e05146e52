"""A reward server that knows nothing of Argosy but its proto (`python external.py PORT_FILE`): scores lengths.

Plain synchronous grpc without health service, membership or configuration, as somebody else would write it.
"""

from __future__ import annotations

import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1 import reward_service_pb2_grpc


class Lengths(reward_service_pb2_grpc.RewardServiceServicer):
    def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        response = pb.ScoreResponse()
        for item in request.items:
            result = response.results.add()
            result.sample_id.CopyFrom(item.sample_id)
            result.scored.score = float(len(item.response_text))
        return response

    def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Any) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(data_sources=["toy"], max_batch_size=3, name="lengths")


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    reward_service_pb2_grpc.add_RewardServiceServicer_to_server(Lengths(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    partial = Path(sys.argv[1]).with_suffix(".partial")
    partial.write_text(str(port))
    partial.rename(sys.argv[1])
    server.wait_for_termination()


if __name__ == "__main__":
    main()
