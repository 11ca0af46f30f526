-- The part of the previous count that still has weight is assumed to be spread evenly: the count becomes the largest
-- one with a weight lower by the cost. The rest of the cost is subtracted from the current count.
local function refund(now, tick_us, window, cost, last, previous, current)
  if cost == 0 then return last, previous, current end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local age = tick - (last - last % window)
  if age >= 2 * window then return last, previous, current end
  -- The count that is the previous one now, and the number of ticks for which it still has weight.
  local count, weighs_for = previous, window - age
  if age >= window then count, weighs_for = current, 2 * window - age end
  local weight = count * weighs_for / window
  weight = weight + -weight % 1
  local remaining_count = weight > cost and (weight - cost) * window / weighs_for or 0
  remaining_count = remaining_count - remaining_count % 1
  if age >= window then return last, previous, remaining_count end
  if cost > weight then
    cost = cost - weight
    current = current > cost and current - cost or 0
  end
  return last, remaining_count, current
end
