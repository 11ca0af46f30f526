-- Subtracts units from the entry that contains the charge. The entry keeps its tick, so its other units are not counted
-- for a shorter time. Returns the new section, or nil if the section is foreign.
local function revert(section, tag, tick_us, cost, charged_at)
  local tick = charged_at / tick_us
  tick = tick - tick % 1
  if #section >= 37 and section:byte(33) < 8 then
    -- Most charges are reverted soon, while they are in the newest entry, and leave units in it.
    local found_tag, bytes, newest, used, span, newest_units = unpack('<I4I4dI4I4I4', section)
    if found_tag == tag and bytes == #section - 8 and tick >= newest - span and tick <= newest and cost < newest_units then
      return section:sub(1, 8) .. pack('<dI4I4I4', newest, used - cost, span, newest_units - cost) .. section:sub(29)
    end
  end
  local ticks, subtract = open_entries(section, tag)
  if not ticks then return end
  -- A charge after the newest entry was made before a clock stepped back. The units of that time are now in the newest
  -- entry.
  if #ticks > 0 and tick > ticks[#ticks] then tick = ticks[#ticks] end
  return subtract(function(first, last, units)
    if tick < first or tick > last then return 0 end
    return cost < units and cost or units
  end)
end
