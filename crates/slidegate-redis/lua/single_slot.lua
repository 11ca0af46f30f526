-- Decides one hit of an algorithm whose state is a slot (see slots.lua). Nearly always it is the only slot of its
-- value, so the others are seen to here and not by functions, which would have to be made at each call.
local now, take, tag, max, extra, keep, tick_us, window, cost, phase =
  unpack('<dBxxxxI4I4I4I4dddd', ARGV[1])
local required, debt = cost > 0 and cost or 1, 0
if #ARGV[1] > 61 then required, debt = unpack('<I4I4', ARGV[1], 62) end
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key)
local known, a, b, c, others = 0, 0, 0, 0, nil
if value then
  local found
  if #value == 28 then found, known, a, b, c = unpack('<I4I4ddI4', value) end
  if found ~= tag then
    if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end
    known, a, b, c, others = 0, 0, 0, 0, ''
    for at = 1, #value, 28 do
      local other, lasting, last = unpack('<I4I4d', value, at)
      if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return redis.error_reply(FOREIGN .. key) end
      if other == tag then
        a, b, c = unpack('<ddI4', value, at + 8)
      elseif lasting * SECOND >= now then
        others = others .. value:sub(at, at + 27)
      end
      if lasting > known then known = lasting end
    end
  end
end
local charged, remaining, reset, retry, charged_at
charged, remaining, reset, retry, charged_at, a, b, c =
  decide(now + phase, tick_us, window, max, extra, debt, required, cost, take, a, b, c)
if not charged then return pack('<Bdddd', 0, remaining, reset, retry, 0) end
local ms
if now + reset > known * SECOND then known, ms = lasts(now, reset, tick_us * window, keep) end
value = pack('<I4I4ddI4', tag, known, a, b, c)
if others then value = value .. others end
if ms then call('SET', key, value, 'PX', ms) else call('SET', key, value, 'KEEPTTL') end
if remaining > 0 and retry == 0 then return pack('<Bdddd', 1, remaining, reset, 0, charged_at) end
-- Nothing remains, or it did not fit: the reply has the time until one unit fits, so that callers do not call before.
local _, _, _, wait = decide(now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
if retry == 0 then return pack('<Bdddd', 6, remaining, reset, wait, charged_at) end
return pack('<Bdddd', 11, remaining, reset, wait == 0 and 1 or wait, charged_at)
