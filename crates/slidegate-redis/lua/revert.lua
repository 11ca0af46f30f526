-- Reverts charges. Units that have left their window are not affected.
local charges, foreign_key = unpack('<H', ARGV[1]), nil
for nth = 1, charges do
  local algorithm, key_index, tag, max, extra, tick_us, window, cost, charged_at =
    unpack('<BHI4I4I4dddd', ARGV[1], 3 + (nth - 1) * 47)
  local key = KEYS[key_index]
  if key_functions[algorithm] then
    local is_valid = key_functions[algorithm](key, tick_us, max, extra, cost, charged_at)
    if not is_valid then foreign_key = key end
  elseif log_functions[algorithm] then
    local before, section, after = split_logs(call('GET', key) or '', tag, 0)
    if before and section ~= '' then
      section = log_functions[algorithm](section, tag, tick_us, cost, charged_at)
      if section then call('SET', key, before .. section .. after, 'KEEPTTL') end
    end
    if not before or not section then foreign_key = key end
  else
    local value = call('GET', key) or ''
    local position, is_foreign = find_slot(value, tag)
    if is_foreign then foreign_key = key end
    if position then
      local _, expiry_s, a, b, c = unpack(SLOT, value, position)
      a, b, c = slot_functions[algorithm](tick_us, window, max, extra, cost, charged_at, a, b, c)
      value = value:sub(1, position - 1) .. pack(SLOT, tag, expiry_s, a, b, c) .. value:sub(position + 28)
      call('SET', key, value, 'KEEPTTL')
    end
  end
end
return foreign_key and redis.error_reply(FOREIGN .. foreign_key) or 'OK'
