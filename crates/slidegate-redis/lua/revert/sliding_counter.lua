local function revert(tick_us, window, _, _, cost, charged_at, last, previous, current)
  local start = last - last % window
  local tick = charged_at / tick_us
  tick = tick - tick % 1
  if tick >= start then
    current = current > cost and current - cost or 0
  elseif tick + window >= start then
    previous = previous > cost and previous - cost or 0
  end
  return last, previous, current
end
