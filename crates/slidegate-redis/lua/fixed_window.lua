-- The algorithm of algorithm/fixed_window.rs: one count per window. `last` is the time of the last charge. With a
-- calendar, window number `boundary` begins at the period boundary that is nearest to the client's time, and `now` has the
-- phase of the period before this boundary. The phase grows by `step_s` seconds at the boundary: for a decision after the
-- boundary, and for a late decision, which finds a state of the next period.
local function decide(now, _, window, max, boundary, step_s, required, cost, take, last, _, count)
  if boundary > 0 and (now >= boundary * window or last >= boundary * window) then now = now + step_s * 1000000 end
  local window_end = last - last % window + window
  local reset = 0
  if now >= window_end then
    count = 0
  elseif count > 0 then
    reset = window_end - now
  end
  local remaining = max - count
  local fits = required <= remaining
  if take == 2 or (take == 1 and fits) then
    local remaining_before = remaining
    count = count + cost
    if count > 536870912 then count = 536870912 end
    if now > last then last = now end
    return cost, max - count, last - last % window + window - now, fits and 0 or 1, last, last, 0, count, remaining_before, reset
  end
  if fits then return false, remaining, reset, 0, 0 end
  if required > max then return false, remaining, reset, -1, 0 end
  return false, remaining, reset, reset, 0
end
