-- Lowering the level before or after it leaks has the same result: it never leaks below zero.
local function refund(_, _, window, cost, last, level, rate)
  if cost > MAX_SMALL_UNITS then cost = MAX_SMALL_UNITS end
  return last, level > cost * window and level - cost * window or 0, rate
end
