-- Decides requests one after another, each separately. A value of slots is read and written once, regardless of the
-- number of its hits.
local arg = ARGV[1]
local now, shared_keys, count = unpack('<dHH', arg)
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local HIT, HIT_BYTES = '<HHddHd', 30
local REPLY = '<Bddddd'
-- The largest number of key indexes that are read at once, because the stack of Lua is limited.
local MAX_UNPACKED = 128

-- The limits of all hits, without duplicates.
local limits, offset = {}, 13
for nth = 1, count do
  local algorithm, tag, extra, debt, margin_s, max, tick_us, window = unpack('<BI4I4I4I4ddd', arg, offset)
  limits[nth] = {
    decide_slot = slot_functions[algorithm], decide_log = log_functions[algorithm], decide_key = key_functions[algorithm],
    tag = tag, max = max, extra = extra, debt = debt, margin_s = margin_s, tick_us = tick_us, window = window,
  }
  offset = offset + 41
end

-- Tables by key index. `values` has the values that limits share. `ttls_ms` has the new time to live in milliseconds of
-- each value to write: 0 keeps it, and IN_PLACE keeps it and the length of the value. `log_states` has the changed
-- states of logs that have not changed otherwise.
local IN_PLACE = -1
local values, ttls_ms, log_states = {}, {}, {}
if shared_keys > 0 and shared_keys < 4000 then values = call('MGET', _G.unpack(KEYS, 1, shared_keys)) end

-- Returns the shared value of a key, or nil if the key has another type, which MGET skips.
local function value_of_key(key_index)
  local value = values[key_index] or redis.pcall('GET', KEYS[key_index]) or ''
  if type(value) == 'table' then
    -- Any other error, such as a missing permission, ends the script.
    if not value.err:find('WRONGTYPE', 1, true) then call('GET', KEYS[key_index]) end
    return nil
  end
  values[key_index] = value
  return value
end

-- Keeps a key for at least this time, if its value is written with a new time to live.
local function extend_ttl(key_index, ttl_ms)
  local pending_ms = ttls_ms[key_index] or 0
  if pending_ms > 0 and ttl_ms > pending_ms then ttls_ms[key_index] = ttl_ms end
end

