-- Reverts charges. Units that have left their window are not affected. Limits of one rule share a value, which is read and
-- written once.
local charges, foreign_key = unpack('<H', ARGV[1]), nil
local value_key, value, is_changed
for nth = 1, charges do
  local algorithm, key_index, tag, extra, max, tick_us, window, cost, charged_at =
    unpack('<BHI4I4ddddd', ARGV[1], 3 + (nth - 1) * 51)
  local key = KEYS[key_index]
  if key_functions[algorithm] then
    local is_valid = key_functions[algorithm](key, tick_us, max, extra, cost, charged_at)
    if not is_valid then foreign_key = key end
  else
    if key ~= value_key then
      if is_changed then call('SET', value_key, value, 'KEEPTTL') end
      value_key, value, is_changed = key, call('GET', key) or '', false
    end
    if log_functions[algorithm] then
      local before, section, after = split_logs(value, tag, 0)
      if before and section ~= '' then
        section = log_functions[algorithm](section, tag, tick_us, cost, charged_at)
        if section then value, is_changed = before .. section .. after, true end
      end
      if not before or not section then foreign_key = key end
    else
      local position, is_foreign = find_slot(value, tag)
      if is_foreign then foreign_key = key end
      if position then
        local _, expiry_s, a, b, c = unpack(SLOT, value, position)
        a, b, c = slot_functions[algorithm](tick_us, window, max, extra, cost, charged_at, a, b, c)
        value = value:sub(1, position - 1) .. pack(SLOT, tag, expiry_s, a, b, c) .. value:sub(position + 28)
        is_changed = true
      end
    end
  end
end
if is_changed then call('SET', value_key, value, 'KEEPTTL') end
return foreign_key and redis.error_reply(FOREIGN .. foreign_key) or 'OK'
