"""Counts in Redis with slidegate's script `check.lua`, without a slidegate server, and shares the counters of

    slidegate serve --store redis://…

for this rule (docs/reference/redis-wire-format.md documents the keys, the argument and the reply of the script):

    rules: [{ name: per-client, per: [client], limits: [5/h] }]

    pip install redis
    slidegate lua --out lua
    python limit.py lua redis://127.0.0.1/ sliding_window alice [number of requests]
"""
import json, sys
from pathlib import Path
from urllib.parse import quote
import redis

# The end of the key of a limit of an hour, by its algorithm.
KEY_ENDS = {"sliding_window": ":log", "sliding_log": ":1h:sliding_log:1h", "sliding_counter": ""}


def take(check, algorithm, client):
    """Requests one unit, and returns the reply of the script."""
    # An IPv6 address is counted by its network, whose text is not escaped: {client=(2001:db8::/64)}.
    key = f"slidegate:default:per-client:{{client={quote(client, safe='/@+:')}}}{KEY_ENDS[algorithm]}"
    limit = {"algorithm": algorithm, "max": 5, "window_ms": 3_600_000}
    return json.loads(check([key], [json.dumps({"limits": [limit]})]))


if __name__ == "__main__":
    folder, address, algorithm, client = sys.argv[1:5]
    connection = redis.Redis.from_url(address)
    # Sends EVALSHA, and the text of the script only if Redis does not have it.
    check = connection.register_script((Path(folder) / "check.lua").read_text())
    for _ in range(int(sys.argv[5]) if len(sys.argv) > 5 else 1):
        reply = take(check, algorithm, client)
        if reply["allowed"]:
            print(f"allowed, {reply['remaining']} left")
        else:
            print(f"denied, try again in {reply['retry_after_ms'] / 1000:.3f} s")
