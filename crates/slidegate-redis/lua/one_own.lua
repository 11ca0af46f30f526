-- Decides one hit of an algorithm whose state has a key of its own.
local now, mode, _, admission, _, _, max, extra, keep, tick_us, window, cost, phase =
  unpack('<dBBBHI4I4I4I4dddd', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local state = load(KEYS[1], max, extra)
if not state then return redis.error_reply(FOREIGN .. KEYS[1]) end
local take = 0
if mode == 1 and cost > 0 then take = admission == 2 and 2 or 1 end
local charged, remaining, reset, retry, charged_at =
  decide(state, now + phase, tick_us, window, max, extra, cost, take)
if charged then
  local ms
  state.known, ms = lasts(now, reset, state.known, tick_us * window, keep)
  save(state, ms)
  return pack('<Bdddd', 1, remaining, reset, 0, charged_at)
end
return pack('<Bdddd', 0, remaining, reset, retry, 0)
