local function refund(key, now, tick_us, window, max, _, cost)
  local value, find_tick, units_before, find_units, word_at, last, total, sum, first, len, cap, word, newest, expiry_s =
    open_log(key, max)
  if not value or value == '' then return value end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end
  local oldest_age = last + window - tick
  if oldest_age < 0 or cost == 0 or len == 0 then return true end
  if oldest_age > last + 1 then oldest_age = last + 1 end

  -- Drops the words of expired charges, and then the words of refunded charges.
  local dropped_words, used = 0, total
  if (last + 1 - word) % WRAP > oldest_age then
    dropped_words, word = find_tick(1, oldest_age)
    if dropped_words == len then return true end
    used = total - units_before(dropped_words)
  end
  -- The word that changes because a charge is refunded in part, and its index.
  local changed, changed_at
  if cost >= used then
    dropped_words, used = len, 0
  else
    local nth, before
    nth, word, before = find_units(total - used + cost)
    local next_word = nth + 1 < len and word_at(nth + 1) or 0
    local units = next_word < WRAP and 1 or next_word - WRAP
    local remaining_units = before + units - (total - used + cost)
    if remaining_units == 0 then
      dropped_words = nth + (units == 1 and 1 or 2)
      word = word_at(dropped_words)
    elseif remaining_units == 1 then
      dropped_words, changed, changed_at = nth + 1, pack('<I4', word), nth + 1
      if dropped_words == len - 1 then newest = word end
    else
      dropped_words, changed, changed_at = nth, pack('<I4', remaining_units + WRAP), nth + 1
    end
    used = used - cost
  end
  if changed then
    call('SETRANGE', key, HEAD_BYTES + (first + changed_at) % cap * 4, changed)
  end
  first = (first + dropped_words) % cap
  call('SETRANGE', key, '0', pack(HEAD, tick, used, sum, first, len - dropped_words, cap, word, newest, expiry_s))
  return true
end
