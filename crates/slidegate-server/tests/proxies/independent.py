"""Asks by Envoy's protocol as others have published it: one request in each line, as JSON, and each reply so."""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format

service = rls_pb2_grpc.RateLimitServiceStub(grpc.insecure_channel(sys.argv[1]))
for line in sys.stdin:
    request = json_format.Parse(line, rls_pb2.RateLimitRequest())
    try:
        reply = service.ShouldRateLimit(request, timeout=30)
        # All that it decodes it encodes again: nothing is lost that the published protocol does not know.
        assert reply == rls_pb2.RateLimitResponse.FromString(reply.SerializeToString())
        told = json_format.MessageToDict(reply)
    except grpc.RpcError as error:
        told = {"error": error.code().name, "details": error.details()}
    print(json.dumps(told), flush=True)
