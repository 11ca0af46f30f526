-- Decides one hit of an algorithm whose state is a slot (see slots.lua). It is nearly always the only slot of its
-- value, so the others are handled inline: Redis would create a function at each call.
local now, take, tag, cost, max, tick_us, window, extra, phase = unpack('<ddddddddd', ARGV[1])
local required, debt = cost > 0 and cost or 1, 0
if #ARGV[1] > 80 then required, debt = unpack('<dd', ARGV[1], 81) end
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key)
local expiry_s, a, b, c, other_slots = 0, 0, 0, 0, nil
if value then
  local found
  if #value == 28 then found, expiry_s, a, b, c = unpack('<I4I4ddI4', value) end
  if found ~= tag then
    if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end
    expiry_s, a, b, c, other_slots = 0, 0, 0, 0, ''
    for position = 1, #value, 28 do
      local other_tag, other_expiry_s, last_charge = unpack('<I4I4d', value, position)
      if last_charge < 0 or last_charge > 2 ^ 53 or last_charge % 1 ~= 0 then return redis.error_reply(FOREIGN .. key) end
      if other_tag == tag then
        a, b, c = unpack('<ddI4', value, position + 8)
      elseif other_expiry_s * SECOND >= now - SECOND then
        other_slots = other_slots .. value:sub(position, position + 27)
      end
      if other_expiry_s > expiry_s then expiry_s = other_expiry_s end
    end
  end
end
local charged, remaining, reset, retry, charged_at
charged, remaining, reset, retry, charged_at, a, b, c =
  decide(now + phase, tick_us, window, max, extra, debt, required, cost, take, a, b, c)
if charged == nil then
  -- The clock has stepped back. The state that is set back is written even if the hit is denied.
  a, b, c = remaining, reset, retry
  local margin_s, others, _ = unpack('<d', ARGV[1], 73), nil, nil
  _, _, reset = decide(now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
  value, expiry_s, others = set_back_slot(key, value, tag, now, reset, tick_us * window, margin_s, a, b, c)
  if #value > 28 then other_slots = others end
  charged, remaining, reset, retry, charged_at, a, b, c =
    decide(now + phase, tick_us, window, max, extra, debt, required, cost, take, a, b, c)
end
if not charged then return pack('<Bddddd', 0, remaining, reset, retry, 0, 0) end
local ttl_ms
if now + reset > expiry_s * SECOND then
  expiry_s, ttl_ms = key_expiry(now, reset, tick_us * window, unpack('<d', ARGV[1], 73))
end
value = pack('<I4I4ddI4', tag, expiry_s, a, b, c)
if other_slots then value = other_slots .. value end
if ttl_ms then
  call('SET', key, value, 'PX', ttl_ms)
elseif other_slots then
  call('SET', key, value, 'KEEPTTL')
else
  call('SETRANGE', key, '0', value)
end
if remaining > 0 and retry == 0 then return pack('<Bddddd', 1, remaining, reset, 0, charged_at, charged) end
-- Nothing remains, or the hit did not fit: the reply has the time until one unit fits, so that clients do not call
-- before.
local _, _, _, wait = decide(now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
if retry == 0 then return pack('<Bddddd', 6, remaining, reset, wait, charged_at, charged) end
return pack('<Bddddd', 11, remaining, reset, wait == 0 and 1 or wait, charged_at, charged)
