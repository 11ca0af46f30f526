"""Drives a server over HTTP at random, and compares every decision, figure and wait with a reference of its own.

usage: differential.py SECONDS SEED NAME=URL...

The server decides at a moment between the one at which a request was sent and the one at which its answer came. Where the
reference says the same at both, the server has to say so, too; where a limit changes in between, either is right.
"""

import http.client
import json
import random
import sys
import time
from urllib.parse import urlsplit

from reference import Bracket, ceil_div

# The rules of policy.yaml in this folder: the attributes of their identities, and their limits.
RULES = {
    "per-user": (["user"], [("1500ms", 1_500_000, 6, "sliding_log"), ("400ms", 400_000, 4, "sliding_window")]),
    "per-pair": (["user", "ip"], [("900ms", 900_000, 5, "sliding_buckets")]),
    "per-ip": (["ip"], [("700ms", 700_000, 7, "fixed_window"), ("1200ms", 1_200_000, 12, "token_bucket")]),
    "everybody": ([], [("1s", 1_000_000, 25, "sliding_window")]),
}
# Other limits for some users: of the same counts, where only max is another.
PRO = {("per-user", "1500ms"): 9, ("per-user", "400ms"): 6}
USERS, ADDRESSES = ["ann", "bob", "pro"], ["192.0.2.1", "192.0.2.2"]
# By how much the clocks of the server and of this program may differ, in microseconds.
CLOCKS_DIFFER = 500


def now_us():
    return time.time_ns() // 1000


class Mismatch(Exception):
    pass


class Side:
    """One server, and what the reference knows of it."""

    def __init__(self, name, url):
        self.name, self.counters = name, {}
        self.is_redis = name == "redis"
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self.asked = self.denied = self.unclear = self.compared = self.waits = 0
        self.come_back = []
        # The longest time from a request to its response, in microseconds. A cached wait counts from the response, so it may
        # be too long by that.
        self.slowest = 0

    def ask(self, path, attributes, cost):
        body = json.dumps({"attributes": attributes, "cost": cost})
        first = now_us() - CLOCKS_DIFFER
        self.connection.request("POST", path, body)
        answer = self.connection.getresponse()
        told = json.loads(answer.read())
        last = now_us() + CLOCKS_DIFFER
        self.slowest = max(self.slowest, last - first)
        return first, last, answer.status, told

    def limits(self, attributes):
        """The limits that apply, by rule and name: the counter and max."""
        found = {}
        for rule, (per, limits) in RULES.items():
            identity = ",".join(f"{name}={attributes[name]}" for name in per)
            for name, window, most, algorithm in limits:
                if attributes["user"] == "pro":
                    most = PRO.get((rule, name), most)
                key = f"default:{rule}:{name}:{{{identity}}}"
                counter = self.counters.get(key)
                if counter is None:
                    counter = self.counters[key] = Bracket(algorithm, window, key)
                found[rule, name] = counter, most
        return found

    def check(self, path, attributes, cost):
        first, last, status, told = self.ask(path, attributes, cost)
        limits, wanted = self.limits(attributes), max(cost, 1)
        self.asked += 1
        fits, fits_not = True, False
        for counter, most in limits.values():
            least_used, most_used = counter.used(first, last, most)
            fits = fits and most_used + wanted <= most
            fits_not = fits_not or least_used + wanted > most
        allowed = told["allowed"]
        self.expect(status == (200 if allowed else 429), "status", status, told)
        self.expect(not (allowed and fits_not), "allowed what does not fit", cost, told)
        self.expect(allowed or not fits, "denied what fits", cost, told)
        if not fits and not fits_not:
            self.unclear += 1
        reason = None
        if not allowed:
            self.denied += 1
            never = any(wanted > most for _, most in limits.values())
            reason = "cost_exceeds_max" if never else "limit_exceeded"
        self.expect(told["reason"] == reason, "reason", reason, told)
        is_charged = allowed and cost > 0 and path == "/v1/check"
        before = {name: counter.used(first, last, most) for name, (counter, most) in limits.items()}
        if is_charged:
            for counter, most in limits.values():
                counter.charge(first, last, cost, most)
        self.figures(limits, before, is_charged, wanted, first, last, told)
        if not allowed and told["retry_after_ms"] and path == "/v1/check":
            self.come_back.append((last + 1000 * told["retry_after_ms"], attributes, cost))

    def figures(self, limits, before, is_charged, wanted, first, last, told):
        seen = {(one["rule"], one["limit"]["name"]): one for one in told["limits"]}
        known_already = self.is_redis and not told["allowed"] and len(seen) < len(limits)
        self.expect(known_already or len(seen) == len(limits), "limits", len(limits), told)
        waits = []
        for name, (counter, most) in limits.items():
            least_used, most_used = counter.used(first, last, most)
            least_before, most_before = before[name]
            wait = counter.wait(wanted, first, last, most)
            if least_before + wanted > most:
                waits.append(wait)
            one = seen.get(name)
            if one is None:
                continue
            self.compared += 1
            self.expect(one["limit"]["max"] == most, "max", (name, most), told)
            left = [max(0, most - most_used), max(0, most - least_used)]
            known = (name, left, first, last, counter.late.__dict__)
            self.expect(left[0] <= one["remaining"] <= left[1], "remaining", known, told)
            reset = counter.reset(first, last, most)
            self.within("reset_after", one["reset_after_ms"], reset, (name, reset), told)
            if one["allowed"]:
                self.expect(one["retry_after_ms"] is None, "retry_after", name, told)
                self.expect(least_before + wanted <= most, "a limit that does not fit", name, told)
            else:
                self.expect(not is_charged and most_before + wanted > most, "a limit that fits", name, told)
                self.wait(one["retry_after_ms"], wait, name, told)
        if not told["allowed"] and waits:
            # A request waits for the last of its limits.
            longest = None if None in waits else (max(w[0] for w in waits), max(w[1] for w in waits))
            if longest is None or told["retry_after_ms"] is None:
                self.wait(told["retry_after_ms"], longest, "all", told)
            else:
                self.waits += 1
                self.expect(1000 * told["retry_after_ms"] >= longest[0], "wait too short", longest, told)

    def wait(self, told_ms, wait, name, told):
        if wait is None or told_ms is None:
            self.expect(wait is None and told_ms is None, "never", (name, wait), told)
            return
        self.within("retry_after", told_ms, wait, (name, wait), told)

    def within(self, what, told_ms, bounds_us, why, told):
        most_ms = ceil_div(bounds_us[1] + (self.slowest if self.is_redis else 0), 1000)
        self.expect(1000 * told_ms >= bounds_us[0], what, why, told)
        self.expect(told_ms <= most_ms, what, why, told)

    def expect(self, holds, what, wanted, told):
        if not holds:
            raise Mismatch(f"{self.name}, request {self.asked}: {what}: expected {wanted}, told {json.dumps(told)}")


