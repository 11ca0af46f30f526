"""Counts in Redis with slidegate's script `check.lua`, without a slidegate server, and shares the counters of

    slidegate serve --store redis://…

for this rule (docs/reference/redis-wire-format.md documents the keys, the argument and the reply of the script):

    rules: [{ name: per-client, per: [client], limits: [5/h] }]

    pip install redis
    slidegate lua --out lua
    python limit.py lua redis://127.0.0.1/ sliding_window alice [number of requests]
"""
import json, sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import quote
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# The end of the key of a limit of an hour, by its algorithm.
KEY_ENDS = {"sliding_window": ":log", "sliding_log": ":1h:sliding_log:1h", "sliding_counter": ""}


def key_value(value):
    """Returns a value of `per` as a server writes it in the key: an IPv6 address as its network, any other text escaped."""
    if len(value.encode()) > 400:
        raise ValueError("a server may shorten a value of more than 400 bytes; send a hash of it")
    try:
        address = ip_address(value) if "%" not in value else None
    except ValueError:
        address = None
    if address is None or address.version == 4:
        return quote(value, safe="/@+:")
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"({ip_network((address, 64), strict=False)})"


def take(check, algorithm, client):
    """Requests one unit, and returns the reply of the script."""
    key = f"slidegate:default:per-client:{{client={key_value(client)}}}{KEY_ENDS[algorithm]}"
    limit = {"algorithm": algorithm, "max": 5, "window_ms": 3_600_000}
    return json.loads(check([key], [json.dumps({"limits": [limit]})]))


if __name__ == "__main__":
    folder, address, algorithm, client = sys.argv[1:5]
    # By default, redis-py repeats a call whose reply does not arrive, which would charge it twice.
    connection = redis.Redis.from_url(address, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    # Sends EVALSHA, and the text of the script only if Redis does not have it.
    check = connection.register_script((Path(folder) / "check.lua").read_text())
    for _ in range(int(sys.argv[5]) if len(sys.argv) > 5 else 1):
        reply = take(check, algorithm, client)
        if reply["allowed"]:
            print(f"allowed, {reply['remaining']} left")
        else:
            # null if the cost never fits; the cost is 1 here.
            print(f"denied, try again in {reply['retry_after_ms'] / 1000:.3f} s")
