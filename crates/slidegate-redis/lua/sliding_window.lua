-- The algorithm of algorithm/sliding_window.rs: a log that is compacted to a bounded number of entries, oldest first.
--
-- A log (see logs.lua) is a head of 29 bytes and the entries. The head has the tick of the newest entry, a tick before
-- which the oldest entry has no charges, the sum of all units, the number of ticks from the first to the last charge of
-- the newest entry, the time in seconds until which the key is known to exist, and the number of bytes for the units of
-- an entry, 2 or 4. An entry has the tick of its last charge modulo 2^32, and its units.
--
-- Redis creates all functions at each call, at a cost that grows with the variables that they share. So `open_entries`
-- contains the rarely used functions.
local HEAD, HEAD_BYTES = '<ddI4I4I4B', 29

-- Returns the number of entries of a log with this number of bytes; nothing if it cannot be a log. Processing a foreign
-- value as a log could block Redis for a long time.
local function count_entries(bytes, newest, width)
  if newest < 0 or newest > 2 ^ 53 or newest % 1 ~= 0 or (width ~= 2 and width ~= 4) then return end
  local count = (bytes - HEAD_BYTES) / (4 + width)
  if count % 1 == 0 and count <= 8192 then return count end
end

-- Reads a log. Returns the ticks and the units of its entries, and functions that return the log after a change; nothing
-- if the value is foreign.
local function open_entries(value)
  if #value < HEAD_BYTES then return end
  local newest, oldest_first, _, span, expiry_s, width = unpack(HEAD, value)
  if not count_entries(#value, newest, width) then return end
  local entry, ticks, units = width == 2 and '<I4I2' or '<I4I4', {}, {}
  for at = HEAD_BYTES + 1, #value, 4 + width do
    local nth = #ticks + 1
    ticks[nth], units[nth] = unpack(entry, value, at)
    ticks[nth] = newest - (newest - ticks[nth]) % 4294967296
  end

  local function write()
    local total, parts, bytes_of_units = 0, { '' }, 2
    for _, count in ipairs(units) do
      total = total + count
      if count > 65535 then bytes_of_units = 4 end
    end
    entry = bytes_of_units == 2 and '<I4I2' or '<I4I4'
    for nth, tick in ipairs(ticks) do parts[nth + 1] = pack(entry, tick % 4294967296, units[nth]) end
    parts[1] = pack(HEAD, ticks[#ticks] or 0, oldest_first, total, span, expiry_s, bytes_of_units)
    return table.concat(parts)
  end

  -- Removes the first entries, which have left the window. The first charge of the newest entry is known.
  local function remove_first(count)
    local kept = #ticks - count
    if count > 0 then oldest_first = kept == 1 and newest - span or ticks[count] + 1 end
    for nth = 1, #ticks do ticks[nth], units[nth] = ticks[nth + count], units[nth + count] end
  end

  -- Subtracts the units that `units_to_subtract` returns for each entry, and removes entries without units. The charges
  -- of an entry are after the last charge of the entry before it.
  local function subtract(units_to_subtract)
    local kept, count, first, new_oldest_first, new_span = 0, #ticks, oldest_first, oldest_first, 0
    for nth = 1, count do
      local tick, left = ticks[nth], units[nth] - units_to_subtract(first, ticks[nth], units[nth])
      if left > 0 then
        if kept == 0 then new_oldest_first = first end
        kept, new_span = kept + 1, nth < count and tick - first or span
        ticks[kept], units[kept] = tick, left
      end
      first = tick + 1
    end
    for nth = kept + 1, count do ticks[nth], units[nth] = nil, nil end
    if kept == 1 then new_oldest_first = ticks[1] - new_span end
    oldest_first, span = new_oldest_first, new_span
    return write()
  end

  -- Merges neighbouring entries that could have been one entry, except the newest one.
  local function merge(window, resolution, max_units)
    local merged, first, count = 0, oldest_first, #ticks
    for nth = 1, count do
      local tick, added = ticks[nth], units[nth]
      if nth < count and merged > 0 and units[merged] + added <= max_units and (tick - first) * resolution < window then
        ticks[merged], units[merged] = tick, units[merged] + added
      else
        if merged > 0 then first = ticks[merged] + 1 end
        merged = merged + 1
        ticks[merged], units[merged] = tick, added
      end
    end
    for nth = merged + 1, count do ticks[nth], units[nth] = nil, nil end
    return write()
  end
  return ticks, subtract, merge, remove_first
end

local function decide(key, now, tick_us, window, max, resolution, margin_s, required, cost, take, tag)
  local value, first, last, key_expiry_s = read_log(key, tag)
  if not value then return nil end
  local newest, oldest_first, used, span, expiry_s, width = 0, 0, 0, 0, 0, 2
  local count, from, has_entries = 0, 1, false
  if first then
    if last - first + 1 < HEAD_BYTES then return nil end
    newest, oldest_first, used, span, expiry_s, width = unpack(HEAD, value, first)
    count, from = count_entries(last - first + 1, newest, width), first + HEAD_BYTES
    if not count then return nil end
    has_entries = count > 0
  end
  local entry, stride = width == 2 and '<I4I2' or '<I4I4', 4 + width
  local tick = now / tick_us
  tick = tick - tick % 1

  -- Skips the entries that have left the window: those before the position `from`.
  local left_tick
  local oldest_age = newest - (tick + 1 - window)
  if tick + 1 < window then oldest_age = newest end
  if oldest_age < 0 then
    used, count = 0, 0
  else
    while count > 0 do
      local entry_tick, units = unpack(entry, value, from)
      local age = (newest - entry_tick) % 4294967296
      if age <= oldest_age then break end
      left_tick, from, used, count = newest - age, from + stride, used - units, count - 1
    end
  end

  local remaining = max - used
  if remaining < 0 then remaining = 0 end
  local fits = used + required <= max
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if has_entries then
      reset = (newest + window) * tick_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The oldest entries leave one by one, until enough units are free.
    local to_free, age = used + required - max, 0
    while to_free > 0 do
      local entry_tick, units = unpack(entry, value, from)
      age, to_free, from = (newest - entry_tick) % 4294967296, to_free - units, from + stride
    end
    return false, remaining, reset, (newest - age + window) * tick_us - now, 0
  end

  local charge_tick = tick
  if tick * tick_us ~= now then charge_tick = tick + 1 end
  if cost > MAX_UNITS - used then cost = MAX_UNITS - used end
  local max_units, joins, units, body = max / resolution, false, cost, ''
  max_units = max_units + -max_units % 1
  if count > 0 then
    if left_tick then oldest_first = count == 1 and newest - span or left_tick + 1 end
    if newest > charge_tick then charge_tick = newest end
    local _, newest_units = unpack(entry, value, last - stride + 1)
    joins = cost == 0 or charge_tick == newest
      or ((newest_units + cost <= max_units or used + cost > 2 * max)
        and (charge_tick - newest + span) * resolution < window)
    if joins then
      body, units, count = value:sub(from, last - stride), newest_units + cost, count - 1
      -- At the largest number of units, nothing is charged.
      if cost > 0 then span, newest = span + charge_tick - newest, charge_tick end
    else
      body, span, newest = value:sub(from, last), 0, charge_tick
    end
  else
    oldest_first, span, newest = charge_tick, 0, charge_tick
  end
  used, count = used + cost, count + 1
  remaining = max - used
  if remaining < 0 then remaining = 0 end
  local reset = (newest + window) * tick_us - now
  local ttl_ms
  if now + reset > expiry_s * SECOND then
    expiry_s = key_expiry_s or expiry_s
    if now + reset > expiry_s * SECOND then expiry_s, ttl_ms = key_expiry(now, reset, tick_us * window, margin_s) end
  end
  if units > 65535 and width == 2 then
    body, width = body:gsub('......', '%0\0\0'), 4
  end
  local log = pack(HEAD, newest, oldest_first, used, span, expiry_s, width)
    .. body .. pack(width == 2 and '<I4I2' or '<I4I4', newest % 4294967296, units)
  if not joins and count > 3 * resolution and count % ((resolution - resolution % 4) / 4) == 0 then
    local _, _, merge = open_entries(log)
    log = merge(window, resolution, max_units)
  end
  replace_log(key, tag, first, last, log, ttl_ms, now)
  return true, remaining, reset, fits and 0 or 1, charge_tick * tick_us
end
