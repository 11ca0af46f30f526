-- Twin of algorithm/fixed_window.rs: one count per window. `last` is the moment of the last charge.
local function decide(now, _, window, max, _, _, required, cost, take, last, _, count)
  local ends = last - last % window + window
  local reset = 0
  if now >= ends then
    count = 0
  elseif count > 0 then
    reset = ends - now
  end
  local remaining = max - count
  if remaining < 0 then remaining = 0 end

  local fits = count + required <= max
  if take == 2 or (take == 1 and fits) then
    local left = remaining
    count = count + cost
    if count > MOST_UNITS then count = MOST_UNITS end
    if now > last then last = now end
    remaining = max - count
    if remaining < 0 then remaining = 0 end
    return true, remaining, last - last % window + window - now, fits and 0 or 1, last, last, 0, count, left, reset
  end
  if fits then return false, remaining, reset, 0, 0 end
  if required > max then return false, remaining, reset, -1, 0 end
  return false, remaining, reset, reset, 0
end
