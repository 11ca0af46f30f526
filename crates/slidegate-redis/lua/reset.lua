-- Deletes counters: the whole key if the state has its own, otherwise one slot or one log.
local counters = unpack('<H', ARGV[1])
for nth = 1, counters do
  local kind, key_index, tag = unpack('<BHI4', ARGV[1], 3 + (nth - 1) * 7)
  local key, value, first, last, is_foreign = KEYS[key_index], nil, nil, nil, nil
  if kind == 0 then
    call('UNLINK', key)
  elseif kind == 1 then
    value = call('GET', key) or ''
    first, is_foreign = find_slot(value, tag)
    last = first and first + 27
  else
    value = call('GET', key) or ''
    local before, section = split_logs(value, tag, 0)
    is_foreign = not before
    if before and section ~= '' then first, last = #before + 1, #before + #section end
  end
  if is_foreign then return redis.error_reply(FOREIGN .. key) end
  if first == 1 and last == #value then
    call('UNLINK', key)
  elseif first then
    call('SET', key, value:sub(1, first - 1) .. value:sub(last + 1), 'KEEPTTL')
  end
end
return 'OK'
