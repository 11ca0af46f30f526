-- The algorithm of algorithm/sliding_buckets.rs: `counted` sub-buckets, the oldest counted in full. A value is a head
-- of 20 bytes and a ring of counts: bucket number b is at index b modulo `counted`. A count is an integer of 4 bytes, or,
-- if any count of the value was larger, a double.
local HEAD, HEAD_BYTES = '<ddI4', 20

-- Returns the number of bytes of a count and its format; nothing for a foreign value.
local function count_format(value, counted)
  if #value == 20 + counted * 4 then return 4, '<I4' end
  if #value == 20 + counted * 8 then return 8, '<d' end
end

-- Returns a value with counts of 4 bytes as a value with counts of 8 bytes.
local function widen_counts(value)
  local counts = {}
  for at = 21, #value, 4 do counts[#counts + 1] = struct.pack('<d', struct.unpack('<I4', value, at)) end
  return value:sub(1, 20) .. table.concat(counts)
end

local function decide(key, now, precision_us, window, max, counted, margin_s, required, cost, take)
  local value = call('GET', key)
  local last, total, expiry_s, width, format = 0, 0, 0, 4, '<I4'
  if not value then
    value = ('\0'):rep(HEAD_BYTES + counted * 4)
  else
    width, format = count_format(value, counted)
    if not width then return nil end
    last, total, expiry_s = unpack(HEAD, value)
    -- A foreign value of the same length could make the loops below run forever.
    if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  end
  local newest = last / precision_us
  newest = newest - newest % 1
  -- A clock that is behind charges the bucket of the last charge.
  local moment = newest * precision_us
  if moment > now + 1000000 then
    -- The clock has stepped back: all units are counted in the current bucket.
    newest = now / precision_us
    newest, moment = newest - newest % 1, now
    if total > 4294967295 then width, format = 8, '<d' end
    local ttl_ms
    expiry_s, ttl_ms =
      expiry_after_step(key, now, (newest + counted) * precision_us - now, precision_us * window, margin_s)
    local place = newest % counted
    value = pack(HEAD, moment, total, expiry_s)
      .. ('\0'):rep(place * width) .. pack(format, total) .. ('\0'):rep((counted - 1 - place) * width)
    call('SET', key, value, 'PX', ttl_ms)
  end
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
      used = used - unpack(format, value, HEAD_BYTES + bucket % counted * width + 1)
    end
  end
  local remaining = max - used
  local fits = required <= remaining
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if total > 0 then
      while newest > oldest and unpack(format, value, HEAD_BYTES + newest % counted * width + 1) == 0 do
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
      used = used - unpack(format, value, HEAD_BYTES + oldest % counted * width + 1)
      oldest = oldest + 1
    end
    return false, remaining, reset, (oldest - 1 + counted) * precision_us - now, 0
  end

  local charged, max_count = cost, max > 536870912 and 9007199254740991 or 536870912
  if cost > max_count - used then cost = used < max_count and max_count - used or 0 end
  if used + cost > 4294967295 and width == 4 then value, width, format = widen_counts(value), 8, '<d' end
  -- The buckets that have begun since the last charge are empty: `at_end` bytes of them are at the end of the ring, the
  -- others at its beginning.
  if running - newest >= counted then
    value = ('\0'):rep(HEAD_BYTES + counted * width)
  elseif running > newest then
    local first, begun_bytes = HEAD_BYTES + (newest + 1) % counted * width, (running - newest) * width
    local at_end = #value - first
    if at_end > begun_bytes then at_end = begun_bytes end
    value = value:sub(1, HEAD_BYTES) .. ('\0'):rep(begun_bytes - at_end)
      .. value:sub(HEAD_BYTES + begun_bytes - at_end + 1, first) .. ('\0'):rep(at_end) .. value:sub(first + at_end + 1)
  end
  local offset = HEAD_BYTES + running % counted * width
  local sum = unpack(format, value, offset + 1) + cost
  total = used + cost
  -- At the largest count, a charge may add no units. The newest bucket with units is then an earlier one.
  newest = running
  while sum == 0 and newest > running - counted + 1 and unpack(format, value, HEAD_BYTES + newest % counted * width + 1) == 0 do
    newest = newest - 1
  end
  local reset = (newest + counted) * precision_us - now
  local ttl_ms
  if now + reset > expiry_s * SECOND then
    expiry_s, ttl_ms = key_expiry(now, reset, precision_us * window, margin_s)
  end
  value = pack(HEAD, moment, total, expiry_s)
    .. value:sub(HEAD_BYTES + 1, offset) .. pack(format, sum) .. value:sub(offset + width + 1)
  if ttl_ms then call('SET', key, value, 'PX', ttl_ms) else call('SET', key, value, 'KEEPTTL') end
  return charged, max - total, reset, fits and 0 or 1, moment
end
