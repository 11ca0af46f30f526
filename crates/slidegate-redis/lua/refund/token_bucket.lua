-- The level leaks down to nothing and no further, so it is all one whether it is lowered before or after.
local function refund(_, _, window, cost, last, level, rate)
  if cost > MOST_UNITS then cost = MOST_UNITS end
  return last, level > cost * window and level - cost * window or 0, rate
end
