-- Decides several hits of one request: every one that is enforced is charged, or none is.
local now, mode, hits = unpack('<dBH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end

-- What the hits count on, each once: `values` of groups of slots by key, `counters` by key and tag.
local values, counters, asked = {}, {}, {}
local allowed = true
for nth = 1, hits do
  local algorithm, admission, place, tag, max, extra, keep, tick_us, window, cost, phase =
    unpack('<BBHI4I4I4I4dddd', ARGV[1], 12 + (nth - 1) * 52)
  local key = KEYS[place]
  local name = place * 4294967296 + tag
  local counter = counters[name]
  if not counter then
    counter = { key = key, tag = tag, a = 0, b = 0, c = 0, pending = 0 }
    counters[name] = counter
    if slot[algorithm] then
      local value = values[key]
      if not value then
        value = call('GET', key) or ''
        if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end
        values[key] = value
      end
      local at = find(value, tag)
      if at then
        local _
        _, _, counter.a, counter.b, counter.c = unpack(SLOT, value, at)
      end
    end
  end

  -- As if the hits before it were charged.
  local wanted = counter.pending + (cost > 0 and cost or 1)
  local known, remaining, reset, retry
  if own[algorithm] then
    known, remaining, reset, retry =
      own[algorithm](key, now, tick_us, window, max, extra, keep, wanted, 0)
    if known == nil then return redis.error_reply(FOREIGN .. key) end
  else
    known, remaining, reset, retry =
      slot[algorithm](now + phase, tick_us, window, max, extra, wanted, 0, counter.a, counter.b, counter.c)
  end
  if admission ~= 1 or retry == 0 then counter.pending = counter.pending + cost end
  if admission == 0 and retry ~= 0 then allowed = false end
  asked[nth] = { counter, algorithm, admission, max, extra, keep, tick_us, window, cost, phase, remaining, reset, retry }
end

local replies, charged = {}, {}
for nth = 1, hits do
  local counter, algorithm, admission, max, extra, keep, tick_us, window, cost, phase, remaining, reset, retry =
    table_unpack(asked[nth])
  local take = admission == 2 or (allowed and (admission == 0 or retry == 0))
  if mode == 1 and cost > 0 and take then
    local _, at
    if own[algorithm] then
      _, remaining, reset, _, at =
        own[algorithm](counter.key, now, tick_us, window, max, extra, keep, cost, 2)
    else
      _, remaining, reset, _, at, counter.a, counter.b, counter.c =
        slot[algorithm](now + phase, tick_us, window, max, extra, cost, 2, counter.a, counter.b, counter.c)
      if not counter.charged then charged[#charged + 1] = counter end
      counter.charged, counter.reset, counter.window_us, counter.keep = true, reset, tick_us * window, keep
    end
    replies[nth] = pack('<Bdddd', 1, remaining, reset, 0, at)
  else
    replies[nth] = pack('<Bdddd', 0, remaining, reset, retry, 0)
  end
end

-- Every group of slots is written once.
local written = {}
for nth = 1, #charged do
  local counter = charged[nth]
  local group = written[counter.key]
  if not group then
    group = { changed = {}, known = latest(values[counter.key]) }
    written[counter.key] = group
    written[#written + 1] = counter.key
  end
  local known, ms = lasts(now, counter.reset, group.known, counter.window_us, counter.keep)
  group.known, group.ms = known, ms or group.ms
  group.changed[counter.tag] = pack(SLOT, counter.tag, known, counter.a, counter.b, counter.c)
end
for nth = 1, #written do
  local key = written[nth]
  local group = written[key]
  local value = merged(values[key], group.changed, now)
  if group.ms then call('SET', key, value, 'PX', group.ms) else call('SET', key, value, 'KEEPTTL') end
end
return table.concat(replies)
