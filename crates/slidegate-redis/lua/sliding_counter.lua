-- The algorithm of algorithm/sliding_counter.rs: two counts, the previous one weighted by the share of its window that
-- is still covered, rounded up. `last` is the tick of the last charge.
local function decide(now, tick_us, window, max, _, _, required, cost, take, last, previous, current)
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then
    if last * tick_us > now + 1000000 then
      local weight = previous * (window - last % window) / window
      current = current + weight + -weight % 1
      return nil, tick, 0, current < 536870912 and current or 536870912
    end
    tick = last
  end
  local start = last - last % window
  local elapsed = tick - start
  if elapsed >= window then
    if elapsed < 2 * window then
      start, elapsed, previous, current = start + window, elapsed - window, current, 0
    else
      elapsed = tick % window
      start, previous, current = tick - elapsed, 0, 0
    end
  end
  local weighted_previous = previous * (window - elapsed) / window
  weighted_previous = weighted_previous + -weighted_previous % 1
  local remaining = max - current - weighted_previous
  local fits = required <= remaining

  local reset = (start + 2 * window) * tick_us - now
  if reset < 0 then reset = 0 end
  local reset_before = reset
  if current == 0 then
    reset_before = 0
    if previous > 0 then
      reset_before = (start + window) * tick_us - now
      if reset_before < 0 then reset_before = 0 end
    end
  end

  if (fits and take == 1) or take == 2 then
    local remaining_before = remaining
    local charged = cost
    if cost > 536870912 - current then cost = 536870912 - current end
    current, remaining = current + cost, remaining - cost
    return charged, remaining, reset, fits and 0 or 1, tick * tick_us, tick, previous, current, remaining_before, reset_before
  end
  if fits then return false, remaining, reset_before, 0, 0 end
  if required > max then return false, remaining, reset_before, -1, 0 end
  -- Returns the earliest tick at which the weight of the previous count is small enough. If the current count alone is
  -- too large, this is after the current window has become the previous one.
  local capacity = max - required - current
  if capacity < 0 then
    capacity, previous, start = max - required, current, start + window
  end
  local ticks_before_end = capacity * window / previous
  return false, remaining, reset_before, (start + window - ticks_before_end + ticks_before_end % 1) * tick_us - now, 0
end
