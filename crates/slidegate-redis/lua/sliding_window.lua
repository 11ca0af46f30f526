-- Twin of algorithm/sliding_window.rs: two counts, the previous one weighted by the share of its window that
-- is still covered, rounded up. `last` is the tick of the last charge.
local function decide(now, tick_us, window, max, _, _, required, cost, take, last, previous, current)
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local start = last - last % window
  local elapsed = tick - start
  if elapsed >= 2 * window then
    elapsed = tick % window
    start, previous, current = tick - elapsed, 0, 0
  elseif elapsed >= window then
    start, elapsed, previous, current = start + window, elapsed - window, current, 0
  end
  local weighed = previous * (window - elapsed) / window
  weighed = weighed + -weighed % 1
  local remaining = max - current - weighed
  if remaining < 0 then remaining = 0 end

  local before = 0
  if current > 0 then
    before = (start + 2 * window) * tick_us - now
  elseif previous > 0 then
    before = (start + window) * tick_us - now
  end
  if before < 0 then before = 0 end

  local fits = current + weighed + required <= max
  if take == 2 or (take == 1 and fits) then
    local left = remaining
    current = current + cost
    if current > MOST_UNITS then current = MOST_UNITS end
    remaining = max - current - weighed
    if remaining < 0 then remaining = 0 end
    local reset = (start + 2 * window) * tick_us - now
    if reset < 0 then reset = 0 end
    return true, remaining, reset, fits and 0 or 1, tick * tick_us, tick, previous, current, left, before
  end
  if fits then return false, remaining, before, 0, 0 end
  if required > max then return false, remaining, before, -1, 0 end
  -- The earliest tick at which the previous count weighs no more than is free for it; or, not before the
  -- running window has become the previous one, at which the current count does.
  local room = max - required - current
  if room < 0 then
    room, previous, start = max - required, current, start + window
  end
  local late = room * window / previous
  return false, remaining, before, (start + window - late + late % 1) * tick_us - now, 0
end
