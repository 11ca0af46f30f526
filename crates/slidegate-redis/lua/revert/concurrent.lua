local function revert(key, _, _, _, units, id)
  for nth = 1, units do call('ZREM', key, ('%.0f:%d'):format(id, nth)) end
  return true
end
