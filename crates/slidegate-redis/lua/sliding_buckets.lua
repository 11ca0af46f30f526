-- The algorithm of algorithm/sliding_buckets.rs: `counted` sub-buckets, the oldest counted in full. A value is a head
-- of 20 bytes and a ring of 32-bit counts: bucket number b is at index b modulo `counted`.
local HEAD, HEAD_BYTES = '<ddI4', 20

local function decide(key, now, precision_us, window, max, counted, margin_s, required, cost, take)
  local value = call('GET', key)
  local last, total, expiry_s = 0, 0, 0
  if not value then
    value = ('\0'):rep(HEAD_BYTES + counted * 4)
  elseif #value ~= HEAD_BYTES + counted * 4 then
    return nil
  else
    last, total, expiry_s = unpack(HEAD, value)
    -- A foreign value of the same length could make the loops below run forever.
    if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  end
  local newest = last / precision_us
  newest = newest - newest % 1
  -- A clock that is behind charges the bucket of the last charge.
  local moment = newest * precision_us
  if now > moment then moment = now end
  local running = moment / precision_us
  running = running - running % 1
  local oldest = newest - counted + 1
  if oldest < 0 then oldest = 0 end

  local used = total
  if running - counted + 1 > newest then
    used = 0
  else
    for bucket = oldest, running - counted do
      used = used - unpack('<I4', value, HEAD_BYTES + bucket % counted * 4 + 1)
    end
  end
  local remaining = max - used
  local fits = required <= remaining
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if total > 0 then
      while newest > oldest and unpack('<I4', value, HEAD_BYTES + newest % counted * 4 + 1) == 0 do
        newest = newest - 1
      end
      reset = (newest + counted) * precision_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The oldest buckets leave one by one, until the required units are free.
    if oldest <= running - counted then oldest = running - counted + 1 end
    while required > max - used and oldest <= running do
      used = used - unpack('<I4', value, HEAD_BYTES + oldest % counted * 4 + 1)
      oldest = oldest + 1
    end
    return false, remaining, reset, (oldest - 1 + counted) * precision_us - now, 0
  end

  -- The buckets that have begun since the last charge are empty: `at_end` bytes of them are at the end of the ring, the
  -- others at its beginning.
  if running - newest >= counted then
    value = ('\0'):rep(HEAD_BYTES + counted * 4)
  elseif running > newest then
    local first, begun_bytes = HEAD_BYTES + (newest + 1) % counted * 4, (running - newest) * 4
    local at_end = #value - first
    if at_end > begun_bytes then at_end = begun_bytes end
    value = value:sub(1, HEAD_BYTES) .. ('\0'):rep(begun_bytes - at_end)
      .. value:sub(HEAD_BYTES + begun_bytes - at_end + 1, first) .. ('\0'):rep(at_end) .. value:sub(first + at_end + 1)
  end
  local offset = HEAD_BYTES + running % counted * 4
  local count = unpack('<I4', value, offset + 1)
  local sum = count + cost
  if sum > MAX_UNITS then sum = MAX_UNITS end
  total = used + sum - count
  local reset = (running + counted) * precision_us - now
  local ttl_ms
  if now + reset > expiry_s * SECOND then
    expiry_s, ttl_ms = key_expiry(now, reset, precision_us * window, margin_s)
  end
  value = pack(HEAD, moment, total, expiry_s)
    .. value:sub(HEAD_BYTES + 1, offset) .. pack('<I4', sum) .. value:sub(offset + 5)
  if ttl_ms then call('SET', key, value, 'PX', ttl_ms) else call('SET', key, value, 'KEEPTTL') end
  return cost, max - total, reset, fits and 0 or 1, moment
end