def step(side, rng):
    attributes = {"user": rng.choice(USERS), "ip": rng.choice(ADDRESSES)}
    cost = rng.choice([0, 1, 1, 1, 1, 1, 2, 3, 5, 8, 30])
    due = [one for one in side.come_back if one[0] <= now_us()]
    if due and rng.random() < 0.5:
        # A promise is tested by coming back then, if nobody else has come between; the reference knows.
        _, attributes, cost = due[-1]
    side.come_back = [one for one in side.come_back if one[0] > now_us()][-20:]
    for _ in range(rng.choice([1, 1, 1, 2, 6])):
        side.check(rng.choice(["/v1/check"] * 5 + ["/v1/peek"]), attributes, cost)
    pause = rng.random()
    if pause < 0.15 and side.come_back:
        until = min(at for at, _, _ in side.come_back)
        time.sleep(min(max(0, until - now_us()) / 1e6, 0.3))
    elif pause < 0.40:
        time.sleep(rng.random() * 0.05)
    elif pause < 0.41:
        time.sleep(rng.random() * 2)


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    sides = [Side(*pair.split("=", 1)) for pair in sys.argv[3:]]
    rng, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        step(rng.choice(sides), rng)
    for side in sides:
        print(
            f"{side.name}: {side.asked} requests, {side.denied} denied, {side.unclear} at the edge of a limit, "
            f"{side.compared} limits compared, {side.waits} waits"
        )
        if side.asked < 3 * seconds or side.denied < side.asked // 20 or side.unclear > side.asked // 20:
            raise Mismatch(f"{side.name}: too little was compared")


try:
    main()
except Mismatch as mismatch:
    sys.exit(f"seed {sys.argv[2]}: {mismatch}")
