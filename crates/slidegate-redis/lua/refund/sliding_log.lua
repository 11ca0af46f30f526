local function refund(key, now, tick_us, window, max, _, cost)
  local value, find_tick, units_before, find_units, word_at, last, total, sum, first, len, cap, word, newest, known =
    opened(key, max)
  if not value or value == '' then return value end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local oldest_age = last + window - tick
  if oldest_age < 0 or cost == 0 or len == 0 then return true end
  if oldest_age > last + 1 then oldest_age = last + 1 end

  -- The words before `gone` are those of what has left, and then of what is taken off.
  local gone, used = 0, total
  if (last + 1 - word) % WRAP > oldest_age then
    gone, word = find_tick(1, oldest_age)
    if gone == len then return true end
    used = total - units_before(gone)
  end
  -- Of a charge that is taken off in part, the word that changes, and where.
  local changed, changed_at
  if cost >= used then
    gone, used = len, 0
  else
    local nth, before
    nth, word, before = find_units(total - used + cost)
    local next_word = nth + 1 < len and word_at(nth + 1) or 0
    local units = next_word < WRAP and 1 or next_word - WRAP
    local left = before + units - (total - used + cost)
    if left == 0 then
      gone = nth + (units == 1 and 1 or 2)
      word = word_at(gone)
    elseif left == 1 then
      gone, changed, changed_at = nth + 1, pack('<I4', word), nth + 1
      if gone == len - 1 then newest = word end
    else
      gone, changed, changed_at = nth, pack('<I4', left + WRAP), nth + 1
    end
    used = used - cost
  end
  if changed then
    call('SETRANGE', key, HEAD_BYTES + (first + changed_at) % cap * 4, changed)
  end
  first = (first + gone) % cap
  call('SETRANGE', key, '0', pack(HEAD, tick, used, sum, first, len - gone, cap, word, newest, known))
  return true
end
