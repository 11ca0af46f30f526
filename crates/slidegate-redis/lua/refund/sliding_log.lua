local function refund(key, now, tick_us, window, max, _, cost)
  local small, value = max <= SMALL, nil
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '39') end
  if value == '' then return true end
  if #value < HEAD_BYTES then return nil end
  local last, total, first, len, cap, word, newest, known = unpack(HEAD, value)
  if len > cap or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  if small and #value ~= HEAD_BYTES + cap * 4 then return nil end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local word_at = reader(key, value, first, cap)

  -- The words before `gone` are those of what has left, and then of what is taken off.
  local gone, units, left = 0, 0, nil
  local oldest_age = last + window - tick
  if oldest_age < 0 or cost == 0 then return true end
  if oldest_age > last + 1 then oldest_age = last + 1 end
  while gone < len and (last + 1 - word) % WRAP > oldest_age do
    if word < WRAP then
      gone, total = gone + 1, total - 1
    else
      gone, total = gone + 2, total - word_at(gone + 1) % WRAP
    end
    if gone < len then word = word_at(gone) end
  end
  if gone >= len then return true end
  while gone < len and cost > 0 do
    units = word < WRAP and 1 or word_at(gone + 1) % WRAP
    if units > cost then
      left, total, cost = units - cost, total - cost, 0
    else
      gone, total, cost = gone + (word < WRAP and 1 or 2), total - units, cost - units
      if gone < len then word = word_at(gone) end
    end
  end
  -- Of a charge that is taken off in part, the word that changes, and where.
  local changed
  if left == 1 then
    word = word % WRAP
    gone, changed = gone + 1, pack('<I4', word)
    if gone == len - 1 then newest = word end
  elseif left then
    changed = pack('<I4', left + WRAP)
  end
  local changed_at = gone + (left == 1 and 0 or 1)
  len = len - gone

  if small then
    local words = {}
    for nth = 0, len - 1 do
      words[nth + 1] = pack('<I4', word_at(gone + nth))
    end
    if changed then words[changed_at - gone + 1] = changed end
    value = pack(HEAD, tick, total, 0, len, len, word, newest, known) .. table.concat(words)
    call('SET', key, value, 'KEEPTTL')
    return true
  end
  if changed then
    call('SETRANGE', key, HEAD_BYTES + (first + changed_at) % cap * 4, changed)
  end
  first = (first + gone) % cap
  call('SETRANGE', key, '0', pack(HEAD, tick, total, first, len, cap, word, newest, known))
  return true
end
