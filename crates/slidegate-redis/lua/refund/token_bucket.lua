-- The level is lowered before it leaks. The other order has the same result, because the level never leaks below zero.
local function refund(_, _, window, cost, last, level, rate)
  if cost > MAX_SMALL_UNITS then cost = MAX_SMALL_UNITS end
  return last, level > cost * window and level - cost * window or 0, rate
end
