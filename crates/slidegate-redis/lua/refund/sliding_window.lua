-- What of the previous count still weighs is taken to be spread evenly: the count becomes the largest that weighs so
-- much less. What the cost has more comes off the running one.
local function refund(now, tick_us, window, cost, last, previous, current)
  if cost == 0 then return last, previous, current end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local age = tick - (last - last % window)
  if age >= 2 * window then return last, previous, current end
  -- Which of the two counts is the previous one now, and for how many ticks more.
  local count, weighs_for = previous, window - age
  if age >= window then count, weighs_for = current, 2 * window - age end
  local weight = count * weighs_for / window
  weight = weight + -weight % 1
  local left = weight > cost and (weight - cost) * window / weighs_for or 0
  left = left - left % 1
  if age >= window then return last, previous, left end
  if cost > weight then
    cost = cost - weight
    current = current > cost and current - cost or 0
  end
  return last, left, current
end
