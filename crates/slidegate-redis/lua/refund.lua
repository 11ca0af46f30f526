-- Takes units off counters, of those that still count the oldest, and says how each then stands. What is not there
-- stays away.
local now, hits = unpack('<dH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local answers = {}
for nth = 1, hits do
  local algorithm, place, tag, max, extra, tick_us, window, cost, phase =
    unpack('<BHI4I4I4dddd', ARGV[1], 11 + (nth - 1) * 47)
  local key, refund = KEYS[place], refunds[algorithm]
  local _, remaining, reset, wait
  if own[algorithm] then
    local done = refund(key, now, tick_us, window, max, extra, cost)
    if not done then return redis.error_reply(FOREIGN .. key) end
    _, remaining, reset, wait = own[algorithm](key, now, tick_us, window, max, extra, 0, 1, 0, 0)
  else
    local value = call('GET', key) or ''
    local found, is_foreign = find(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    local a, b, c = 0, 0, 0
    if found then
      local _, known, d, e, f = unpack(SLOT, value, found)
      a, b, c = refund(now + phase, tick_us, window, cost, d, e, f)
      if a ~= d or b ~= e or c ~= f then
        value = value:sub(1, found - 1) .. pack(SLOT, tag, known, a, b, c) .. value:sub(found + 28)
        call('SET', key, value, 'KEEPTTL')
      end
    end
    _, remaining, reset, wait =
      slot[algorithm](now + phase, tick_us, window, max, extra, 0, 1, 0, 0, a, b, c)
  end
  answers[nth] = pack('<Bdddd', 0, remaining, reset, wait, 0)
end
return table.concat(answers)
