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
