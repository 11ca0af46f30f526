-- Decides several hits of one request: every one that is enforced is charged, or none is.
local now, mode, hits = unpack('<dBH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local HIT = '<BBHI4I4I4I4dddd'

-- What is counted, each once: the values of groups of slots by key, and counters by key and tag.
local values, counters, waits, replies = {}, {}, {}, {}
local allowed, charges = true, false
for nth = 1, hits do
  local algorithm, admission, place, tag, max, extra, keep, tick_us, window, cost, phase =
    unpack(HIT, ARGV[1], nth * 52 - 40)
  local key, name = KEYS[place], place * 4294967296 + tag
  local counter = counters[name]
  if not counter then
    counter = { pending = 0, a = 0, b = 0, c = 0 }
    counters[name] = counter
    if slot[algorithm] then
      local value = values[key]
      if not value then
        value = call('GET', key) or ''
        if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end
        values[key] = value
      end
      local at = find(value, tag)
      if at then counter.a, counter.b, counter.c = unpack('<ddI4', value, at + 8) end
    end
  end

  -- As if the hits before it were charged.
  local wanted = counter.pending + (cost > 0 and cost or 1)
  local charged, remaining, reset, retry
  if own[algorithm] then
    charged, remaining, reset, retry =
      own[algorithm](key, now, tick_us, window, max, extra, keep, wanted, 0)
    if charged == nil then return redis.error_reply(FOREIGN .. key) end
  else
    charged, remaining, reset, retry =
      slot[algorithm](now + phase, tick_us, window, max, extra, wanted, 0, counter.a, counter.b, counter.c)
  end
  if admission ~= 1 or retry == 0 then counter.pending = counter.pending + cost end
  if admission == 0 and retry ~= 0 then allowed = false end
  if admission == 2 then charges = true end
  waits[nth] = retry
  replies[nth] = pack('<Bdddd', 0, remaining, reset, retry, 0)
end

-- Slots that are charged, by key and tag; and until when their keys are to last.
local changed, lasting, kept = {}, {}, {}
for nth = 1, mode == 1 and (allowed or charges) and hits or 0 do
  local algorithm, admission, place, tag, max, extra, keep, tick_us, window, cost, phase =
    unpack(HIT, ARGV[1], nth * 52 - 40)
  if cost > 0 and (admission == 2 or (allowed and (admission == 0 or waits[nth] == 0))) then
    local key = KEYS[place]
    local _, remaining, reset, at
    if own[algorithm] then
      _, remaining, reset, _, at =
        own[algorithm](key, now, tick_us, window, max, extra, keep, cost, 2)
    else
      local counter = counters[place * 4294967296 + tag]
      _, remaining, reset, _, at, counter.a, counter.b, counter.c =
        slot[algorithm](now + phase, tick_us, window, max, extra, cost, 2, counter.a, counter.b, counter.c)
      local slots = changed[key]
      if not slots then
        slots, lasting[key] = {}, latest(values[key])
        changed[key] = slots
      end
      local known = lasting[key]
      if now + reset > known * SECOND then
        known = lasts(now, reset, tick_us * window, keep)
        lasting[key], kept[key] = known, keep
      end
      slots[tag] = pack(SLOT, tag, known, counter.a, counter.b, counter.c)
    end
    replies[nth] = pack('<Bdddd', 1, remaining, reset, 0, at)
  end
end
for key, slots in pairs(changed) do
  local value = merged(values[key], slots, now)
  if kept[key] then
    call('SET', key, value, 'PX', lasting[key] * 1000 - now / 1000 + now / 1000 % 1 + kept[key] * 1000)
  else
    call('SET', key, value, 'KEEPTTL')
  end
end
return table.concat(replies)
