-- The algorithm of algorithm/token_bucket.rs: GCRA, as a level in units of 1/window that leaks `rate` per tick.
-- `last` is the tick of the last charge.
local MAX_SPAN_US = 4503599627370496

-- Returns the ticks until `excess` has leaked. The quotient may be rounded, the remainder is always exact.
local function ticks_to_leak(excess, rate)
  local ticks = excess / rate
  ticks = ticks - ticks % 1
  if excess - ticks * rate > 0 then ticks = ticks + 1 end
  return ticks
end

-- Returns the microseconds until a tick, bounded.
local function time_until_tick(tick, tick_us, now)
  local span = tick * tick_us - now
  if span < 0 then return 0 end
  if span > MAX_SPAN_US then return MAX_SPAN_US end
  return span
end

local function decide(now, tick_us, window, max, burst, debt, required, cost, take, last, level, rate)
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then
    if last * tick_us > now + 1000000 then return nil, tick, level, rate end
    tick = last
  end
  local max_units = burst + debt
  if max == 0 then burst = 0 end
  if rate == 0 then rate = 1 end
  local current_level = level - (tick - last) * rate
  if current_level < 0 then current_level = 0 end
  local remaining = (burst * window - current_level) / window
  remaining = remaining - remaining % 1

  local reset_before = 0
  if level > 0 then reset_before = time_until_tick(last + ticks_to_leak(level, rate), tick_us, now) end

  local fits = required <= remaining
  if take == 2 or (take == 1 and fits) then
    local remaining_before = remaining
    if max_units > MAX_SMALL_UNITS then max_units = MAX_SMALL_UNITS end
    local charged_units = (max_units * window - current_level) / window
    charged_units = charged_units < 0 and 0 or charged_units - charged_units % 1
    if charged_units > cost then charged_units = cost end
    level = current_level + charged_units * window
    rate = max == 0 and 1 or max
    remaining = (burst * window - level) / window
    remaining = remaining - remaining % 1
    local reset = level > 0 and time_until_tick(tick + ticks_to_leak(level, rate), tick_us, now) or 0
    return charged_units, remaining, reset, fits and 0 or 1, tick * tick_us, tick, level, rate, remaining_before, reset_before
  end
  if fits then return false, remaining, reset_before, 0, 0 end
  if required > burst then return false, remaining, reset_before, -1, 0 end
  local excess = current_level - (burst - required) * window
  return false, remaining, reset_before, time_until_tick(tick + ticks_to_leak(excess, rate), tick_us, now), 0
end
