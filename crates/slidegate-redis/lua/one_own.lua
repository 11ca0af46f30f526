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
return pack('<Bdddd', charged and 1 or 0, remaining, reset, retry, charged_at)
