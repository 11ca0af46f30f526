"""A rate-limit client of Envoy's published protocol. Reads one JSON request per line, and prints one JSON response each."""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format

service = rls_pb2_grpc.RateLimitServiceStub(grpc.insecure_channel(sys.argv[1]))
for line in sys.stdin:
    request = json_format.Parse(line, rls_pb2.RateLimitRequest())
    try:
        response = service.ShouldRateLimit(request, timeout=30)
        # The response survives a round trip, so it has no field that the published protocol lacks.
        assert response == rls_pb2.RateLimitResponse.FromString(response.SerializeToString())
        result = json_format.MessageToDict(response)
    except grpc.RpcError as error:
        result = {"error": error.code().name, "details": error.details()}
    print(json.dumps(result), flush=True)
