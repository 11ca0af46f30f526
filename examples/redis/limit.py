"""Counts in Redis with slidegate's scripts, without slidegate, and shares the keys of

    slidegate serve --store redis://…

for this rule (docs/reference/redis-wire-format.md documents the arguments and replies of the scripts):

    rules: [{ name: per-client, per: [client], limits: [5/h] }]

    pip install redis
    python limit.py redis://127.0.0.1/ sliding_window alice [number of requests]
"""
import functools, hashlib, struct, sys
from pathlib import Path
from urllib.parse import quote
import redis

PREFIX, MAX, WINDOW_US = "slidegate:", 5, 3_600_000_000
# For each algorithm: the time unit for a window of an hour (in microseconds), the
# resolution, the end of the key, and the parts of the script. All limits of a rule with the algorithm `sliding_window`
# share a key, as do those with `sliding_counter`. A `sliding_log` has a key of its own.
ALGORITHMS = {
    "sliding_window": (1000, 32, ":log", ["base", "logs", "sliding_window", "single_log"]),
    "sliding_log": (10, 0, ":1h:sliding_log:1h", ["base", "sliding_log", "single_key"]),
    "sliding_counter": (1000, 0, "", ["base", "sliding_counter", "single_slot"]),
}
LUA = Path(__file__).parents[2] / "crates/slidegate-redis/lua"


@functools.cache
def script(algorithm):
    text = "\n".join((LUA / f"{file}.lua").read_text() for file in ALGORITHMS[algorithm][-1])
    return text, hashlib.sha1(text.encode()).hexdigest()


def fnv1a(text):
    return functools.reduce(lambda hash, byte: (hash ^ byte) * 0x01000193 % 2**32, text.encode(), 0x811C9DC5)


def take(connection, algorithm, client):
    """Requests one unit. Returns whether it is allowed, the remaining units, and the retry delay in seconds."""
    tick_us, resolution, key_end, _ = ALGORITHMS[algorithm]
    counter = f"1h:{algorithm}:1h"  # the limit's id, and its shape: algorithm and window
    # An IPv6 address is counted by its network, whose text is not escaped: {client=(2001:db8::/64)}.
    key = f"{PREFIX}default:per-client:{{client={quote(client, safe='/@+:')}}}{key_end}"
    # -1: Redis reads its own clock. First 1: charge the unit if it fits. Second 1: the cost. The time unit, and the window
    # in time units. 0: no offset of the window edges. Last 1: the key is kept one second longer than it is needed.
    numbers = [-1, 1, fnv1a(counter), 1, MAX, tick_us, WINDOW_US // tick_us, resolution, 0, 1]
    argument = struct.pack("<10d", *numbers)
    text, sha = script(algorithm)
    try:
        reply = connection.evalsha(sha, 1, key, argument)
    except redis.exceptions.NoScriptError:
        reply = connection.eval(text, 1, key, argument)
    # `retry` is the delay until the next unit is available. It is also set if the last unit was charged.
    charged, remaining, _reset, retry, _at = struct.unpack("<Bdddd", reply)
    return charged > 0, int(remaining), retry / 1e6


if __name__ == "__main__":
    address, algorithm, client = sys.argv[1:4]
    connection = redis.Redis.from_url(address)
    for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 1):
        allowed, remaining, retry = take(connection, algorithm, client)
        print(f"allowed, {remaining} left" if allowed else f"denied, try again in {retry:.3f} s")
