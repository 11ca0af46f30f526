-- Decides several hits of one request whose states are slots of one value, each once, and all enforced: the
-- limits of one rule, asked for alone. (What is not so simple, batch.lua decides.)
local now, mode, hits = unpack('<dBH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local key = KEYS[1]
local value = call('GET', key) or ''
if #value % 28 > 0 then return redis.error_reply(FOREIGN .. key) end

-- Each is charged, until one does not fit. How those stand before it that were charged in vain is kept.
local take, in_order, is_short = mode, #value == hits * 28, false
local slots, replies, before, lasting, kept = {}, {}, {}, 0, 0
for nth = 1, hits do
  local algorithm, tag, max, extra, keep, tick_us, window, cost, phase, required, debt =
    unpack('<BxxxI4I4I4I4ddddI4I4', ARGV[1], nth * 60 - 48)
  local at, found, known, a, b, c = nth * 28 - 27, nil, 0, 0, 0, 0
  if at < #value then found, known, a, b, c = unpack(SLOT, value, at) end
  if found ~= tag then
    local is_foreign
    in_order, known, a, b, c = false, 0, 0, 0, 0
    at, is_foreign = find(value, tag)
    if is_foreign then return redis.error_reply(FOREIGN .. key) end
    if at then found, known, a, b, c = unpack(SLOT, value, at) end
  end

  local charged, remaining, reset, retry, charged_at, left, reset_before
  charged, remaining, reset, retry, charged_at, a, b, c, left, reset_before =
    slot[algorithm](now + phase, tick_us, window, max, extra, debt, required, cost, cost > 0 and take or 0, a, b, c)
  if charged then
    if now + reset > known * SECOND then
      known = lasts(now, reset, tick_us * window, keep)
      is_short = true
    end
    if known > lasting then lasting = known end
    kept = keep
    slots[nth] = pack(SLOT, tag, known, a, b, c)
    before[nth * 2 - 1], before[nth * 2] = left, reset_before
    if remaining > 0 then
      replies[nth] = pack('<Bdddd', 1, remaining, reset, 0, charged_at)
    else
      -- Nothing remains: the time until one unit fits.
      local _, _, _, wait =
        slot[algorithm](now + phase, tick_us, window, max, extra, debt, 1, 0, 0, a, b, c)
      replies[nth] = pack('<Bdddd', 6, remaining, reset, wait, charged_at)
    end
  else
    replies[nth] = pack('<Bdddd', 0, remaining, reset, retry, 0)
    if retry ~= 0 then take = 0 end
  end
end

if take == 0 then
  for nth in pairs(slots) do
    replies[nth] = pack('<Bdddd', 0, before[nth * 2 - 1], before[nth * 2], 0, 0)
  end
elseif lasting > 0 then
  if in_order and #slots == hits then
    value = table.concat(slots)
  else
    -- In the places of their former selves, with the others that are not over.
    local changed, parts = {}, {}
    for _, bytes in pairs(slots) do changed[unpack('<I4', bytes)] = bytes end
    local others = latest(value)
    if others > lasting then lasting = others end
    for at = 1, #value, 28 do
      local tag, known = unpack('<I4I4', value, at)
      if changed[tag] then
        parts[#parts + 1], changed[tag] = changed[tag], nil
      elseif known * SECOND >= now then
        parts[#parts + 1] = value:sub(at, at + 27)
      end
    end
    for _, bytes in pairs(changed) do parts[#parts + 1] = bytes end
    value = table.concat(parts)
  end
  if is_short then
    call('SET', key, value, 'PX', lasting * 1000 - now / 1000 + now / 1000 % 1 + kept * 1000)
  else
    call('SET', key, value, 'KEEPTTL')
  end
end
return table.concat(replies)
