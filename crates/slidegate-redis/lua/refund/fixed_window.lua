local function refund(now, _, window, cost, last, large, small)
  if now >= last - last % window + window then return last, large, small end
  local count = large + small > cost and large + small - cost or 0
  if count > 4294967295 then return last, count, 0 end
  return last, 0, count
end
