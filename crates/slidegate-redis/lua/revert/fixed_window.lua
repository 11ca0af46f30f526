local function revert(_, window, _, _, cost, charged_at, last, _, count)
  if charged_at + window >= last - last % window + window then count = count > cost and count - cost or 0 end
  return last, 0, count
end
