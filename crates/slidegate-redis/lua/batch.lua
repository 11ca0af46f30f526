-- Decides requests one after another, each on its own. A value of slots is read once and written once, however many hits are counted in it.
local arg = ARGV[1]
local now, shared, count = unpack('<dHH', arg)
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local HIT, HIT_BYTES = '<HHI4I4Bd', 21
local ANSWER = '<Bdddd'
local byte = string.byte

-- The limits that hits are held against, each once.
local limits, at = {}, 13
for nth = 1, count do
  local algorithm, tag, max, extra, debt, keep, tick_us, window = unpack('<BI4I4I4I4I4dd', arg, at)
  limits[nth] = {
    slot = slot[algorithm], own = own[algorithm],
    tag = tag, max = max, extra = extra, debt = debt, keep = keep, tick_us = tick_us, window = window,
  }
  at = at + 37
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

-- Returns the reply for a charged hit. `over` is not 0 if it did not fit. If nothing remains, or it did not fit, `decide`
-- is called for the time until one unit fits.
local function charged_answer(over, remaining, reset, charged_at, decide, ...)
  if remaining > 0 and over == 0 then return pack(ANSWER, 1, remaining, reset, 0, charged_at) end
  local _, _, _, wait = decide(...)
  if over == 0 then return pack(ANSWER, 6, remaining, reset, wait, charged_at) end
  return pack(ANSWER, 11, remaining, reset, wait == 0 and 1 or wait, charged_at)
end

-- Asks an algorithm with a key of its own; nil if something else stands there.
local function own_decides(key, limit, required, cost, take)
  local done, charged, remaining, reset, retry, charged_at = pcall(limit.own, key, now,
    limit.tick_us, limit.window, limit.max, limit.extra, limit.keep, required, cost, take)
  if done then return charged, remaining, reset, retry, charged_at end
  local message = type(charged) == 'table' and charged.err or charged
  if not message:find('WRONGTYPE', 1, true) then error(charged, 0) end
end

-- What is said, one request after another.
local answers, said = {}, 0
local function say(answer)
  said = said + 1
  answers[said] = answer
end

local function foreign(hits) return pack(ANSWER, 2, 0, 0, 0, 0):rep(hits) end

