-- Decides one hit of an algorithm whose state is a slot.
local now, mode, _, admission, _, tag, max, extra, keep, tick_us, window, cost, phase =
  unpack('<dBBBHI4I4I4I4dddd', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key)
local known, at, a, b, c, _ = 0, nil, 0, 0, 0
if value then
  if #value % 28 > 0 then return foreign(key) end
  at = find(value, tag)
  if at then _, known, a, b, c = unpack(SLOT, value, at) end
  if #value > 28 or not at then known = latest(value) end
end
local take = 0
if mode == 1 and cost > 0 then take = admission == 2 and 2 or 1 end
local charged, remaining, reset, retry, charged_at
charged, remaining, reset, retry, charged_at, a, b, c =
  decide(now + phase, tick_us, window, max, extra, cost, take, a, b, c)
if charged then
  local ms
  known, ms = lasts(now, reset, known, tick_us * window, keep)
  local slot = pack(SLOT, tag, known, a, b, c)
  if value and not (at and #value == 28) then slot = merged(value, { [tag] = slot }, now) end
  if ms then call('SET', key, slot, 'PX', ms) else call('SET', key, slot, 'KEEPTTL') end
  return pack('<Bdddd', 1, remaining, reset, 0, charged_at)
end
return pack('<Bdddd', 0, remaining, reset, retry, 0)
