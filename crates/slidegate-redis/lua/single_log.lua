-- Decides one hit of an algorithm whose state is a log (see logs.lua). It is nearly always the only log of its value.
local now, take, tag, cost, max, tick_us, window, extra = unpack('<dddddddd', ARGV[1])
local required = cost > 0 and cost or 1
if #ARGV[1] > 80 then required = unpack('<d', ARGV[1], 81) end
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key) or ''
local before, after, latest_expiry_s
local charged, remaining, reset, retry, charged_at, state, expiry_s, rest =
  decide(value, now, tick_us, window, max, extra, required, cost, take, tag)
if charged == nil then
  before, value, after, latest_expiry_s = split_logs(value, tag, now)
  if before then
    before, value, after, latest_expiry_s = set_back_log(decide, key, before, value, after, latest_expiry_s, now,
      tick_us, window, max, extra, unpack('<d', ARGV[1], 73))
    charged, remaining, reset, retry, charged_at, state, expiry_s, rest =
      decide(value, now, tick_us, window, max, extra, required, cost, take, tag)
  end
  if charged == nil then return redis.error_reply(FOREIGN .. key) end
end
if not charged then return pack('<Bddddd', 0, remaining, reset, retry, 0, 0) end
local ttl_ms
if now + reset > expiry_s * SECOND then
  expiry_s = latest_expiry_s or expiry_s
  if now + reset > expiry_s * SECOND then
    expiry_s, ttl_ms = key_expiry(now, reset, tick_us * window, unpack('<d', ARGV[1], 73))
  end
elseif not rest and not before then
  call('SETRANGE', key, '8', state)
  if remaining <= 0 or retry ~= 0 then value = value:sub(1, 8) .. state .. value:sub(29) end
  state = nil
end
if state then
  rest = rest or value:sub(33)
  value = pack('<I4I4', tag, 24 + #rest) .. state .. pack('<I4', expiry_s) .. rest
  local whole_value = before and before .. value .. after or value
  if ttl_ms then call('SET', key, whole_value, 'PX', ttl_ms) else call('SET', key, whole_value, 'KEEPTTL') end
end
if remaining > 0 and retry == 0 then return pack('<Bddddd', 1, remaining, reset, 0, charged_at, charged) end
-- Nothing remains, or the hit did not fit: the reply has the time until one unit fits, so that clients do not call
-- before.
local _, _, _, wait = decide(value, now, tick_us, window, max, extra, 1, 0, 0, tag)
if retry == 0 then return pack('<Bddddd', 6, remaining, reset, wait, charged_at, charged) end
return pack('<Bddddd', 11, remaining, reset, wait == 0 and 1 or wait, charged_at, charged)
