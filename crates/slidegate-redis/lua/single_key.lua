-- Decides one hit of an algorithm whose state has a key of its own.
local now, take, _, cost, max, tick_us, window, extra, _, margin_s = unpack('<dddddddddd', ARGV[1])
local required = cost > 0 and cost or 1
if #ARGV[1] > 80 then required = unpack('<d', ARGV[1], 81) end
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local charged, remaining, reset, retry, charged_at, wait =
  decide(KEYS[1], now, tick_us, window, max, extra, margin_s, required, cost, take)
if charged == nil then return redis.error_reply(FOREIGN .. KEYS[1]) end
if not charged then return pack('<Bddddd', 0, remaining, reset, retry, 0, 0) end
if remaining > 0 and retry == 0 then return pack('<Bddddd', 1, remaining, reset, 0, charged_at, charged) end
-- Nothing remains, or the hit did not fit: the reply has the time until one unit fits, so that clients do not call
-- before. Some algorithms return this time if they know it.
if not wait then _, _, _, wait = decide(KEYS[1], now, tick_us, window, max, extra, margin_s, 1, 0, 0) end
if retry == 0 then return pack('<Bddddd', 6, remaining, reset, wait, charged_at, charged) end
return pack('<Bddddd', 11, remaining, reset, wait == 0 and 1 or wait, charged_at, charged)
