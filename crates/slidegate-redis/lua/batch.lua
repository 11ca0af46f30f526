-- Decides requests one after another, each on its own: all that it has enforced is charged, or nothing is. A
-- value of slots is read once and written once, however many hits are counted in it.
local arg = ARGV[1]
local now, shared, count, asks = unpack('<dHHH', arg)
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local HIT, HIT_BYTES = '<HHI4Bd', 17
local ANSWER = '<Bdddd'

-- The limits that hits are held against, each once.
local limits, at = {}, 15
for nth = 1, count do
  local algorithm, tag, max, extra, keep, tick_us, window = unpack('<BI4I4I4I4dd', arg, at)
  limits[nth] = {
    slot = slot[algorithm], own = own[algorithm],
    tag = tag, max = max, extra = extra, keep = keep, tick_us = tick_us, window = window,
  }
  at = at + 33
end

-- By the place of their key: the values of slots; and of those that are to be written, the milliseconds that they
-- shall live, 0 for as long as they do.
local values, lives = {}, {}
if shared > 0 and shared < 4000 then values = call('MGET', _G.unpack(KEYS, 1, shared)) end

-- The value of slots at a place; nil if something else stands there, which MGET passes over.
local function value_at(place)
  local value = values[place] or redis.pcall('GET', KEYS[place]) or ''
  if type(value) == 'table' then return nil end
  values[place] = value
  return value
end

-- Where a slot begins, whether the value is none of ours, until when the key is known to last, and the state.
local function slot_of(value, tag)
  local found, is_foreign = find(value, tag)
  if not found then return nil, is_foreign, 0, 0, 0, 0 end
  local _, known, a, b, c = unpack(SLOT, value, found)
  return found, false, known, a, b, c
end

-- Until when the key is known to last: the latest of its slots.
local function latest(value)
  local known = 0
  for slot_at = 5, #value, 28 do
    local other = unpack('<I4', value, slot_at)
    if other > known then known = other end
  end
  return known
end

-- A charged slot, whose key is seen to last.
local function charged_slot(place, limit, known, reset, a, b, c)
  if now + reset > known * SECOND then known = latest(values[place]) end
  local ms = 0
  if now + reset > known * SECOND then
    known, ms = lasts(now, reset, limit.tick_us * limit.window, limit.keep)
  end
  if ms >= (lives[place] or 0) then lives[place] = ms end
  return pack(SLOT, limit.tag, known, a, b, c)
end

-- Puts a slot in the place of its former self, or beside the others without those that are over.
local function put(place, tag, bytes)
  local value = values[place]
  local found = find(value, tag)
  if found then
    values[place] = value:sub(1, found - 1) .. bytes .. value:sub(found + 28)
    return
  end
  for slot_at = 1, #value, 28 do
    if unpack('<I4', value, slot_at + 4) * SECOND >= now then
      bytes = bytes .. value:sub(slot_at, slot_at + 27)
    end
  end
  values[place] = bytes
end

-- What is said of a hit that was charged. If nothing is left, how long until a unit fits, too.
local function charged_answer(remaining, reset, charged_at, decide, ...)
  if remaining > 0 then return pack(ANSWER, 1, remaining, reset, 0, charged_at) end
  local _, _, _, wait = decide(...)
  return pack(ANSWER, 6, 0, reset, wait, charged_at)
end

-- Asks an algorithm with a key of its own; nil if something else stands there.
local function own_decides(key, limit, cost, take)
  local done, charged, remaining, reset, retry, charged_at = pcall(limit.own, key, now,
    limit.tick_us, limit.window, limit.max, limit.extra, limit.keep, cost, take)
  if done then return charged, remaining, reset, retry, charged_at end
  local message = type(charged) == 'table' and charged.err or charged
  if not message:find('WRONGTYPE', 1, true) then error(charged, 0) end
end

local function foreign(hits) return pack(ANSWER, 2, 0, 0, 0, 0):rep(hits) end

-- One hit. It is all that most ask for.
local function one(mode)
  local place, of, cost, admission, phase = unpack(HIT, arg, at)
  local limit = limits[of]
  local take = 0
  if mode == 1 and cost > 0 then take = admission == 2 and 2 or 1 end
  local charged, remaining, reset, retry, charged_at
  if limit.own then
    local key = KEYS[place]
    charged, remaining, reset, retry, charged_at = own_decides(key, limit, cost, take)
    if charged then
      return charged_answer(remaining, reset, charged_at, own_decides, key, limit, 0, 0)
    end
  else
    local value = value_at(place)
    if not value then return foreign(1) end
    local found, is_foreign, known, a, b, c
    if #value == 28 then found, known, a, b, c = unpack(SLOT, value) end
    if found == limit.tag then
      found = 1
    else
      found, is_foreign, known, a, b, c = slot_of(value, limit.tag)
      if is_foreign then return foreign(1) end
    end
    local tick_us, window, max, extra = limit.tick_us, limit.window, limit.max, limit.extra
    charged, remaining, reset, retry, charged_at, a, b, c =
      limit.slot(now + phase, tick_us, window, max, extra, cost, take, a, b, c)
    if charged then
      local bytes = charged_slot(place, limit, known, reset, a, b, c)
      if found and #value == 28 then values[place] = bytes else put(place, limit.tag, bytes) end
      return charged_answer(remaining, reset, charged_at,
        limit.slot, now + phase, tick_us, window, max, extra, 0, 0, a, b, c)
    end
  end
  if charged == nil then return foreign(1) end
  return pack(ANSWER, 0, remaining, reset, retry, 0)