-- One hit. An admission of 16 or more means that it is charged also if it does not fit.
local function one(place, limit, cost, required, admission, phase, mode)
  local take = 0
  if mode == 1 and cost > 0 then take = admission >= 16 and 2 or 1 end
  local charged, remaining, reset, retry, charged_at
  if limit.own then
    local key = KEYS[place]
    charged, remaining, reset, retry, charged_at = own_decides(key, limit, required, cost, take)
    if charged then
      return charged_answer(retry, remaining, reset, charged_at, own_decides, key, limit, 1, 0, 0)
    end
  else
    local value = value_at(place)
    if not value then return foreign(1) end
    local _, is_foreign, known, a, b, c = slot_of(value, limit.tag)
    if is_foreign then return foreign(1) end
    local tick_us, window, max, extra, debt = limit.tick_us, limit.window, limit.max, limit.extra, limit.debt
    charged, remaining, reset, retry, charged_at, a, b, c =
      limit.slot(now + phase, tick_us, window, max, extra, debt, required, cost, take, a, b, c)
    if charged then
      put(place, limit.tag, charged_slot(place, limit, known, reset, a, b, c))
      return charged_answer(retry, remaining, reset, charged_at,
        limit.slot, now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
    end
  end
  if charged == nil then return foreign(1) end
  return pack(ANSWER, 0, remaining, reset, retry, 0)
end

-- Requests of one unit each, all enforced, under one limit of slots: what most ask for. Nearly always it is the
-- only slot of its value, so nothing but what that takes is done here.
local function units(count, limit)
  local decide, tag, max, extra = limit.slot, limit.tag, limit.max, limit.extra
  local tick_us, window, debt = limit.tick_us, limit.window, limit.debt
  for place_at = at, at + 2 * count - 2, 2 do
    local low, high = byte(arg, place_at, place_at + 1)
    local place = low + 256 * high
    local value = values[place]
    local found, known, a, b, c
    if value and #value == 28 then found, known, a, b, c = unpack(SLOT, value) end
    local answer
    if found ~= tag then
      answer = one(place, limit, 1, 1, 0, 0, 1)
    else
      local charged, remaining, reset, retry, charged_at
      charged, remaining, reset, retry, charged_at, a, b, c =
        decide(now, tick_us, window, max, extra, debt, 1, 1, 1, a, b, c)
      if not charged then
        answer = pack(ANSWER, 0, remaining, reset, retry, 0)
      else
        if now + reset > known * SECOND then
          values[place] = charged_slot(place, limit, known, reset, a, b, c)
        else
          values[place] = pack(SLOT, tag, known, a, b, c)
          lives[place] = lives[place] or 0
        end
        if remaining > 0 then
          answer = pack(ANSWER, 1, remaining, reset, 0, charged_at)
        else
          answer = charged_answer(0, remaining, reset, charged_at,
            decide, now, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
        end
      end
    end
    say(answer)
  end
end

-- Of each hit of a request, until it is known whether all fit: what is to be written and said; or no limit, but
-- an answer, where nothing is to be charged.
local pending, bytes_of = {}, {}

-- Hits that are all enforced, each of a slot of its own. Each is charged, until one does not fit; only if all do,
-- what is charged is put into the values. `whole` is the place of a value that has just these slots in the order
-- in which they were put, the last first.
local function enforced(hits, mode)
  local take, whole = mode, nil
  for nth = 1, hits do
    local place, of, cost, required, _, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
    local limit, value = limits[of], values[place] or value_at(place)
    if not value then return say(foreign(hits)) end
    local found, known, a, b, c
    if #value == 28 * hits then
      found, known, a, b, c = unpack(SLOT, value, 28 * (hits - nth) + 1)
    end
    if found == limit.tag and (nth == 1 or whole == place) then
      whole = place
    else
      local is_foreign
      whole = false
      _, is_foreign, known, a, b, c = slot_of(value, limit.tag)
      if is_foreign then return say(foreign(hits)) end
    end
    local charged, remaining, reset, retry, charged_at, left, before
    charged, remaining, reset, retry, charged_at, a, b, c, left, before = limit.slot(now + phase,
      limit.tick_us, limit.window, limit.max, limit.extra, limit.debt, required, cost, cost > 0 and take or 0, a, b, c)
    local p = 14 * nth
    if charged then
      pending[p], pending[p + 1], pending[p + 2], pending[p + 3] = limit, place, phase, known
      pending[p + 4], pending[p + 5], pending[p + 6] = a, b, c
      pending[p + 7], pending[p + 8], pending[p + 9] = remaining, reset, charged_at
      pending[p + 10], pending[p + 11] = left, before
    else
      pending[p], pending[p + 1] = false, pack(ANSWER, 0, remaining, reset, retry, 0)
      whole = false
      if retry ~= 0 then take = 0 end
    end
  end
  for nth = 1, hits do
    local limit, place, phase, known, a, b, c, remaining, reset, charged_at, left, before =
      _G.unpack(pending, 14 * nth, 14 * nth + 11)
    local answer = place
    if limit and take == 0 then
      answer = pack(ANSWER, 0, left, before, 0, 0)
    elseif limit then
      local bytes = charged_slot(place, limit, known, reset, a, b, c)
      if whole then bytes_of[hits - nth + 1] = bytes else put(place, limit.tag, bytes) end
      answer = charged_answer(0, remaining, reset, charged_at, limit.slot, now + phase,
        limit.tick_us, limit.window, limit.max, limit.extra, limit.debt, 1, 0, 0, a, b, c)
    end
    say(answer)
  end
  if whole and take ~= 0 then values[whole] = table.concat(bytes_of, '', 1, hits) end
end

-- Any hits: first each is judged as if those before it were charged, then all are charged, or some, or none. An
-- admission is veto + 4 * charge; is_denying: 0 alone, 1 jointly, 2 never; charges: 0 if the request is admitted, 1 if it
-- also fits, 2 always.
local function several(hits, mode)
  local counters, waits, answers = {}, {}, {}
  local allowed, charges, has_joint, joint_fits = true, false, false, false
  for nth = 1, hits do
    local place, of, cost, required, admission, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
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
    local wanted = counter.pending + required
    local charged, remaining, reset, retry
    if limit.own then
      charged, remaining, reset, retry = own_decides(KEYS[place], limit, wanted, 0, 0)
      if charged == nil then return foreign(hits) end
    else
      charged, remaining, reset, retry = limit.slot(now + phase, limit.tick_us, limit.window,
        limit.max, limit.extra, limit.debt, wanted, 0, 0, counter.a, counter.b, counter.c)
    end
    local veto, charge = admission % 4, (admission - admission % 4) / 4 % 4
    if charge ~= 1 or retry == 0 then counter.pending = counter.pending + cost end
    if veto == 0 and retry ~= 0 then allowed = false end
    if veto == 1 then has_joint, joint_fits = true, joint_fits or retry == 0 end
    if charge == 2 then charges = true end
    waits[nth] = retry
    answers[nth] = pack(ANSWER, 0, remaining, reset, retry, 0)
  end

  allowed = allowed and (joint_fits or not has_joint)
  for nth = 1, mode == 1 and (allowed or charges) and hits or 0 do
    local place, of, cost, _, admission, phase = unpack(HIT, arg, at + (nth - 1) * HIT_BYTES)
    local charge, over = (admission - admission % 4) / 4 % 4, waits[nth]
    if cost > 0 and (charge == 2 or (allowed and (charge == 0 or over == 0))) then
      local limit = limits[of]
      local _, remaining, reset, charged_at
      if limit.own then
        local key = KEYS[place]
        _, remaining, reset, _, charged_at = own_decides(key, limit, 1, cost, 2)
        answers[nth] = charged_answer(over, remaining, reset, charged_at, own_decides, key, limit, 1, 0, 0)
      else
        local counter = counters[place * 4294967296 + limit.tag]
        local tick_us, window, max, extra, debt = limit.tick_us, limit.window, limit.max, limit.extra, limit.debt
        local a, b, c
        _, remaining, reset, _, charged_at, a, b, c = limit.slot(now + phase, tick_us, window,
          max, extra, debt, 1, cost, 2, counter.a, counter.b, counter.c)
        put(place, limit.tag, charged_slot(place, limit, counter.known, reset, a, b, c))
        counter.a, counter.b, counter.c = a, b, c
        answers[nth] = charged_answer(over, remaining, reset, charged_at,
          limit.slot, now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
      end
    end
  end
  return table.concat(answers)
end

while at <= #arg do
  local kind, count, other = unpack('<BHH', arg, at)
  at = at + 5
  if kind == 0 then
    units(count, limits[other])
    at = at + 2 * count
  else
    if count == 1 then
      local place, of, cost, required, admission, phase = unpack(HIT, arg, at)
      say(one(place, limits[of], cost, required, admission, phase, other))
    elseif kind == 1 then
      enforced(count, other)
    else
      say(several(count, other))
    end
    at = at + count * HIT_BYTES
  end
end
for place, ms in pairs(lives) do
  if ms > 0 then
    call('SET', KEYS[place], values[place], 'PX', ms)
  else
    call('SET', KEYS[place], values[place], 'KEEPTTL')
  end
end
return table.concat(answers)
