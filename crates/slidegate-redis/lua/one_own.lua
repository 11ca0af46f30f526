-- Decides one hit of an algorithm whose state has a key of its own.
local now, take, max, extra, keep, tick_us, window, cost =
  unpack('<dBxxxxxxxxI4I4I4ddd', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local charged, remaining, reset, retry, charged_at =
  decide(KEYS[1], now, tick_us, window, max, extra, keep, cost, take)
if charged == nil then return redis.error_reply(FOREIGN .. KEYS[1]) end
if not charged then return pack('<Bdddd', 0, remaining, reset, retry, 0) end
if remaining > 0 then return pack('<Bdddd', 1, remaining, reset, 0, charged_at) end
-- Nothing is left: nobody has to ask before a unit fits.
local _, _, _, wait = decide(KEYS[1], now, tick_us, window, max, extra, keep, 0, 0)
return pack('<Bdddd', 6, 0, reset, wait, charged_at)
