-- The algorithm of algorithm/concurrent.rs: the live permits of a key. A value is a sorted set. A permit has one member
-- for each of its units, `<id>:<number>`, and expires at its score. The member `newest` has the negative id of the newest
-- permit as its score, so it is always the first.
--
-- `skew_ms` is the difference between the clocks of clients, by which permits live longer if clients use their clocks.
local function decide(key, now, _, ttl_us, max, skew_ms, margin_s, required, cost, take)
  local live = call('ZCOUNT', key, ('(%.0f'):format(now), '+inf')
  local remaining = max - live
  local fits = required <= remaining
  local reset = 0
  if take == 0 or (take == 1 and not fits) then
    if live > 0 then reset = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] - now end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The permits expire one by one, until enough units are free.
    local nth = required - max - 1
    return false, remaining, reset, call('ZRANGE', key, nth, nth, 'WITHSCORES')[2] - now, 0
  end

  local newest = -(call('ZSCORE', key, 'newest') or 0)
  local id = now > newest and now or newest + 1
  call('ZREMRANGEBYSCORE', key, 0, now)
  call('ZADD', key, -id, 'newest')
  -- There are never more live permits than max.
  local units = math.max(math.min(cost, remaining), 0)
  local expires = now + ttl_us + skew_ms * 1000
  for nth = 1, units do call('ZADD', key, expires, ('%.0f:%d'):format(id, nth)) end
  if live + units > 0 then reset = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] - now end
  -- The id of the newest permit is kept until all permits would have expired.
  local _, ttl_ms = key_expiry(now, reset > ttl_us and reset or ttl_us, 0, margin_s)
  call('PEXPIRE', key, ttl_ms)
  return units, remaining - units, reset, fits and 0 or 1, id
end
