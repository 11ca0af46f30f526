-- The algorithm of algorithm/fixed_window.rs: one count per window. `last` is the time of the last charge.
local function decide(now, _, window, max, _, _, required, cost, take, last, _, count)
  local window_end = last - last % window + window
  local reset = 0
  if now >= window_end then
    count = 0
  elseif count > 0 then
    reset = window_end - now
  end
  local remaining = max - count
  if remaining < 0 then remaining = 0 end

  local fits = count + required <= max
  if take == 2 or (take == 1 and fits) then
    local remaining_before = remaining
    count = count + cost
    if count > MAX_UNITS then count = MAX_UNITS end
    if now > last then last = now end
    remaining = max - count
    if remaining < 0 then remaining = 0 end
    return true, remaining, last - last % window + window - now, fits and 0 or 1, last, last, 0, count, remaining_before, reset
  end
  if fits then return false, remaining, reset, 0, 0 end
  if required > max then return false, remaining, reset, -1, 0 end
  return false, remaining, reset, reset, 0
end
