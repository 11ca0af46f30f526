-- Subtracts units from the entry that contains the charge. The entry keeps its tick, so its other units are not counted
-- for a shorter time.
local function revert(key, tick_us, _, _, cost, charged_at, tag)
  local value, position, last = read_log(key, tag)
  if not value then return nil end
  if not position then return true end
  local ticks, subtract = open_entries(value:sub(position, last))
  if not ticks then return nil end
  local tick = charged_at / tick_us
  tick = tick - tick % 1
  replace_log(key, tag, position, last, subtract(function(first, last, units)
    if tick < first or tick > last then return 0 end
    return cost < units and cost or units
  end))
  return true
end
