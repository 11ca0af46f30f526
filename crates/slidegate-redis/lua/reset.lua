-- Deletes counters: the whole key if the state has its own, otherwise one slot.
local counters = unpack('<H', ARGV[1])
for nth = 1, counters do
  local is_slot, key_index, tag = unpack('<BHI4', ARGV[1], 3 + (nth - 1) * 7)
  local key = KEYS[key_index]
  if is_slot == 0 then
    call('UNLINK', key)
  else
    local value = call('GET', key) or ''
    local position, is_foreign = find_slot(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    if position and #value == 28 then
      call('UNLINK', key)
    elseif position then
      call('SET', key, value:sub(1, position - 1) .. value:sub(position + 28), 'KEEPTTL')
    end
  end
end
return 'OK'
