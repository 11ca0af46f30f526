-- The units of a charge leak over time. The units that may have leaked before the last charge of the bucket are not
-- reverted.
local function revert(tick_us, window, max, _, cost, charged_at, last, level, rate)
  if cost > 536870912 then cost = 536870912 end
  local tick = charged_at / tick_us
  local elapsed = last - (tick - tick % 1)
  if elapsed < 0 then elapsed = 0 end
  local remaining_level = cost * window - elapsed * (max > rate and max or rate)
  if remaining_level > 0 then level = level > remaining_level and level - remaining_level or 0 end
  return last, level, rate
end
