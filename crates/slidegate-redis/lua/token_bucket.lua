-- Twin of algorithm/token_bucket.rs: GCRA, as a level in 1/window of a unit that leaks `rate` each tick.
-- `last` is the tick of the last charge.
local LONGEST = 4503599627370496

-- Ticks until `excess` has leaked. The quotient may be rounded, the rest never is.
local function leaks_in(excess, rate)
  local ticks = excess / rate
  ticks = ticks - ticks % 1
  if excess - ticks * rate > 0 then ticks = ticks + 1 end
  return ticks
end

local function until_tick(tick, tick_us, now)
  local span = tick * tick_us - now
  if span < 0 then return 0 end
  if span > LONGEST then return LONGEST end
  return span
end

local function decide(now, tick_us, window, max, burst, debt, required, cost, take, last, level, rate)
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local most = burst + debt
  if max == 0 then burst = 0 end
  if rate == 0 then rate = 1 end
  local left = level - (tick - last) * rate
  if left < 0 then left = 0 end
  local free = burst * window - left
  if free < 0 then free = 0 end
  local remaining = free / window
  remaining = remaining - remaining % 1

  local before = 0
  if level > 0 then before = until_tick(last + leaks_in(level, rate), tick_us, now) end

  local fits = required <= remaining and left <= burst * window
  if take == 2 or (take == 1 and fits) then
    local free_before = remaining
    if most > MOST_UNITS then most = MOST_UNITS end
    local units = (most * window - left) / window
    units = units < 0 and 0 or units - units % 1
    if units > cost then units = cost end
    level = left + units * window
    rate = max == 0 and 1 or max
    free = burst * window - level
    if free < 0 then free = 0 end
    remaining = free / window
    remaining = remaining - remaining % 1
    local reset = level > 0 and until_tick(tick + leaks_in(level, rate), tick_us, now) or 0
    -- At the largest debt nothing remains, so the number tells the units that were charged instead.
    if units < cost then remaining = -1 - units end
    return true, remaining, reset, fits and 0 or 1, tick * tick_us, tick, level, rate, free_before, before
  end
  if fits then return false, remaining, before, 0, 0 end
  if required > burst then return false, remaining, before, -1, 0 end
  local excess = left - (burst - required) * window
  return false, remaining, before, until_tick(tick + leaks_in(excess, rate), tick_us, now), 0
end