-- Returns whether the value of a key is foreign, the known expiry of the key, and the state in a slot. If the state is
-- ahead of `now`, because a clock has stepped back, sets it back.
local function read_slot(key_index, limit, phase)
  local value = values[key_index]
  local position, is_foreign = find_slot(value, limit.tag)
  if not position then return is_foreign, 0, 0, 0, 0 end
  local _, expiry_s, a, b, c = unpack(SLOT, value, position)
  local tick_us, window, max, extra, debt = limit.tick_us, limit.window, limit.max, limit.extra, limit.debt
  if a * (tick_us > 0 and tick_us or 1) > now + phase + SECOND then
    local charged, new_a, new_b, new_c =
      limit.decide_slot(now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
    if charged == nil then
      local reset, ttl_ms
      a, b, c = new_a, new_b, new_c
      _, _, reset = limit.decide_slot(now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
      values[key_index], expiry_s, _, ttl_ms = set_back_slot(KEYS[key_index], value, limit.tag, now, reset,
        tick_us * window, limit.margin_s, a, b, c)
      extend_ttl(key_index, ttl_ms)
    end
  end
  return false, expiry_s, a, b, c
end

-- Returns the bytes of a charged slot. Extends the expiry of its key if necessary.
local function pack_charged_slot(key_index, limit, expiry_s, reset, a, b, c)
  if now + reset > expiry_s * SECOND then expiry_s = latest_expiry(values[key_index]) end
  local ttl_ms = IN_PLACE
  if now + reset > expiry_s * SECOND then
    expiry_s, ttl_ms = key_expiry(now, reset, limit.tick_us * limit.window, limit.margin_s)
  end
  if ttl_ms >= (ttls_ms[key_index] or IN_PLACE) then ttls_ms[key_index] = ttl_ms end
  return pack(SLOT, limit.tag, expiry_s, a, b, c)
end

-- Replaces a slot, or adds it to the others and drops slots that expired more than a second ago: a client's clock
-- may step back.
local function write_slot(key_index, tag, bytes)
  local value = values[key_index]
  local slot_position = find_slot(value, tag)
  if slot_position then
    values[key_index] = value:sub(1, slot_position - 1) .. bytes .. value:sub(slot_position + 28)
    return
  end
  local others = ''
  for position = 1, #value, 28 do
    if unpack('<I4', value, position + 4) * SECOND >= now - SECOND then
      others = others .. value:sub(position, position + 27)
    end
  end
  values[key_index] = others .. bytes
  if ttls_ms[key_index] == IN_PLACE then ttls_ms[key_index] = 0 end
end

-- Returns the reply for a hit of which `charged` units were charged. `retry` is not 0 if the hit did not fit. If nothing
-- remains, or it did not fit, `decide` is called for the time until one unit fits.
local function charged_reply(charged, retry, remaining, reset, charged_at, decide, ...)
  if remaining > 0 and retry == 0 then return pack(REPLY, 1, remaining, reset, 0, charged_at, charged) end
  local _, _, _, wait = decide(...)
  if retry == 0 then return pack(REPLY, 6, remaining, reset, wait, charged_at, charged) end
  return pack(REPLY, 11, remaining, reset, wait == 0 and 1 or wait, charged_at, charged)
end

-- Stores a charged log. `state`, `expiry_s` and `rest` are results of `decide`; the last arguments are results of
-- `split_logs`, or nil if the log is the whole value.
local function store_log(key_index, limit, reset, section, state, expiry_s, rest, before, after, latest_expiry_s)
  local ttl_ms = 0
  if now + reset > expiry_s * SECOND then
    expiry_s = latest_expiry_s or expiry_s
    if now + reset > expiry_s * SECOND then
      expiry_s, ttl_ms = key_expiry(now, reset, limit.tick_us * limit.window, limit.margin_s)
    end
  elseif not rest and not before then
    log_states[key_index] = state
    return
  end
  rest = rest or section:sub(33)
  section = pack('<I4I4', limit.tag, 24 + #rest) .. state .. pack('<I4', expiry_s) .. rest
  values[key_index] = before and before .. section .. after or section
  if ttl_ms >= (ttls_ms[key_index] or IN_PLACE) then ttls_ms[key_index] = ttl_ms end
end

-- Decides a hit whose state is a log. Returns nil if the value is foreign.
local function decide_log(key_index, limit, required, cost, take)
  local value, pending_state = value_of_key(key_index), log_states[key_index]
  if not value then return end
  if pending_state then
    value = value:sub(1, 8) .. pending_state .. value:sub(29)
    values[key_index], log_states[key_index] = value, nil
    ttls_ms[key_index] = ttls_ms[key_index] or IN_PLACE
  end
  local decide, before, after, latest_expiry_s = limit.decide_log, nil, nil, nil
  local tick_us, window, max, extra, tag = limit.tick_us, limit.window, limit.max, limit.extra, limit.tag
  local charged, remaining, reset, retry, charged_at, state, expiry_s, rest =
    decide(value, now, tick_us, window, max, extra, required, cost, take, tag)
  if charged == nil then
    before, value, after, latest_expiry_s = split_logs(value, tag, now)
    if not before then return end
    local ttl_ms
    before, value, after, latest_expiry_s, ttl_ms = set_back_log(decide, KEYS[key_index], before, value, after,
      latest_expiry_s, now, tick_us, window, max, extra, limit.margin_s)
    if ttl_ms then
      values[key_index] = before .. value .. after
      extend_ttl(key_index, ttl_ms)
    end
    charged, remaining, reset, retry, charged_at, state, expiry_s, rest =
      decide(value, now, tick_us, window, max, extra, required, cost, take, tag)
  end
  if charged then store_log(key_index, limit, reset, value, state, expiry_s, rest, before, after, latest_expiry_s) end
  return charged, remaining, reset, retry, charged_at
end

-- Decides a hit whose state has its own key or is a log. Returns nil if the key has another type.
local function decide_own_key(key_index, limit, required, cost, take)
  if limit.decide_log then return decide_log(key_index, limit, required, cost, take) end
  local is_ok, charged, remaining, reset, retry, charged_at = pcall(limit.decide_key, KEYS[key_index], now,
    limit.tick_us, limit.window, limit.max, limit.extra, limit.margin_s, required, cost, take)
  if is_ok then return charged, remaining, reset, retry, charged_at end
  local message = type(charged) == 'table' and charged.err or charged
  if not message:find('WRONGTYPE', 1, true) then error(charged, 0) end
end

-- The replies, in the order of the requests.
local replies, reply_count = {}, 0
local function append_reply(reply)
  reply_count = reply_count + 1
  replies[reply_count] = reply
end

-- Returns the replies for the hits of a request with a foreign value.
local function wrong_type_replies(hits) return pack(REPLY, 2, 0, 0, 0, 0, 0):rep(hits) end

-- Decides a single hit. The bit 16 of the admission code (see `decide_any`) means that the hit is charged even if it
-- does not fit.
local function decide_single(key_index, limit, cost, required, admission, phase, mode)
  local take = 0
  if mode == 1 and cost > 0 and (admission % 16 < 12 or admission < 64) then take = admission % 32 >= 16 and 2 or 1 end
  local charged, remaining, reset, retry, charged_at
  if not limit.decide_slot then
    charged, remaining, reset, retry, charged_at = decide_own_key(key_index, limit, required, cost, take)
    if charged then
      return charged_reply(charged, retry, remaining, reset, charged_at, decide_own_key, key_index, limit, 1, 0, 0)
    end
  else
    local value = value_of_key(key_index)
    if not value then return wrong_type_replies(1) end
    local is_foreign, expiry_s, a, b, c = read_slot(key_index, limit, phase)
    if is_foreign then return wrong_type_replies(1) end
    local tick_us, window, max, extra, debt = limit.tick_us, limit.window, limit.max, limit.extra, limit.debt
    charged, remaining, reset, retry, charged_at, a, b, c =
      limit.decide_slot(now + phase, tick_us, window, max, extra, debt, required, cost, take, a, b, c)
    if charged then
      write_slot(key_index, limit.tag, pack_charged_slot(key_index, limit, expiry_s, reset, a, b, c))
      return charged_reply(charged, retry, remaining, reset, charged_at,
        limit.decide_slot, now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
    end
  end
  if charged == nil then return wrong_type_replies(1) end
  return pack(REPLY, 0, remaining, reset, retry, 0, 0)
end

-- Decides requests of one unit each, all enforced, under one limit of slots, for the keys with these indexes. Replaces
-- each index by the reply, because a new table would have to grow. A value nearly always has only one slot, so the code
-- for this case is inline.
local function decide_slot_units(key_indexes, count, limit)
  local decide, tag, max, extra = limit.decide_slot, limit.tag, limit.max, limit.extra
  local tick_us, window, debt = limit.tick_us, limit.window, limit.debt
  for nth = 1, count do
    local key_index = key_indexes[nth]
    local value = values[key_index]
    local reply, found_tag, expiry_s, a, b, c
    if value and #value == 28 then found_tag, expiry_s, a, b, c = unpack(SLOT, value) end
    if found_tag ~= tag then
      reply = decide_single(key_index, limit, 1, 1, 0, 0, 1)
    else
      local charged, remaining, reset, retry, charged_at
      charged, remaining, reset, retry, charged_at, a, b, c =
        decide(now, tick_us, window, max, extra, debt, 1, 1, 1, a, b, c)
      if charged == nil then
        reply = decide_single(key_index, limit, 1, 1, 0, 0, 1)
      elseif not charged then
        reply = pack(REPLY, 0, remaining, reset, retry, 0, 0)
      else
        if now + reset > expiry_s * SECOND then
          values[key_index] = pack_charged_slot(key_index, limit, expiry_s, reset, a, b, c)
        else
          values[key_index] = pack(SLOT, tag, expiry_s, a, b, c)
          ttls_ms[key_index] = ttls_ms[key_index] or IN_PLACE
        end
        if remaining > 0 then
          reply = pack(REPLY, 1, remaining, reset, 0, charged_at, charged)
        else
          reply = charged_reply(charged, 0, remaining, reset, charged_at,
            decide, now, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
        end
      end
    end
    key_indexes[nth] = reply
  end
end

-- Decides requests of one unit each under one limit of logs, in the same way as `decide_slot_units`. A value nearly
-- always has only one log.
local function decide_log_units(key_indexes, count, limit)
  local decide, tick_us, window, max, extra, tag =
    limit.decide_log, limit.tick_us, limit.window, limit.max, limit.extra, limit.tag
  for nth = 1, count do
    local key_index = key_indexes[nth]
    local value, reply = values[key_index], nil
    if value and not log_states[key_index] then
      local charged, remaining, reset, retry, charged_at, state, expiry_s, rest =
        decide(value, now, tick_us, window, max, extra, 1, 1, 1, tag)
      if charged == false then
        reply = pack(REPLY, 0, remaining, reset, retry, 0, 0)
      elseif charged then
        if rest or now + reset > expiry_s * SECOND then
          store_log(key_index, limit, reset, value, state, expiry_s, rest)
        else
          log_states[key_index] = state
        end
        if remaining > 0 then
          reply = pack(REPLY, 1, remaining, reset, 0, charged_at, charged)
        else
          reply = charged_reply(charged, 0, remaining, reset, charged_at, decide_log, key_index, limit, 1, 0, 0)
        end
      end
    end
    key_indexes[nth] = reply or decide_single(key_index, limit, 1, 1, 0, 0, 1)
  end
end

-- Decides a run: requests of one unit each, all enforced, under one limit whose values are shared.
local function decide_unit_run(count, limit)
  local decide_units = limit.decide_slot and decide_slot_units or decide_log_units
  for first = 0, count - 1, MAX_UNPACKED do
    local units = count - first < MAX_UNPACKED and count - first or MAX_UNPACKED
    local key_indexes = { unpack('<' .. ('H'):rep(units), arg, offset + 2 * first) }
    decide_units(key_indexes, units, limit)
    append_reply(table.concat(key_indexes, '', 1, units))
  end
end

-- The hits of a request until it is known whether all fit. `pending` has, for each hit, the limit and the values to
-- write and reply. For a hit that charges nothing, it has false and the reply.
local pending, slot_bytes = {}, {}

-- Decides hits that are all enforced, each of a slot of its own. Charges each until one does not fit, and writes the
-- charges only if all fit. `whole_value_key` is the key index if the value consists of exactly these slots in their order.
local function decide_enforced(hits, mode)
  local take, whole_value_key = mode, nil
  for nth = 1, hits do
    local key_index, limit_index, cost, required, _, phase = unpack(HIT, arg, offset + (nth - 1) * HIT_BYTES)
    local limit, value = limits[limit_index], values[key_index] or value_of_key(key_index)
    if not value then return append_reply(wrong_type_replies(hits)) end
    local found_tag, expiry_s, a, b, c
    if #value == 28 * hits then
      found_tag, expiry_s, a, b, c = unpack(SLOT, value, 28 * nth - 27)
    end
    if found_tag == limit.tag and (nth == 1 or whole_value_key == key_index) then
      whole_value_key = key_index
    else
      local is_foreign
      whole_value_key = false
      is_foreign, expiry_s, a, b, c = read_slot(key_index, limit, phase)
      if is_foreign then return append_reply(wrong_type_replies(hits)) end
    end
    local charged, remaining, reset, retry, charged_at, remaining_before, reset_before
    charged, remaining, reset, retry, charged_at, a, b, c, remaining_before, reset_before = limit.decide_slot(now + phase,
      limit.tick_us, limit.window, limit.max, limit.extra, limit.debt, required, cost, cost > 0 and take or 0, a, b, c)
    if charged == nil then
      local _
      whole_value_key = false
      _, expiry_s, a, b, c = read_slot(key_index, limit, phase)
      charged, remaining, reset, retry, charged_at, a, b, c, remaining_before, reset_before = limit.decide_slot(now + phase,
        limit.tick_us, limit.window, limit.max, limit.extra, limit.debt, required, cost, cost > 0 and take or 0, a, b, c)
    end
    local base = 14 * nth
    if charged then
      pending[base], pending[base + 1], pending[base + 2], pending[base + 3] = limit, key_index, phase, expiry_s
      pending[base + 4], pending[base + 5], pending[base + 6] = a, b, c
      pending[base + 7], pending[base + 8], pending[base + 9] = remaining, reset, charged_at
      pending[base + 10], pending[base + 11], pending[base + 12] = remaining_before, reset_before, charged
    else
      pending[base], pending[base + 1] = false, pack(REPLY, 0, remaining, reset, retry, 0, 0)
      whole_value_key = false
      if retry ~= 0 then take = 0 end
    end
  end
  for nth = 1, hits do
    local limit, key_index, phase, expiry_s, a, b, c, remaining, reset, charged_at, remaining_before, reset_before, charged =
      _G.unpack(pending, 14 * nth, 14 * nth + 12)
    local reply = key_index
    if limit and take == 0 then
      reply = pack(REPLY, 0, remaining_before, reset_before, 0, 0, 0)
    elseif limit then
      local bytes = pack_charged_slot(key_index, limit, expiry_s, reset, a, b, c)
      if whole_value_key then slot_bytes[nth] = bytes else write_slot(key_index, limit.tag, bytes) end
      reply = charged_reply(charged, 0, remaining, reset, charged_at, limit.decide_slot, now + phase,
        limit.tick_us, limit.window, limit.max, limit.extra, limit.debt, 1, 0, 0, a, b, c)
    end
    append_reply(reply)
  end
  if whole_value_key and take ~= 0 then values[whole_value_key] = table.concat(slot_bytes, '', 1, hits) end
end

-- Returns whether a hit that blocks its key is charged: to start the block if it fits and one of the limits before it does
-- not, and to extend the block if it does not fit. Without limits, an earlier call has decided that it is charged. `waits`
-- are the waits of all hits of the request, 0 if they fit.
local function is_block_charged(waits, nth, admission)
  if waits[nth] ~= 0 or admission < 64 then return admission % 64 >= 32 end
  for limit = math.max(nth - (admission - admission % 64) / 64, 1), nth - 1 do
    if waits[limit] ~= 0 then return true end
  end
  return false
end

-- Decides any hits: evaluates each as if the previous ones were charged, then charges all, some or none. An admission
-- is veto + 4 * charge. Veto: 0 alone, 1 jointly, 2 never. Charge: 0 if the request is admitted, 1 if the hit also
-- fits, 2 always, 3 to block the key; for 3, 32 is added if calls extend the block, and 64 for each limit.
local function decide_any(hits, mode)
  local counters, waits, replies = {}, {}, {}
  local allowed, has_always_charged, has_joint, joint_fits = true, false, false, false
  for nth = 1, hits do
    local key_index, limit_index, cost, required, admission, phase = unpack(HIT, arg, offset + (nth - 1) * HIT_BYTES)
    local limit = limits[limit_index]
    local counter_id = key_index * 4294967296 + limit.tag
    local counter = counters[counter_id]
    if not counter then
      counter = { pending = 0, expiry_s = 0, a = 0, b = 0, c = 0 }
      counters[counter_id] = counter
      if limit.decide_slot then
        if not value_of_key(key_index) then return wrong_type_replies(hits) end
        local is_foreign
        is_foreign, counter.expiry_s, counter.a, counter.b, counter.c = read_slot(key_index, limit, phase)
        if is_foreign then return wrong_type_replies(hits) end
      end
    end
    local required_total = counter.pending + required
    local charged, remaining, reset, retry
    if not limit.decide_slot then
      charged, remaining, reset, retry = decide_own_key(key_index, limit, required_total, 0, 0)
      if charged == nil then return wrong_type_replies(hits) end
    else
      charged, remaining, reset, retry = limit.decide_slot(now + phase, limit.tick_us, limit.window,
        limit.max, limit.extra, limit.debt, required_total, 0, 0, counter.a, counter.b, counter.c)
    end
    local veto, charge = admission % 4, (admission - admission % 4) / 4 % 4
    if charge ~= 3 and (charge ~= 1 or retry == 0) then counter.pending = counter.pending + cost end
    if veto == 0 and retry ~= 0 then allowed = false end
    if veto == 1 then has_joint, joint_fits = true, joint_fits or retry == 0 end
    if charge >= 2 then has_always_charged = true end
    waits[nth] = retry
    replies[nth] = pack(REPLY, 0, remaining, reset, retry, 0, 0)
  end

  allowed = allowed and (joint_fits or not has_joint)
  for nth = 1, mode == 1 and (allowed or has_always_charged) and hits or 0 do
    local key_index, limit_index, cost, _, admission, phase = unpack(HIT, arg, offset + (nth - 1) * HIT_BYTES)
    local charge, retry = (admission - admission % 4) / 4 % 4, waits[nth]
    local is_charged = charge == 2 or (allowed and (charge == 0 or retry == 0))
    if charge == 3 then
      is_charged = is_block_charged(waits, nth, admission)
      if is_charged then retry = 1 end
    end
    if cost > 0 and is_charged then
      local limit = limits[limit_index]
      local charged, remaining, reset, charged_at, _
      if not limit.decide_slot then
        charged, remaining, reset, _, charged_at = decide_own_key(key_index, limit, 1, cost, 2)
        replies[nth] = charged_reply(charged, retry, remaining, reset, charged_at, decide_own_key, key_index, limit, 1, 0, 0)
      else
        local counter = counters[key_index * 4294967296 + limit.tag]
        local tick_us, window, max, extra, debt = limit.tick_us, limit.window, limit.max, limit.extra, limit.debt
        local a, b, c
        charged, remaining, reset, _, charged_at, a, b, c = limit.decide_slot(now + phase, tick_us, window,
          max, extra, debt, 1, cost, 2, counter.a, counter.b, counter.c)
        write_slot(key_index, limit.tag, pack_charged_slot(key_index, limit, counter.expiry_s, reset, a, b, c))
        counter.a, counter.b, counter.c = a, b, c
        replies[nth] = charged_reply(charged, retry, remaining, reset, charged_at,
          limit.decide_slot, now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
      end
    end
  end
  return table.concat(replies)
end

while offset <= #arg do
  local kind, count, limit_or_mode = unpack('<BHH', arg, offset)
  offset = offset + 5
  if kind == 0 then
    decide_unit_run(count, limits[limit_or_mode])
    offset = offset + 2 * count
  else
    if count == 1 then
      local key_index, limit_index, cost, required, admission, phase = unpack(HIT, arg, offset)
      append_reply(decide_single(key_index, limits[limit_index], cost, required, admission, phase, limit_or_mode))
    elseif kind == 1 then
      decide_enforced(count, limit_or_mode)
    else
      append_reply(decide_any(count, limit_or_mode))
    end
    offset = offset + count * HIT_BYTES
  end
end
for key_index, ttl_ms in pairs(ttls_ms) do
  if ttl_ms == IN_PLACE then
    call('SETRANGE', KEYS[key_index], '0', values[key_index])
  elseif ttl_ms > 0 then
    call('SET', KEYS[key_index], values[key_index], 'PX', ttl_ms)
  else
    call('SET', KEYS[key_index], values[key_index], 'KEEPTTL')
  end
end
for key_index, state in pairs(log_states) do call('SETRANGE', KEYS[key_index], '8', state) end
return table.concat(replies)
