-- Twin of algorithm/sliding_buckets.rs: `counted` sub-buckets, the oldest counted in full. A value is a head
-- of 20 bytes and a ring of 32-bit counts: bucket number b stands at b modulo `counted`.
local HEAD, HEAD_BYTES = '<ddI4', 20

local function count_of(log, bucket)
  return unpack('<I4', log.counts, bucket % log.counted * 4 + 1)
end

local function set_count(log, bucket, count)
  local at = bucket % log.counted * 4
  log.counts = log.counts:sub(1, at) .. pack('<I4', count) .. log.counts:sub(at + 5)
end

local function load(key, _, counted)
  local value = call('GET', key)
  if not value then
    return { key = key, counted = counted, last = 0, total = 0, known = 0, counts = ('\0'):rep(counted * 4) }
  end
  if #value ~= HEAD_BYTES + counted * 4 then return nil end
  local last, total, known = unpack(HEAD, value)
  return { key = key, counted = counted, last = last, total = total, known = known, counts = value:sub(HEAD_BYTES + 1) }
end

-- The numbers of the oldest and of the newest bucket that are held.
local function held(log, precision_us)
  local newest = log.last / precision_us
  newest = newest - newest % 1
  local oldest = newest - log.counted + 1
  return oldest > 0 and oldest or 0, newest
end

local function expires(log, precision_us, now)
  if log.total == 0 then return 0 end
  local oldest, bucket = held(log, precision_us)
  while bucket > oldest and count_of(log, bucket) == 0 do bucket = bucket - 1 end
  local span = (bucket + log.counted) * precision_us - now
  return span > 0 and span or 0
end

local function decide(log, now, precision_us, _, max, counted, cost, take)
  local moment = now > log.last and now or log.last
  local running = moment / precision_us
  running = running - running % 1
  local oldest, newest = held(log, precision_us)
  local used = log.total
  if running - counted + 1 > newest then
    used = 0
  else
    for bucket = oldest, running - counted do used = used - count_of(log, bucket) end
  end
  local remaining = max - used
  if remaining < 0 then remaining = 0 end

  local wanted = cost > 0 and cost or 1
  local fits = wanted <= remaining
  if take == 2 or (take == 1 and fits) then
    local stale = running - newest
    if stale >= counted then
      log.counts = ('\0'):rep(counted * 4)
    else
      for bucket = newest + 1, running do
        if count_of(log, bucket) > 0 then set_count(log, bucket, 0) end
      end
    end
    local count = count_of(log, running)
    local sum = count + cost
    if sum > MOST_UNITS then sum = MOST_UNITS end
    set_count(log, running, sum)
    log.total, log.last = used + sum - count, moment
    remaining = max - log.total
    if remaining < 0 then remaining = 0 end
    return true, remaining, expires(log, precision_us, now), 0, moment
  end

  local reset = expires(log, precision_us, now)
  if fits then return false, remaining, reset, 0, 0 end
  if wanted > max then return false, remaining, reset, -1, 0 end
  -- The oldest buckets leave one by one, until what is left of the total makes room.
  local kept, bucket = log.total, oldest
  while kept + wanted > max do
    kept = kept - count_of(log, bucket)
    bucket = bucket + 1
  end
  return false, remaining, reset, (bucket - 1 + counted) * precision_us - now, 0
end

local function save(log, ms)
  local value = pack(HEAD, log.last, log.total, log.known) .. log.counts
  if ms then call('SET', log.key, value, 'PX', ms) else call('SET', log.key, value, 'KEEPTTL') end
end
