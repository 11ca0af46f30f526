-- Subtracts units from counters, the oldest units first, and replies with the resulting state of each counter. Never
-- creates a counter.
local now, hits = unpack('<dH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local replies = {}

-- Returns an error for a foreign value. The refunds before it remain.
local function foreign_reply(key) return redis.error_reply(FOREIGN .. key) end

for nth = 1, hits do
  local algorithm, key_index, tag, extra, debt, max, tick_us, window, cost, phase =
    unpack('<BHI4I4I4ddddd', ARGV[1], 11 + (nth - 1) * 55)
  local key, refund = KEYS[key_index], refund_functions[algorithm]
  local _, remaining, reset, wait
  -- If the clock has stepped back, the state is set back first. A key is then kept this many seconds longer than needed.
  local MARGIN_S = 10
  if key_functions[algorithm] then
    key_functions[algorithm](key, now, tick_us, window, max, extra, MARGIN_S, 1, 0, 0)
    local is_valid = refund(key, now, tick_us, window, max, extra, cost)
    if not is_valid then return foreign_reply(key) end
    _, remaining, reset, wait = key_functions[algorithm](key, now, tick_us, window, max, extra, 0, 1, 0, 0)
  elseif log_functions[algorithm] then
    local before, section, after, latest_expiry_s = split_logs(call('GET', key) or '', tag, now)
    if not before then return foreign_reply(key) end
    before, section, after = set_back_log(log_functions[algorithm], key, before, section, after, latest_expiry_s, now,
      tick_us, window, max, extra, MARGIN_S)
    if section ~= '' then
      section = refund(section, tag, now, tick_us, window, cost)
      if not section then return foreign_reply(key) end
      call('SET', key, before .. section .. after, 'KEEPTTL')
    end
    _, remaining, reset, wait = log_functions[algorithm](section, now, tick_us, window, max, extra, 1, 0, 0, tag)
  else
    local value = call('GET', key) or ''
    local position, is_foreign = find_slot(value, tag)
    if is_foreign then return foreign_reply(key) end
    local a, b, c = 0, 0, 0
    if position then
      local _, expiry_s, a_before, b_before, c_before = unpack(SLOT, value, position)
      local charged, new_a, new_b, new_c =
        slot_functions[algorithm](now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a_before, b_before, c_before)
      if charged == nil then
        a_before, b_before, c_before = new_a, new_b, new_c
        _, _, reset =
          slot_functions[algorithm](now + phase, tick_us, window, max, extra, debt, 1, 0, 0, new_a, new_b, new_c)
        value, expiry_s = set_back_slot(key, value, tag, now, reset, tick_us * window, MARGIN_S, new_a, new_b, new_c)
      end
      a, b, c = refund(now + phase, tick_us, window, cost, a_before, b_before, c_before)
      if a ~= a_before or b ~= b_before or c ~= c_before then
        value = value:sub(1, position - 1) .. pack(SLOT, tag, expiry_s, a, b, c) .. value:sub(position + 28)
        call('SET', key, value, 'KEEPTTL')
      end
    end
    _, remaining, reset, wait =
      slot_functions[algorithm](now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
  end
  replies[nth] = pack('<Bddddd', 0, remaining, reset, wait, 0, 0)
end
return table.concat(replies)
