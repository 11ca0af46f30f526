"""Brute-force implementations of the six algorithms, from docs/explanation/algorithms.md without code of slidegate.

Each counter keeps all charges of at least the last three windows and scans all of them. A charge later than the evaluated moment
counts as made at that moment. Times are integer microseconds since the Unix epoch.
"""

# Maximum time before the latest charge at which a counter is evaluated, in microseconds.
MAX_AGE_US = 2_000_000
FNV_OFFSET, FNV_PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def fnv1a(text):
    """Returns the 64-bit FNV-1a hash of a text."""
    value = FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * FNV_PRIME) & MASK
    return value


def ceil_div(numerator, denominator):
    return -(-numerator // denominator)


def recent(charges, now, window):
    """Returns the charges that can still count at a moment near `now`."""
    return [(at, cost) for at, cost in charges if at > now - 3 * window - MAX_AGE_US]


class SlidingLog:
    def __init__(self, window, key):
        self.window, self.charges = window, []

    def used(self, now, limit):
        return sum(cost for at, cost in self.charges if at > now - self.window)

    def charge(self, now, cost, limit):
        self.charges = recent(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        moments = [now] + sorted(at + self.window for at, _ in self.charges)
        return first_fit(self, moments, cost, now, limit)

    def reset_at(self, now, limit):
        counted = [at + self.window for at, _ in self.charges if at > now - self.window]
        return max(counted, default=now)


class SlidingWindow:
    """A compacted log of the default resolution: entries of (first charge, newest charge, units), oldest first.

    Only for windows of up to 33 s, in which a tick is a microsecond, and without reports, which may cause debts. Merges
    of old entries are not implemented; an assertion checks that none is necessary. Requests are sequential, so two
    charges never have the same tick."""

    RESOLUTION = 32

    def __init__(self, window, key, entries=()):
        self.window, self.entries = window, list(entries)

    def used(self, now, limit):
        return sum(units for _, newest, units in self.entries if newest > now - self.window)

    def has_space(self, cost, limit):
        """Returns whether the newest entry has at most max / resolution units, rounded up, after a charge."""
        return bool(self.entries) and self.entries[-1][2] + cost <= ceil_div(limit, self.RESOLUTION)

    def is_open(self, span):
        """Returns whether a charge this long after the first charge of an entry may join the entry."""
        return span * self.RESOLUTION < self.window

    def with_charge(self, now, cost, joins):
        """Returns a copy with a charge that joins the newest entry or begins an entry."""
        entries = [entry for entry in self.entries if entry[1] > now - 2 * self.window - MAX_AGE_US]
        if joins:
            first, _, units = entries.pop()
            entries.append((first, now, units + cost))
        else:
            entries.append((now, now, cost))
        assert sum(newest > now - self.window for _, newest, _ in entries) <= 3 * self.RESOLUTION
        return SlidingWindow(self.window, None, entries)

    def fits_at(self, cost, now, limit):
        moments = [now] + [newest + self.window for _, newest, _ in self.entries]
        return first_fit(self, moments, cost, now, limit)

    def reset_at(self, now, limit):
        return max([newest + self.window for _, newest, _ in self.entries if newest > now - self.window], default=now)


class SlidingBuckets:
    """Buckets of a tenth of the window. The current bucket and the ten buckets before it count in full."""

    def __init__(self, window, key):
        self.precision, self.charges = window // 10, []

    def used(self, now, limit):
        first = now // self.precision - 10
        return sum(cost for at, cost in self.charges if at // self.precision >= first)

    def expires_at(self, at):
        return (at // self.precision + 11) * self.precision

    def charge(self, now, cost, limit):
        self.charges = recent(self.charges, now, self.precision * 10) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        moments = [now] + sorted(self.expires_at(at) for at, _ in self.charges)
        return first_fit(self, moments, cost, now, limit)

    def reset_at(self, now, limit):
        return max([self.expires_at(at) for at, _ in self.charges if self.expires_at(at) > now], default=now)


class SlidingCounter:
    """The current window in full, plus the previous window weighted by its remaining overlap.

    Only for windows of up to 16 s, in which a tick is a microsecond."""

    def __init__(self, window, key):
        self.window, self.charges = window, []

    def window_counts(self, now):
        running = now // self.window
        previous = sum(cost for at, cost in self.charges if at // self.window == running - 1)
        return previous, sum(cost for at, cost in self.charges if at // self.window >= running)

    def used(self, now, limit):
        previous, running = self.window_counts(now)
        return running + ceil_div(previous * (self.window - now % self.window), self.window)

    def charge(self, now, cost, limit):
        self.charges = recent(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        # Usage never grows until the end of the next window, so a binary search finds the moment.
        last = max([now] + [at for at, _ in self.charges])
        low, high = now, (last // self.window + 2) * self.window
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.used(middle, limit) + cost <= limit else (middle + 1, high)
        return low

    def reset_at(self, now, limit):
        previous, running = self.window_counts(now)
        windows = 2 if running else 1 if previous else 0
        return (now // self.window + windows) * self.window if windows else now


class FixedWindow:
    """Windows whose start is shifted by a hash of the key."""

    def __init__(self, window, key):
        self.window, self.phase, self.charges = window, fnv1a(key) % window, []

    def window_index(self, at):
        return (at + self.phase) // self.window

    def used(self, now, limit):
        return sum(cost for at, cost in self.charges if self.window_index(at) >= self.window_index(now))

    def window_end(self, now):
        return (self.window_index(now) + 1) * self.window - self.phase

    def charge(self, now, cost, limit):
        self.charges = recent(self.charges, now, self.window) + [(now, cost)]

    def fits_at(self, cost, now, limit):
        at = now
        while self.used(at, limit) + cost > limit:
            at = self.window_end(at)
        return at

    def reset_at(self, now, limit):
        return self.window_end(now) if self.used(now, limit) else now


class TokenBucket:
    """A level that drains by `limit` units per window. It is stored in units times the window, so it is an integer."""

    def __init__(self, window, key):
        self.window, self.level, self.at = window, 0, 0

    def level_at(self, now, limit):
        return max(0, self.level - (now - self.at) * limit)

    def used(self, now, limit):
        return ceil_div(self.level_at(now, limit), self.window)

    def charge(self, now, cost, limit):
        self.level, self.at = self.level_at(now, limit) + cost * self.window, now

    def fits_at(self, cost, now, limit):
        excess = self.level_at(now, limit) + (cost - limit) * self.window
        return now + max(0, ceil_div(excess, limit))

    def reset_at(self, now, limit):
        return now + ceil_div(self.level_at(now, limit), limit)


ALGORITHMS = {
    "sliding_log": SlidingLog,
    "sliding_buckets": SlidingBuckets,
    "sliding_window": SlidingWindow,
    "sliding_counter": SlidingCounter,
    "fixed_window": FixedWindow,
    "token_bucket": TokenBucket,
}


def first_fit(counter, moments, cost, now, limit):
    return next(at for at in moments if at >= now and counter.used(at, limit) + cost <= limit)


class Bracket:
    """A counter with uncertain charge times, as pairs of counters.

    The exact moment of each charge is unknown, but lies between `first` and `last`. One counter of a pair charges at
    `first`, the other at `last`. A later charge never expires earlier, so the true usage lies between the two.

    There is one pair, except for a sliding window: if it depends on the exact moments whether a charge joins an entry,
    there is a pair for each case, and the true usage lies between the two counters of one pair."""

    def __init__(self, algorithm, window, key):
        new = ALGORITHMS[algorithm]
        self.pairs = [(new(window, key), new(window, key))]

    def charge(self, first, last, cost, limit):
        if isinstance(self.pairs[0][0], SlidingWindow):
            self.charge_windows(first, last, cost, limit)
            return
        for early, late in self.pairs:
            early.charge(first, cost, limit)
            late.charge(last, cost, limit)

    def charge_windows(self, first, last, cost, limit):
        pairs = {}
        for early, late in self.pairs:
            cases = {False}
            if early.has_space(cost, limit):
                spans = (first - late.entries[-1][0], last - early.entries[-1][0])
                cases = {early.is_open(span) for span in spans}
            for joins in cases:
                pair = early.with_charge(first, cost, joins), late.with_charge(last, cost, joins)
                # Cases are equal when the entries in which they differ have left.
                pairs[tuple(pair[0].entries), tuple(pair[1].entries)] = pair
        self.pairs = list(pairs.values())

    def used(self, first, last, limit):
        """Returns the minimum and maximum usage at any moment between `first` and `last`."""
        return (
            min(early.used(last, limit) for early, _ in self.pairs),
            max(late.used(first, limit) for _, late in self.pairs),
        )

    def wait(self, cost, first, last, limit):
        """Returns the shortest and longest possible wait until a cost fits, or None if it never fits."""
        if cost > limit:
            return None
        early = min(early.fits_at(cost, first, limit) for early, _ in self.pairs) - last
        late = max(late.fits_at(cost, first, limit) for _, late in self.pairs) - first
        return max(0, early), max(0, late)

    def reset(self, first, last, limit):
        early = min(early.reset_at(at, limit) for early, _ in self.pairs for at in (first, last)) - last
        late = max(late.reset_at(at, limit) for _, late in self.pairs for at in (first, last)) - first
        return max(0, early), max(0, late)
