local function give_back(key, tick_us, max, _, cost, at)
  local value = call('GET', key)
  if not value then return true end
  if #value < HEAD_BYTES then return nil end
  local last, total, first, len, cap, oldest, newest, known = unpack(HEAD, value)
  if len > cap or #value ~= HEAD_BYTES + cap * 4 then return nil end
  local word_at = reader(key, value, first, cap)
  local tick = at / tick_us
  tick = tick - tick % 1

  -- The words of other charges, and of this one what is left.
  local words, found = {}, false
  local nth = 0
  while nth < len do
    local word, units = word_at(nth), 1
    nth = nth + 1
    if word >= WRAP then
      units = word_at(nth) % WRAP
      nth = nth + 1
    end
    local late = last + 1 - (last + 1 - word) % WRAP
    if late == tick or (late < 0 and tick == 0) then
      found = true
      if cost > units then cost = units end
      units, total = units - cost, total - cost
    end
    if units > 0 then
      newest = units == 1 and word % WRAP or word % WRAP + WRAP
      words[#words + 1] = units == 1 and pack('<I4', newest) or pack('<I4I4', newest, units + WRAP)
    end
  end
  if not found then return true end
  words = table.concat(words)
  len = #words / 4
  if len > 0 then oldest = unpack('<I4', words) end
  if max <= SMALL then cap = len end
  value = pack(HEAD, last, total, 0, len, cap, oldest, newest, known) .. words .. ('\0'):rep((cap - len) * 4)
  call('SET', key, value, 'KEEPTTL')
  return true
end
