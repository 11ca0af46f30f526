-- Reads the section of a log of sliding_window. Returns the ticks and the units of its entries, and functions that
-- change the log and return its new section; nothing if the section is foreign.
local function open_entries(section, log_tag)
  local size = #section
  if size < 37 then return end
  local found_tag, bytes, newest, _, span, newest_units, expiry_s, width, oldest_first =
    unpack('<I4I4dI4I4I4I4BI4', section)
  if found_tag ~= log_tag or bytes ~= size - 8 or size > 98349 then return end
  local format = ({ [2] = '<I4I2', [4] = '<I4I4', [8] = '<I4d' })[width]
  local from = width == 8 and 46 or 38
  if not format or size + 1 < from or (size + 1 - from) % (4 + width) ~= 0 then return end
  if newest < 0 or newest > 2 ^ 53 or newest % 1 ~= 0 then return end
  if width == 8 then newest_units = newest_units + unpack('<I4', section, 42) * 4294967296 end
  local ticks, units = {}, {}
  for position = from, size, 4 + width do
    local nth = #ticks + 1
    ticks[nth], units[nth] = unpack(format, section, position)
    ticks[nth] = newest - (newest - ticks[nth]) % 4294967296
  end
  if newest_units > 0 then ticks[#ticks + 1], units[#ticks + 1] = newest, newest_units end
  local reference = ticks[1] or newest
  oldest_first = reference - (reference - oldest_first) % 4294967296

  -- Removes the first entries, which have left the window. If only the newest entry is left, the tick of its first
  -- charge is known. Otherwise the first charge is after the last removed entry.
  local function remove_first(count)
    local kept = #ticks - count
    if count > 0 then oldest_first = kept == 1 and newest - span or ticks[count] + 1 end
    for nth = 1, #ticks do ticks[nth], units[nth] = ticks[nth + count], units[nth + count] end
  end

  -- Subtracts the units that `units_to_subtract` returns for each entry, and removes entries without units. The charges
  -- of an entry are after the last charge of the entry before it.
  local function subtract(units_to_subtract)
    local kept, count, first, new_oldest_first, new_span, used = 0, #ticks, oldest_first, oldest_first, 0, 0
    for nth = 1, count do
      local tick, left = ticks[nth], units[nth] - units_to_subtract(first, ticks[nth], units[nth])
      if left > 0 then
        if kept == 0 then new_oldest_first = first end
        kept, new_span, used = kept + 1, nth < count and tick - first or span, used + left
        ticks[kept], units[kept] = tick, left
      end
      first = tick + 1
    end
    if kept == 0 then
      return pack('<I4I4dI4I4I4I4BI4', log_tag, 29, 0, 0, 0, 0, expiry_s, 2, 0)
    end
    if kept == 1 then new_oldest_first = ticks[1] - new_span end
    local parts, new_width, new_format = {}, 2, '<I4I2'
    for nth = 1, kept - 1 do
      if units[nth] > 65535 then new_width, new_format = 4, '<I4I4' end
    end
    if used > 4294967295 then
      new_width, new_format = 8, '<I4d'
      local used_low, newest_low = used % 4294967296, units[kept] % 4294967296
      parts[1] = pack('<I4I4', (used - used_low) / 4294967296, (units[kept] - newest_low) / 4294967296)
      used, units[kept] = used_low, newest_low
    end
    for nth = 1, kept - 1 do
      parts[#parts + 1] = pack(new_format, ticks[nth] % 4294967296, units[nth])
    end
    local entries = table.concat(parts)
    return pack('<I4I4dI4I4I4I4BI4', log_tag, 29 + #entries, ticks[kept], used, new_span, units[kept], expiry_s,
      new_width, new_oldest_first % 4294967296) .. entries
  end
  return ticks, subtract, remove_first
end
