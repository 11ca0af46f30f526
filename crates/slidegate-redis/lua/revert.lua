-- Gives back exactly what was charged, of what has not left its window.
local charges = unpack('<H', ARGV[1])
for nth = 1, charges do
  local algorithm, place, tag, max, extra, tick_us, window, cost, at =
    unpack('<BHI4I4I4dddd', ARGV[1], 3 + (nth - 1) * 47)
  local key = KEYS[place]
  if own[algorithm] then
    local done = own[algorithm](key, tick_us, max, extra, cost, at)
    if not done then return redis.error_reply(FOREIGN .. key) end
  else
    local value = call('GET', key) or ''
    local found, is_foreign = find(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    if found then
      local _, known, a, b, c = unpack(SLOT, value, found)
      a, b, c = slot[algorithm](tick_us, window, max, extra, cost, at, a, b, c)
      value = value:sub(1, found - 1) .. pack(SLOT, tag, known, a, b, c) .. value:sub(found + 28)
      call('SET', key, value, 'KEEPTTL')
    end
  end
end
return 'OK'
