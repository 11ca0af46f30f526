-- What every script begins with. A script is this file, those of the algorithms that it shall know, and one
-- that decides; docs/REDIS.md tells which, and what goes in and comes out. Numbers are doubles: whatever
-- is counted here stays below 2^53, so they are exact.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local SECOND, MOST_UNITS = 1000000, 536870912
local FOREIGN = 'FOREIGN no value of slidegate stands at '

-- For a key that is not known to last as long as it has to: until when it shall, in seconds, and the
-- milliseconds to set for it. That is a window more than it needs, so that it is not set at every charge, and
-- `keep` seconds more, at least one: the clocks of callers differ, and what is known is rounded up.
local function lasts(now, reset, window_us, keep)
  local ms = (reset + window_us) / 1000
  local known = (now + reset + window_us) / SECOND
  known = known + -known % 1
  if known > 4294967295 then known = 4294967295 end
  return known, ms + -ms % 1 + keep * 1000
end
