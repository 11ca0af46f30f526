-- The beginning of every script. A script consists of this file, the files of the algorithms that it needs, and a
-- driver that decides or changes counters; docs/reference/redis-wire-format.md documents the combinations, arguments
-- and replies. Numbers are doubles. All counts stay below 2^53, so they are exact.
--
-- Redis creates all functions at each call, at a cost that grows with the local variables outside of them that they use.
-- So the functions of the frequent paths use none, and rare paths create their functions themselves.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local SECOND, MAX_SMALL_UNITS = 1000000, 536870912
local FOREIGN = 'FOREIGN value not written by slidegate at '

-- Returns the new expiry of a key whose expiry is too early: the time in seconds, and the time to live in milliseconds.
-- The expiry is a window later than needed, so that it is not set at every charge, and `margin_s` seconds later than
-- that, at least one: the clocks of clients differ, and the recorded time is rounded up.
local function key_expiry(now, reset, window_us, margin_s)
  local ms = (reset + window_us) / 1000
  local expiry_s = (now + reset + window_us) / 1000000
  expiry_s = expiry_s + -expiry_s % 1
  if expiry_s > 4294967295 then expiry_s = 4294967295 end
  return expiry_s, ms + -ms % 1 + margin_s * 1000
end

-- After a clock has stepped back, returns the time in seconds until which a key is known to exist, and its new time to
-- live in milliseconds. The units of the key now count until `reset` has passed. The recorded expiry is not used,
-- because it is a time of the old clock.
local function expiry_after_step(key, now, reset, window_us, margin_s)
  local _, ttl_ms = key_expiry(now, reset, window_us, margin_s)
  local left_ms = redis.call('PTTL', key)
  if left_ms > ttl_ms then ttl_ms = left_ms end
  local expiry_s = now / 1000000 + ttl_ms / 1000 - margin_s
  if expiry_s > 4294967295 then expiry_s = 4294967295 end
  return expiry_s - expiry_s % 1, ttl_ms
end

-- Writes the state of a slot (see slots.lua) whose units were moved to `now`. Returns the value, the known expiry of the
-- key, the other slots, and the new time to live of the key.
local function set_back_slot(key, value, tag, now, reset, window_us, margin_s, a, b, c)
  local expiry_s, ttl_ms = expiry_after_step(key, now, reset, window_us, margin_s)
  local others = ''
  value = value:gsub(('.'):rep(28), function(slot)
    local slot_tag, slot_expiry_s = struct.unpack('<I4I4', slot)
    if slot_tag == tag then return struct.pack('<I4I4ddI4', tag, expiry_s, a, b, c) end
    if slot_expiry_s > expiry_s then slot = struct.pack('<I4I4', slot_tag, expiry_s) .. slot:sub(9) end
    others = others .. slot
    return slot
  end)
  redis.call('SET', key, value, 'PX', ttl_ms)
  return value, expiry_s, others, ttl_ms
end
