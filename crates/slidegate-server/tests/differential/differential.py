"""Sends random requests to a server over HTTP, and compares every decision, limit status and wait with a reference.

usage: differential.py SECONDS SEED NAME=URL[=ADMIN_URL]...

The server decides at some moment between sending a request and receiving its response. If the reference gives the same
result at both moments, the server must give that result. If a limit changes between them, either result is correct.
"""

import http.client
import json
import random
import re
import sys
import time
from urllib.parse import urlsplit
from urllib.request import urlopen

from reference import Bracket, ceil_div

# Rules of policy.yaml: their domain, the attributes of their keys, and their limits as (name, window, max, algorithm).
RULES = {
    "per-user": ("default", ["user"], [("1500ms", 1_500_000, 6, "sliding_log"), ("400ms", 400_000, 4, "sliding_counter")]),
    "per-pair": ("default", ["user", "ip"], [("900ms", 900_000, 5, "sliding_buckets")]),
    "per-ip": ("default", ["ip"], [("700ms", 700_000, 7, "fixed_window"), ("1200ms", 1_200_000, 12, "token_bucket")]),
    "global": ("default", [], [("1s", 1_000_000, 25, "sliding_window")]),
    "large-per-user": (
        "large",
        ["user"],
        [
            ("1100ms", 1_100_000, 2**53 - 1, "sliding_buckets"),
            ("600ms", 600_000, 2**53 - 1, "fixed_window"),
            ("800ms", 800_000, 2**53 - 1, "sliding_window"),
        ],
    ),
    "product-per-user": (
        "product",
        ["user"],
        [("1300ms", 1_300_000, 2**29, "token_bucket"), ("500ms", 500_000, 2**29, "sliding_counter")],
    ),
    "bulk-per-user": ("bulk", ["user"], [("1s", 1_000_000, 100, "sliding_window")]),
}
# Overrides of max for the user `pro`, by rule and limit. They share the counters of the other limits.
PRO = {("per-user", "1500ms"): 9, ("per-user", "400ms"): 6, ("bulk-per-user", "1s"): 60}
# Units for each unit of a cost in the domains with large limits, so that a few requests use up a limit.
UNITS = {"large": (2**53 - 1) // 12, "product": 2**29 // 12}
# The largest cost of a request.
MAX_COST = 2**53 - 1
USERS, ADDRESSES = ["ann", "bob", "pro"], ["192.0.2.1", "192.0.2.2"]
# Maximum difference between the clocks of the server and of this program, in microseconds.
MAX_CLOCK_SKEW_US = 500
# Maximum age of a denial from the denial cache, in microseconds: the default of --deny-cache-ttl.
DENY_CACHE_TTL_US = 1_000_000
# Maximum number of cases in which a sliding window can be. Slow responses double it with each charge.
MAX_CASES = 64


def now_us():
    return time.time_ns() // 1000


class Mismatch(Exception):
    pass


class Server:
    """A server under test, and the reference counters of its keys."""

    def __init__(self, name, url, admin_url=None):
        self.name, self.counters = name, {}
        self.is_redis = name == "redis"
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self.admin_url, self.cached_denials = admin_url, 0
        self.requests = self.denied = self.borderline = self.compared = self.waits = 0
        # Denied requests to retry: time of the retry, domain, attributes and cost.
        self.retries = []
        # Longest time from a request to its response. The wait of a cached denial counts from the response, so it may
        # exceed the exact wait by this time.
        self.max_latency_us = 0

    def send(self, path, domain, attributes, cost):
        body = json.dumps({"domain": domain, "attributes": attributes, "cost": cost})
        first = now_us() - MAX_CLOCK_SKEW_US
        self.connection.request("POST", path, body)
        response = self.connection.getresponse()
        decision = json.loads(response.read())
        last = now_us() + MAX_CLOCK_SKEW_US
        self.max_latency_us = max(self.max_latency_us, last - first)
        return first, last, response.status, decision

    def is_from_denial_cache(self):
        """Returns whether the last denial is from the denial cache."""
        if self.admin_url is None:
            return False
        with urlopen(f"{self.admin_url}/metrics") as response:
            found = re.search(r"^slidegate_deny_cache_hits_total (\d+)", response.read().decode(), re.MULTILINE)
        before, self.cached_denials = self.cached_denials, int(found[1])
        return self.cached_denials > before

    def limits(self, domain, attributes):
        """Returns the limits that apply, by rule and limit name: the counter and max."""
        found = {}
        for rule, (rule_domain, per, limits) in RULES.items():
            if rule_domain != domain:
                continue
            values = ",".join(f"{name}={attributes[name]}" for name in per)
            for name, window, maximum, algorithm in limits:
                if attributes["user"] == "pro":
                    maximum = PRO.get((rule, name), maximum)
                key = f"{domain}:{rule}:{name}:{{{values}}}"
                counter = self.counters.get(key)
                if counter is None:
                    counter = self.counters[key] = Bracket(algorithm, window, key)
                found[rule, name] = counter, maximum
        return found

    def check(self, path, domain, attributes, cost):
        first, last, status, decision = self.send(path, domain, attributes, cost)
        limits, required = self.limits(domain, attributes), max(cost, 1)
        self.requests += 1
        always_fits, never_fits = True, False
        for counter, maximum in limits.values():
            min_used, max_used = counter.used(first, last, maximum)
            always_fits = always_fits and max_used + required <= maximum
            never_fits = never_fits or min_used + required > maximum
        allowed = decision["allowed"]
        self.expect(status == (200 if allowed else 429), "status", status, decision)
        self.expect(not (allowed and never_fits), "allowed, but does not fit", cost, decision)
        self.expect(allowed or not always_fits, "denied, but fits", cost, decision)
        if not always_fits and not never_fits:
            self.borderline += 1
        reason = None
        if not allowed:
            self.denied += 1
            exceeds_max = any(required > maximum for _, maximum in limits.values())
            reason = "cost_exceeds_max" if exceeds_max else "limit_exceeded"
        self.expect(decision["reason"] == reason, "reason", reason, decision)
        is_cached = not allowed and self.is_from_denial_cache()
        is_charged = allowed and cost > 0 and path == "/v1/check"
        before = {name: counter.used(first, last, maximum) for name, (counter, maximum) in limits.items()}
        if is_charged:
            for counter, maximum in limits.values():
                counter.charge(first, last, cost, maximum)
        self.check_limits(limits, before, is_charged, is_cached, required, first, last, decision)
        if any(len(counter.pairs) > MAX_CASES for counter, _ in limits.values()):
            # The next charge finds only entries that have left, so that there is one case again.
            time.sleep(2 * max(window for _, _, limits in RULES.values() for _, window, _, _ in limits) / 1e6)
        if not allowed and decision["retry_after_ms"] and path == "/v1/check":
            self.retries.append((last + 1000 * decision["retry_after_ms"], domain, attributes, cost))

    def check_limits(self, limits, before, is_charged, is_cached, required, first, last, decision):
        statuses = {(status["rule"], status["limit"]["name"]): status for status in decision["limits"]}
        self.expect(len(statuses) == len(limits), "limits", len(limits), decision)
        waits = []
        for name, (counter, maximum) in limits.items():
            min_used, max_used = counter.used(first, last, maximum)
            min_before, max_before = before[name]
            wait = counter.wait(required, first, last, maximum)
            if min_before + required > maximum:
                waits.append(wait)
            status = statuses[name]
            self.compared += 1
            reset = counter.reset(first, last, maximum)
            if is_cached and status["allowed"]:
                # The figures of the last response of Redis, and the charges since.
                _, max_used = counter.used(first - DENY_CACHE_TTL_US, last, maximum)
                reset = 0, reset[1]
            self.expect(status["limit"]["max"] == maximum, "max", (name, maximum), decision)
            remaining = [max(0, maximum - max_used), max(0, maximum - min_used)]
            expected = (name, remaining, first, last, [late.__dict__ for _, late in counter.pairs])
            self.expect(remaining[0] <= status["remaining"] <= remaining[1], "remaining", expected, decision)
            self.expect_within("reset_after", status["reset_after_ms"], reset, (name, reset), decision)
            if status["allowed"]:
                self.expect(status["retry_after_ms"] is None, "retry_after", name, decision)
                self.expect(min_before + required <= maximum, "a limit that does not fit", name, decision)
            else:
                self.expect(not is_charged and max_before + required > maximum, "a limit that fits", name, decision)
                self.check_wait(status["retry_after_ms"], wait, name, decision)
        if not decision["allowed"] and waits:
            # The wait of a request is the longest wait of its limits.
            longest = None if None in waits else (max(w[0] for w in waits), max(w[1] for w in waits))
            if longest is None or decision["retry_after_ms"] is None:
                self.check_wait(decision["retry_after_ms"], longest, "all", decision)
            else:
                self.waits += 1
                self.expect(1000 * decision["retry_after_ms"] >= longest[0], "wait too short", longest, decision)

    def check_wait(self, actual_ms, wait, name, decision):
        if wait is None or actual_ms is None:
            self.expect(wait is None and actual_ms is None, "never", (name, wait), decision)
            return
        self.expect_within("retry_after", actual_ms, wait, (name, wait), decision)

    def expect_within(self, subject, actual_ms, bounds_us, expected, decision):
        upper_ms = ceil_div(bounds_us[1] + (self.max_latency_us if self.is_redis else 0), 1000)
        self.expect(1000 * actual_ms >= bounds_us[0], subject, expected, decision)
        self.expect(actual_ms <= upper_ms, subject, expected, decision)

    def expect(self, holds, subject, expected, decision):
        if not holds:
            raise Mismatch(
                f"{self.name}, request {self.requests}: {subject}: expected {expected}, received {json.dumps(decision)}"
            )


def step(server, rng):
    attributes = {"user": rng.choice(USERS), "ip": rng.choice(ADDRESSES)}
    domain = rng.choice(["default", "default", "bulk", "large", "product"])
    cost = rng.choice([0, 1, 1, 1, 1, 1, 2, 3, 5, 8, 30])
    if cost > 0 and domain in UNITS:
        cost = min(cost * UNITS[domain] + rng.randint(0, 2), MAX_COST)
    due = [retry for retry in server.retries if retry[0] <= now_us()]
    if due and rng.random() < 0.5:
        # Retries a denied request after its retry_after. The reference includes requests that were charged since then.
        _, domain, attributes, cost = due[-1]
    server.retries = [retry for retry in server.retries if retry[0] > now_us()][-20:]
    for _ in range(rng.choice([1, 20, 60] if domain == "bulk" else [1, 1, 1, 2, 6])):
        server.check(rng.choice(["/v1/check"] * 5 + ["/v1/peek"]), domain, attributes, cost)
        if domain == "bulk":
            # Different costs, and gaps of up to the length of an entry.
            cost = rng.choice([0, 1, 1, 1, 2, 3, 5])
            time.sleep(rng.choice([0, 0, 0, 0.001, 0.005, 0.02]))
    pause = rng.random()
    if pause < 0.15 and server.retries:
        until = min(at for at, *_ in server.retries)
        time.sleep(min(max(0, until - now_us()) / 1e6, 0.3))
    elif pause < 0.40:
        time.sleep(rng.random() * 0.05)
    elif pause < 0.41:
        time.sleep(rng.random() * 2)


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    servers = [Server(*argument.split("=")) for argument in sys.argv[3:]]
    rng, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        step(rng.choice(servers), rng)
    for server in servers:
        print(
            f"{server.name}: {server.requests} requests, {server.denied} denied, "
            f"{server.cached_denials} from the denial cache, {server.borderline} at the edge of a limit, "
            f"{server.compared} limits compared, {server.waits} waits"
        )
        is_too_short = server.requests < 3 * seconds or server.denied < server.requests // 20
        is_too_short = is_too_short or server.is_redis and server.cached_denials < server.denied // 20
        if is_too_short or server.borderline > server.requests // 20:
            raise Mismatch(f"{server.name}: too few comparable requests")


try:
    main()
except Mismatch as mismatch:
    sys.exit(f"seed {sys.argv[2]}: {mismatch}")
