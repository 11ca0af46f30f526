-- A charge leaves by leaking: what of it may have leaked by the last charge has left.
local function revert(tick_us, window, max, _, cost, at, last, level, rate)
  local tick = at / tick_us
  local elapsed = last - (tick - tick % 1)
  if elapsed < 0 then elapsed = 0 end
  local left = cost * window - elapsed * (max > rate and max or rate)
  if left > 0 then level = level > left and level - left or 0 end
  return last, level, rate
end