end

-- Hits that are all enforced, each of a slot of its own. Each is charged, until one does not fit; only if all do,
-- what is charged is put into the values.
local function enforced(hits, mode)
  local take = mode
  local places, slots, answers, before = {}, {}, {}, {}
  for nth = 1, hits do
    local place, of, cost, _, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
    local limit, value = limits[of], value_at(place)
    if not value then return foreign(hits) end
    local _, is_foreign, known, a, b, c = slot_of(value, limit.tag)
    if is_foreign then return foreign(hits) end
    local tick_us, window, max, extra = limit.tick_us, limit.window, limit.max, limit.extra
    local charged, remaining, reset, retry, charged_at, left, reset_before
    charged, remaining, reset, retry, charged_at, a, b, c, left, reset_before =
      limit.slot(now + phase, tick_us, window, max, extra, cost, cost > 0 and take or 0, a, b, c)
    if charged then
      places[nth] = place
      slots[nth] = { limit, known, reset, a, b, c }
      before[nth] = pack(ANSWER, 0, left, reset_before, 0, 0)
      answers[nth] = charged_answer(remaining, reset, charged_at,
        limit.slot, now + phase, tick_us, window, max, extra, 0, 0, a, b, c)
    else
      answers[nth] = pack(ANSWER, 0, remaining, reset, retry, 0)
      if retry ~= 0 then take = 0 end
    end
  end
  for nth, slot in pairs(slots) do
    if take == 0 then
      answers[nth] = before[nth]
    else
      put(places[nth], slot[1].tag, charged_slot(places[nth], _G.unpack(slot)))
    end
  end
  return table.concat(answers)
end

-- Any hits: first each is judged as if those before it were charged, then all are charged, or some, or none.
local function several(hits, mode)
  local counters, waits, answers = {}, {}, {}
  local allowed, charges = true, false
  for nth = 1, hits do
    local place, of, cost, admission, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
    local limit = limits[of]
    local name = place * 4294967296 + limit.tag
    local counter = counters[name]
    if not counter then
      counter = { pending = 0, known = 0, a = 0, b = 0, c = 0 }
      counters[name] = counter
      if limit.slot then
        local value, _, is_foreign = value_at(place)
        if not value then return foreign(hits) end
        _, is_foreign, counter.known, counter.a, counter.b, counter.c = slot_of(value, limit.tag)
        if is_foreign then return foreign(hits) end
      end
    end
    local wanted = counter.pending + (cost > 0 and cost or 1)
    local charged, remaining, reset, retry
    if limit.own then
      charged, remaining, reset, retry = own_decides(KEYS[place], limit, wanted, 0)
      if charged == nil then return foreign(hits) end
    else
      charged, remaining, reset, retry = limit.slot(now + phase, limit.tick_us, limit.window,
        limit.max, limit.extra, wanted, 0, counter.a, counter.b, counter.c)
    end
    if admission ~= 1 or retry == 0 then counter.pending = counter.pending + cost end
    if admission == 0 and retry ~= 0 then allowed = false end
    if admission == 2 then charges = true end
    waits[nth] = retry
    answers[nth] = pack(ANSWER, 0, remaining, reset, retry, 0)
  end

  for nth = 1, mode == 1 and (allowed or charges) and hits or 0 do
    local place, of, cost, admission, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
    if cost > 0 and (admission == 2 or (allowed and (admission == 0 or waits[nth] == 0))) then
      local limit = limits[of]
      local _, remaining, reset, charged_at
      if limit.own then
        local key = KEYS[place]
        _, remaining, reset, _, charged_at = own_decides(key, limit, cost, 2)
        answers[nth] = charged_answer(remaining, reset, charged_at, own_decides, key, limit, 0, 0)
      else
        local counter = counters[place * 4294967296 + limit.tag]
        local tick_us, window, max, extra = limit.tick_us, limit.window, limit.max, limit.extra
        local a, b, c
        _, remaining, reset, _, charged_at, a, b, c = limit.slot(now + phase, tick_us, window,
          max, extra, cost, 2, counter.a, counter.b, counter.c)
        put(place, limit.tag, charged_slot(place, limit, counter.known, reset, a, b, c))
        counter.a, counter.b, counter.c = a, b, c
        answers[nth] = charged_answer(remaining, reset, charged_at,
          limit.slot, now + phase, tick_us, window, max, extra, 0, 0, a, b, c)
      end
    end
  end
  return table.concat(answers)
end

local answers = {}
for nth = 1, asks do
  local hits, mode, are_enforced = unpack('<HBB', arg, at)
  at = at + 4
  if hits == 1 then
    answers[nth] = one(mode)
  elseif are_enforced == 1 then
    answers[nth] = enforced(hits, mode)
  else
    answers[nth] = several(hits, mode)
  end
  at = at + hits * HIT_BYTES
end
for place, ms in pairs(lives) do
  if ms > 0 then
    call('SET', KEYS[place], values[place], 'PX', ms)
  else
    call('SET', KEYS[place], values[place], 'KEEPTTL')
  end
end
return table.concat(answers)
