-- The algorithm of algorithm/fixed_window.rs: one count per window, in `small` if it is less than 2^32, and otherwise
-- in `large`; the other one is 0. `last` is the time of the last charge. With a calendar, the window with the number
-- `boundary` begins at the period boundary that is nearest to the client's time, and `now` has the phase of the period
-- before this boundary. The phase grows by `step_s` seconds at the boundary. So `step_s` is added for a decision after
-- the boundary, and for a late decision, which finds a state of the next period.
--
-- If the state is ahead of `now`, because a clock has stepped back, every `decide` of a slot returns nil and the state
-- set back.
local function decide(now, _, window, max, boundary, step_s, required, cost, take, last, large, small)
  local window_end = last - last % window + window
  if boundary > 0 and now >= boundary * window then now, boundary = now + step_s * 1000000, 0 end
  if window_end - window > now + 1000000 then return nil, now, large, small end
  if boundary > 0 and last >= boundary * window then now = now + step_s * 1000000 end
  local reset, count = 0, large + small
  if now >= window_end then
    count = 0
  elseif count > 0 then
    reset = window_end - now
  end
  local remaining = max - count
  local fits = required <= remaining
  if take == 2 or (take == 1 and fits) then
    local remaining_before = remaining
    local charged, max_count = cost, max > 536870912 and 9007199254740991 or 536870912
    if cost > max_count - count then cost = count < max_count and max_count - count or 0 end
    count = count + cost
    if now > last then last = now end
    local start = last - last % window
    large, small = 0, count
    if count > 4294967295 then large, small = count, 0 end
    return charged, max - count, start + window - now, fits and 0 or 1, now > start and now or start,
      last, large, small, remaining_before, reset
  end
  if fits then return false, remaining, reset, 0, 0 end
  if required > max then return false, remaining, reset, -1, 0 end
  return false, remaining, reset, reset, 0
end
