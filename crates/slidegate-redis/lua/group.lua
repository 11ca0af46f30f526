-- Decides one request for the limits of one rule (see group_limits.lua).
local now, mode, _, margin_s{{, tag@, max@, extra@, tick_us@, window@, cost@, phase@, required@, debt@}} =
  unpack('<dBHd{{ddddddddd}}', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key) or ''
-- @decide_limits
return reply
