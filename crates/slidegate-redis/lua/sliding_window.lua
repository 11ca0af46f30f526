-- The algorithm of algorithm/sliding_window.rs: a log that is compacted to a bounded number of entries.
--
-- A section (see logs.lua) has the fields
--   tag, bytes, newest, used, span, newest_units, expiry_s, width, oldest_first: '<I4I4dI4I4I4I4BI4'
-- and then all entries except the newest one, the oldest first. `newest` and `newest_units` are the tick of the last
-- charge of the newest entry, and its units: 0 if the log is empty. `used` is the sum of all units. `span` is the number
-- of ticks from the first to the last charge of the newest entry. The oldest entry has no charges before the tick
-- `oldest_first` modulo 2^32. An entry has the tick of its last charge modulo 2^32, and its units in `width` bytes, 2
-- or 4. Most charges join the newest entry, so they change only 20 bytes at a fixed place.
--
-- A log that has had more than 2^32 - 1 units has the width 8: the units of an entry are a double, `used` and
-- `newest_units` are modulo 2^32, and their high halves precede the entries: '<I4I4'.

-- Decides a hit of a log. `value` is the section of the log, or '' if there is none. If it charges, the last results are
-- the new state of 20 bytes, the known expiry of the key, and the bytes that follow: nil if they have not changed.
-- Returns nothing if the value is not one section with this tag, or foreign: processing a foreign value as a log could
-- block Redis for a long time. Also returns nothing if the log is ahead of `now`: `set_back_log` must be called first.
local function decide(value, now, tick_us, window, max, resolution, required, cost, take, tag)
  local unpack, size = struct.unpack, #value
  local newest, used, span, newest_units, expiry_s, width = 0, 0, 0, 0, 0, 2
  local from, entry = 38, '<I4I2'
  if size > 0 then
    local found_tag, bytes
    if size < 37 then return end
    found_tag, bytes, newest, used, span, newest_units, expiry_s, width = unpack('<I4I4dI4I4I4I4B', value)
    if found_tag ~= tag or bytes ~= size - 8 or size > 98349 then return end
    if newest < 0 or newest > 2 ^ 53 or newest % 1 ~= 0 or newest * tick_us > now + 1000000 then return end
    if width == 4 then
      entry = '<I4I4'
    elseif width == 8 then
      if size < 45 then return end
      local used_high, newest_high = unpack('<I4I4', value, 38)
      used, newest_units = used + used_high * 4294967296, newest_units + newest_high * 4294967296
      from, entry = 46, '<I4d'
    elseif width ~= 2 then
      return
    end
    if (size + 1 - from) % (4 + width) ~= 0 then return end
  end
  local tick = now / tick_us
  tick = tick - tick % 1

  -- Skips the entries that have left the window: those before the position `from`. The others are at most `oldest_age`
  -- older than the newest one.
  local age, units, left_tick = 0, 0, nil
  local oldest_age = newest - (tick + 1 - window)
  if oldest_age > newest then oldest_age = newest end
  if oldest_age < 0 then
    used, from = 0, size + 1
  elseif from < size then
    repeat
      age, units = unpack(entry, value, from)
      age = (newest - age) % 4294967296
      if age <= oldest_age then break end
      left_tick, from, used = newest - age, from + 4 + width, used - units
    until from > size
  end

  local remaining = max - used
  local fits = required <= remaining
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if newest_units > 0 then
      reset = (newest + window) * tick_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The oldest entries leave one by one, until enough units are free.
    local to_free = required - remaining
    while from < size do
      to_free = to_free - units
      if to_free <= 0 then return false, remaining, reset, (newest - age + window) * tick_us - now, 0 end
      from = from + 4 + width
      if from < size then
        age, units = unpack(entry, value, from)
        age = (newest - age) % 4294967296
      end
    end
    return false, remaining, reset, (newest + window) * tick_us - now, 0
  end

  local charged, charge_tick, max_count = cost, tick, max > 536870912 and 9007199254740991 or 536870912
  local oldest_first, entries, rest
  if tick * tick_us ~= now then charge_tick = tick + 1 end
  if cost > max_count - used then cost = used < max_count and max_count - used or 0 end
  if oldest_age < 0 or newest_units == 0 then
    newest, span, newest_units = charge_tick, 0, cost
    oldest_first, entries, width = charge_tick, '', 2
  else
    if left_tick then oldest_first = from > size and newest - span or left_tick + 1 end
    if newest > charge_tick then charge_tick = newest end
    local elapsed, indivisible = charge_tick - newest, max % resolution
    local max_units = (max - indivisible) / resolution + (indivisible > 0 and 1 or 0)
    if elapsed == 0 or cost == 0 or ((newest_units + cost <= max_units or used + cost > 2 * max)
      and (elapsed + span) * resolution < window) then
      if left_tick then entries = value:sub(from) end
      newest_units = newest_units + cost
      -- At the largest number of units, the cost is reduced to 0: nothing is charged, and the entry keeps its tick.
      if cost > 0 then span, newest = span + elapsed, charge_tick end
    else
      -- The charge begins a new entry, so the entry that was the newest is moved to the others.
      oldest_first = oldest_first or unpack('<I4', value, 34)
      entries = value:sub(from)
      if newest_units > 65535 and width == 2 then
        entries, width = entries:gsub('......', '%0\0\0'), 4
      end
      if width == 4 then entry = '<I4I4' end
      entries = entries .. struct.pack(entry, newest % 4294967296, newest_units)
      local count = #entries / (4 + width) + 1
      if count > 3 * resolution and count % ((resolution - resolution % 4) / 4) == 0 then
        -- Merges neighbouring entries that could have been one entry. The charges of an entry are after the last charge
        -- of the entry before it.
        local merged, merged_tick, merged_units = {}, nil, 0
        local first = newest - (newest - oldest_first) % 4294967296
        for position = 1, #entries, 4 + width do
          local entry_tick, added = unpack(entry, entries, position)
          entry_tick = newest - (newest - entry_tick) % 4294967296
          if merged_tick and merged_units + added <= max_units and (entry_tick - first) * resolution < window then
            merged_units = merged_units + added
          else
            if merged_tick then
              merged[#merged + 1] = struct.pack(entry, merged_tick % 4294967296, merged_units)
              first = merged_tick + 1
            end
            merged_units = added
          end
          merged_tick = entry_tick
        end
        merged[#merged + 1] = struct.pack(entry, merged_tick % 4294967296, merged_units)
        entries = table.concat(merged)
      end
      newest, span, newest_units = charge_tick, 0, cost
    end
  end
  used = used + cost
  local used_low, newest_low = used, newest_units
  if used > 4294967295 or width == 8 then
    oldest_first, entries = oldest_first or unpack('<I4', value, 34), entries or value:sub(from)
    if width < 8 then
      local wide = {}
      for position = 1, #entries, 4 + width do
        wide[#wide + 1] = struct.pack('<I4d', unpack(width == 2 and '<I4I2' or '<I4I4', entries, position))
      end
      entries = table.concat(wide)
    end
    used_low, newest_low = used % 4294967296, newest_units % 4294967296
    rest = struct.pack('<BI4I4I4', 8, oldest_first % 4294967296, (used - used_low) / 4294967296,
      (newest_units - newest_low) / 4294967296) .. entries
  elseif entries then
    rest = struct.pack('<BI4', width, oldest_first % 4294967296) .. entries
  end
  return charged, max - used, (newest + window) * tick_us - now, fits and 0 or 1, charge_tick * tick_us,
    struct.pack('<dI4I4I4', newest, used_low, span, newest_low), expiry_s, rest
end
