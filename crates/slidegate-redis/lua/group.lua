-- Decides several hits of one request whose states are different slots of one value, all enforced: the limits of one
-- rule. batch.lua decides all other requests.
local arg = ARGV[1]
local now, mode, hits, margin_s = unpack('<dBHd', arg)
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key) or ''
if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end

-- Charges each hit until one does not fit. The figures before the charges are kept, in case they are discarded.
local take, has_only_these, extends_expiry = mode, #value == hits * 28, false
-- The tables have space for a few hits, because growing a table is slow.
local slots, charged_slots, latest_expiry_s = { false, false, false, false }, 0, 0
local replies, before_charge = { '', '', '', '' }, { 0, 0, 0, 0, 0, 0, 0, 0 }
for nth = 1, hits do
  local algorithm, tag, max, extra, tick_us, window, cost, phase, required, debt =
    unpack('<dddddddddd', arg, nth * 80 - 60)
  local position, found, expiry_s, a, b, c = nth * 28 - 27, nil, 0, 0, 0, 0
  if position < #value then found, expiry_s, a, b, c = unpack(SLOT, value, position) end
  if found ~= tag then
    local is_foreign
    expiry_s, a, b, c = 0, 0, 0, 0
    position, is_foreign = find_slot(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    if position then found, expiry_s, a, b, c = unpack(SLOT, value, position) else has_only_these = false end
  end

  local charged, remaining, reset, retry, charged_at, remaining_before, reset_before
  charged, remaining, reset, retry, charged_at, a, b, c, remaining_before, reset_before =
    slot_functions[algorithm](now + phase, tick_us, window, max, extra, debt, required, cost, cost > 0 and take or 0, a, b, c)
  if charged then
    if now + reset > expiry_s * SECOND then
      expiry_s = key_expiry(now, reset, tick_us * window, margin_s)
      extends_expiry = true
    end
    if expiry_s > latest_expiry_s then latest_expiry_s = expiry_s end
    slots[nth], charged_slots = pack(SLOT, tag, expiry_s, a, b, c), charged_slots + 1
    before_charge[nth * 2 - 1], before_charge[nth * 2] = remaining_before, reset_before
    if remaining > 0 then
      replies[nth] = pack('<Bdddd', 1, remaining, reset, 0, charged_at)
    else
      -- Nothing remains: the reply has the time until one unit fits.
      local _, _, _, wait =
        slot_functions[algorithm](now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
      replies[nth] = pack('<Bdddd', 6, remaining, reset, wait, charged_at)
    end
  else
    replies[nth] = pack('<Bdddd', 0, remaining, reset, retry, 0)
    if retry ~= 0 then take = 0 end
  end
end

if take == 0 then
  for nth = 1, hits do
    if slots[nth] then replies[nth] = pack('<Bdddd', 0, before_charge[nth * 2 - 1], before_charge[nth * 2], 0, 0) end
  end
elseif latest_expiry_s > 0 then
  if has_only_these and charged_slots == hits then
    value = table.concat(slots, '', 1, hits)
    if not extends_expiry then
      call('SETRANGE', key, '0', value)
      return table.concat(replies, '', 1, hits)
    end
  else
    -- Changed slots stay at their positions. Slots that expired more than a second ago are
    -- dropped.
    local changed, parts = {}, {}
    for nth = 1, hits do
      if slots[nth] then changed[unpack('<I4', slots[nth])] = slots[nth] end
    end
    local others_expiry_s = latest_expiry(value)
    if others_expiry_s > latest_expiry_s then latest_expiry_s = others_expiry_s end
    for position = 1, #value, 28 do
      local tag, expiry_s = unpack('<I4I4', value, position)
      if changed[tag] then
        parts[#parts + 1], changed[tag] = changed[tag], nil
      elseif expiry_s * SECOND >= now - SECOND then
        parts[#parts + 1] = value:sub(position, position + 27)
      end
    end
    for _, bytes in pairs(changed) do parts[#parts + 1] = bytes end
    value = table.concat(parts)
  end
  if extends_expiry then
    call('SET', key, value, 'PX', latest_expiry_s * 1000 - now / 1000 + now / 1000 % 1 + margin_s * 1000)
  else
    call('SET', key, value, 'KEEPTTL')
  end
end
return table.concat(replies, '', 1, hits)
