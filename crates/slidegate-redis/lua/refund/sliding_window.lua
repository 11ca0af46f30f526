local function refund(key, now, tick_us, window, _, _, cost, tag)
  local value, position, last = read_log(key, tag)
  if not value then return nil end
  if not position then return true end
  local ticks, subtract, _, remove_first = open_entries(value:sub(position, last))
  if not ticks then return nil end
  local tick, left = now / tick_us, 0
  tick = tick - tick % 1
  while ticks[left + 1] and ticks[left + 1] <= tick - window do left = left + 1 end
  remove_first(left)
  replace_log(key, tag, position, last, subtract(function(_, _, units)
    local refunded = cost < units and cost or units
    cost = cost - refunded
    return refunded
  end))
  return true
end
