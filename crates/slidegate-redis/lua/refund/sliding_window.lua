-- Returns the new section of a log, or nil if the section is foreign.
local function refund(section, tag, now, tick_us, window, cost)
  local ticks, subtract, remove_first = open_entries(section, tag)
  if not ticks then return end
  local tick, left = now / tick_us, 0
  tick = tick - tick % 1
  while ticks[left + 1] and ticks[left + 1] <= tick - window do left = left + 1 end
  remove_first(left)
  return subtract(function(_, _, units)
    local refunded = cost < units and cost or units
    cost = cost - refunded
    return refunded
  end)
end
