-- The algorithm of algorithm/concurrent.rs: the live permits of a key. A value is a sorted set. A permit has one member
-- for each of its units, `<id>:<number>`, and expires at its score. The member `newest` has the negative id of the newest
-- permit as its score, and the member `clock` the negative time at which a permit was last created or renewed, so they
-- are always the first.
--
-- `skew_ms` is the difference between the clocks of clients, by which permits live longer if clients use their clocks.

-- Gives each permit the time to live that it had when a permit was last created or renewed, if that was more than a second
-- after `now`: the clock has stepped back. `reset` is the time until the last permit expires. A permit of an earlier
-- policy may have a longer time to live than `ttl_us`. Returns whether the permits have changed.
local function set_back_permits(key, now, ttl_us, reset, margin_s)
  if reset <= ttl_us + SECOND then return false end
  local clock = -(call('ZSCORE', key, 'clock') or 0)
  if clock <= now + SECOND then return false end
  call('ZREMRANGEBYSCORE', key, 0, clock)
  local permits = call('ZRANGE', key, 0, '+inf', 'BYSCORE', 'WITHSCORES')
  for nth = 1, #permits, 2 do call('ZADD', key, permits[nth + 1] - clock + now, permits[nth]) end
  call('ZADD', key, -now, 'clock')
  local _, ttl_ms = expiry_after_step(key, now, reset - clock + now, 0, margin_s)
  call('PEXPIRE', key, ('%.0f'):format(ttl_ms))
  return true
end

-- Returns the number of live permits, and the time until the last one expires.
local function count_permits(key, now)
  local live = call('ZCOUNT', key, ('(%.0f'):format(now), '+inf')
  return live, live > 0 and call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] - now or 0
end

local function decide(key, now, _, ttl_us, max, skew_ms, margin_s, required, cost, take)
  local live, reset = count_permits(key, now)
  if set_back_permits(key, now, ttl_us + skew_ms * 1000, reset, margin_s) then live, reset = count_permits(key, now) end
  local remaining = max - live
  local fits = required <= remaining
  if take == 0 or (take == 1 and not fits) then
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The permits expire one by one, until enough units are free.
    local nth = required - max - 1
    return false, remaining, reset, call('ZRANGE', key, nth, nth, 'WITHSCORES')[2] - now, 0
  end

  local newest = -(call('ZSCORE', key, 'newest') or 0)
  local id = now > newest and now or newest + 1
  call('ZREMRANGEBYSCORE', key, 0, now)
  call('ZADD', key, -id, 'newest', -now, 'clock')
  -- A hit that is charged above the limit is charged only as far as units remain: there are never more live permits
  -- than max.
  local units = math.max(math.min(cost, remaining), 0)
  local expires = now + ttl_us + skew_ms * 1000
  for nth = 1, units do call('ZADD', key, expires, ('%.0f:%d'):format(id, nth)) end
  if units > 0 and expires - now > reset then reset = expires - now end
  -- The id of the newest permit is kept until all permits would have expired, so that no id is used twice.
  local _, ttl_ms = key_expiry(now, reset > ttl_us and reset or ttl_us, 0, margin_s)
  call('PEXPIRE', key, ttl_ms)
  return units, remaining - units, reset, fits and 0 or 1, id
end
