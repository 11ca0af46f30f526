-- Forgets counters: keys of their own as a whole, of groups of slots one slot.
local counters = unpack('<H', ARGV[1])
for nth = 1, counters do
  local is_slot, place, tag = unpack('<BHI4', ARGV[1], 3 + (nth - 1) * 7)
  local key = KEYS[place]
  if is_slot == 0 then
    call('UNLINK', key)
  else
    local value = call('GET', key) or ''
    local found, is_foreign = find(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    if found and #value == 28 then
      call('UNLINK', key)
    elseif found then
      call('SET', key, value:sub(1, found - 1) .. value:sub(found + 28), 'KEEPTTL')
    end
  end
end
return 'OK'
