-- Subtracts units from the entry that contains the charge. The entry keeps its tick, so its other units are not counted
-- for a shorter time. Returns the new section, or nil if the section is foreign.
local function revert(section, tag, tick_us, cost, charged_at)
  local ticks, subtract = open_entries(section, tag)
  if not ticks then return end
  local tick = charged_at / tick_us
  tick = tick - tick % 1
  return subtract(function(first, last, units)
    if tick < first or tick > last then return 0 end
    return cost < units and cost or units
  end)
end
