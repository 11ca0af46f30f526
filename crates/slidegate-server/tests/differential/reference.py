"""The five algorithms, as docs/ALGORITHMS.md describes them, written anew and by brute force.

Every counter keeps all charges of the last three windows and looks at all of them. A charge that is later than the moment
that is asked about counts as made at that moment. Times are whole microseconds since the Unix epoch. No code of slidegate
was used.
"""

FNV_OFFSET, FNV_PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def fnv1a(text):
    """FNV-1a, 64 bits."""
    value = FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * FNV_PRIME) & MASK
    return value


def ceil_div(numerator, denominator):
    return -(-numerator // denominator)


def kept(charges, now, window):
    """Charges that may count at any moment near to now."""
    return [(at, cost) for at, cost in charges if at > now - 3 * window]


class SlidingLog:
    def __init__(self, window, key):
        self.window, self.charges = window, []

    def used(self, now, limit):
        return sum(cost for at, cost in self.charges if at > now - self.window)

    def charge(self, now, cost, limit):
        self.charges = kept(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        moments = [now] + sorted(at + self.window for at, _ in self.charges)
        return first_fit(self, moments, cost, now, limit)

    def reset_at(self, now, limit):
        counted = [at + self.window for at, _ in self.charges if at > now - self.window]
        return max(counted, default=now)


class SlidingBuckets:
    """A tenth of the window is a bucket; the running bucket and ten before it count in full."""

    def __init__(self, window, key):
        self.precision, self.charges = window // 10, []

    def used(self, now, limit):
        first = now // self.precision - 10
        return sum(cost for at, cost in self.charges if at // self.precision >= first)

    def leaves(self, at):
        return (at // self.precision + 11) * self.precision

    def charge(self, now, cost, limit):
        self.charges = kept(self.charges, now, self.precision * 10) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        moments = [now] + sorted(self.leaves(at) for at, _ in self.charges)
        return first_fit(self, moments, cost, now, limit)

    def reset_at(self, now, limit):
        return max([self.leaves(at) for at, _ in self.charges if self.leaves(at) > now], default=now)


class SlidingWindow:
    """The running window in full, and the one before it by what is left of it. Only for windows of up to 16 s, in which
    a tick is a microsecond."""

    def __init__(self, window, key):
        self.window, self.charges = window, []

    def counts(self, now):
        running = now // self.window
        previous = sum(cost for at, cost in self.charges if at // self.window == running - 1)
        return previous, sum(cost for at, cost in self.charges if at // self.window >= running)

    def used(self, now, limit):
        previous, running = self.counts(now)
        return running + ceil_div(previous * (self.window - now % self.window), self.window)

    def charge(self, now, cost, limit):
        self.charges = kept(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        # The weight only falls until the end of the next window, so the moment is found by halving.
        last = max([now] + [at for at, _ in self.charges])
        low, high = now, (last // self.window + 2) * self.window
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.used(middle, limit) + cost <= limit else (middle + 1, high)
        return low

    def reset_at(self, now, limit):
        previous, running = self.counts(now)
        windows = 2 if running else 1 if previous else 0
        return (now // self.window + windows) * self.window if windows else now


class FixedWindow:
    """Windows begin at a phase of the key's own."""

    def __init__(self, window, key):
        self.window, self.phase, self.charges = window, fnv1a(key) % window, []

    def nth(self, at):
        return (at + self.phase) // self.window

    def used(self, now, limit):
        return sum(cost for at, cost in self.charges if self.nth(at) >= self.nth(now))

    def end(self, now):
        return (self.nth(now) + 1) * self.window - self.phase

    def charge(self, now, cost, limit):
        self.charges = kept(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        at = now
        while self.used(at, limit) + cost > limit:
            at = self.end(at)
        return at

    def reset_at(self, now, limit):
        return self.end(now) if self.used(now, limit) else now


class TokenBucket:
    """A level that leaks `limit` units in a window. It is kept in units times the window, so it is a whole number."""

    def __init__(self, window, key):
        self.window, self.level, self.at = window, 0, 0

    def level_at(self, now, limit):
        return max(0, self.level - (now - self.at) * limit)

    def used(self, now, limit):
        return ceil_div(self.level_at(now, limit), self.window)

    def charge(self, now, cost, limit):
        self.level, self.at = self.level_at(now, limit) + cost * self.window, now

    def fits_at(self, cost, now, limit):
        over = self.level_at(now, limit) + (cost - limit) * self.window
        return now + max(0, ceil_div(over, limit))

    def reset_at(self, now, limit):
        return now + ceil_div(self.level_at(now, limit), limit)


ALGORITHMS = {
    "sliding_log": SlidingLog,
    "sliding_buckets": SlidingBuckets,
    "sliding_window": SlidingWindow,
    "fixed_window": FixedWindow,
    "token_bucket": TokenBucket,
}


def first_fit(counter, moments, cost, now, limit):
    return next(at for at in moments if at >= now and counter.used(at, limit) + cost <= limit)


class Bracket:
    """A counter whose charges were made between two moments each, since nobody knows when exactly: one counter charges at
    the first of them and another at the last. A later charge leaves no sooner, so what is true lies between the two."""

    def __init__(self, algorithm, window, key):
        self.early = ALGORITHMS[algorithm](window, key)
        self.late = ALGORITHMS[algorithm](window, key)

    def charge(self, first, last, cost, limit):
        self.early.charge(first, cost, limit)
        self.late.charge(last, cost, limit)

    def used(self, first, last, limit):
        """The least and the most that can be used at a moment between these."""
        return self.early.used(last, limit), self.late.used(first, limit)

    def wait(self, cost, first, last, limit):
        """The least and the longest wait until a cost fits; None if it never does."""
        if cost > limit:
            return None
        early = self.early.fits_at(cost, first, limit) - last
        late = self.late.fits_at(cost, first, limit) - first
        return max(0, early), max(0, late)

    def reset(self, first, last, limit):
        early = min(self.early.reset_at(at, limit) for at in (first, last)) - last
        late = max(self.late.reset_at(at, limit) for at in (first, last)) - first
        return max(0, early), max(0, late)
