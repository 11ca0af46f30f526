local function refund(now, _, window, cost, last, _, count)
  if now < last - last % window + window then count = count > cost and count - cost or 0 end
  return last, 0, count
end
