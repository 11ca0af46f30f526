-- Twin of algorithm/sliding_log.rs: every charge in the window, in a ring of 32-bit words, oldest first. A word
-- holds the tick of a charge modulo 2^31; a charge of more than one unit takes a second word for its cost,
-- and both have their top bit set.
--
-- A value is a head of 40 bytes and the ring. A small one is read and written as a whole: it has no room to
-- spare, and begins with its oldest word. Of a large one only the head is read, the words that are asked
-- for, and the words that are new are written.
local HEAD, HEAD_BYTES = '<ddI4I4I4I4I4I4', 40
local WRAP, SMALL = 2147483648, 32

-- Reads the nth word of a log, the oldest first: from its value, or 64 at a time from Redis.
local function reader(key, value, first, cap)
  local chunk, from = value, 0
  return function(nth)
    local at = (first + nth) % cap * 4 + HEAD_BYTES
    if at < from or at + 4 > from + #chunk then
      chunk, from = call('GETRANGE', key, at, at + 255), at
    end
    return unpack('<I4', chunk, at - from + 1)
  end
end

local function decide(key, now, tick_us, window, max, _, keep, cost, take)
  local small = max <= SMALL
  local value, last, total, first, len, cap, oldest, newest, known, word_at
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '39') end
  if value == '' then
    last, total, first, len, cap, oldest, newest, known = 0, 0, 0, 0, 0, 0, 0, 0
  elseif #value < HEAD_BYTES then
    return nil
  else
    last, total, first, len, cap, oldest, newest, known = unpack(HEAD, value)
    if len > cap or (small and #value ~= HEAD_BYTES + cap * 4) then return nil end
  end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end

  -- What has left: the words before `gone`, and their units. A word's age is how many ticks before
  -- `last + 1` its charge was made.
  local gone, word, used = 0, oldest, total
  local oldest_age = last + window - tick
  if oldest_age > last + 1 then oldest_age = last + 1 end
  if oldest_age < 0 then
    gone, used = len, 0
  elseif len > 0 and (last + 1 - word) % WRAP > oldest_age then
    word_at = reader(key, value, first, cap)
    repeat
      if word < WRAP then
        gone, used = gone + 1, used - 1
      else
        gone, used = gone + 2, used - word_at(gone + 1) % WRAP
      end
      if gone >= len then break end
      word = word_at(gone)
    until (last + 1 - word) % WRAP <= oldest_age
  end

  local remaining = max - used
  if remaining < 0 then remaining = 0 end
  local wanted = cost > 0 and cost or 1
  local fits = wanted <= remaining
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if len > 0 then
      local late = last + 1 - (last + 1 - newest) % WRAP
      if late < 0 then late = 0 end
      reset = (late + window) * tick_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if wanted > max then return false, remaining, reset, -1, 0 end
    -- The oldest charges leave one by one, until what is left makes room.
    local excess, nth = used + wanted - max, gone
    if excess > 1 or word >= WRAP then word_at = word_at or reader(key, value, first, cap) end
    while true do
      if word < WRAP then
        nth, excess = nth + 1, excess - 1
      else
        nth, excess = nth + 2, excess - word_at(nth + 1) % WRAP
      end
      if excess <= 0 then break end
      word = word_at(nth)
    end
    local leaves = last + 1 - (last + 1 - word) % WRAP
    if leaves < 0 then leaves = 0 end
    return false, remaining, reset, (leaves + window) * tick_us - now, 0
  end

  -- A charge is entered at its tick rounded up, and never before the newest.
  local at, kept = tick, len - gone
  if tick_us > 1 and tick * tick_us ~= now then at = tick + 1 end
  if cost > MOST_UNITS then cost = MOST_UNITS end
  if kept > 0 then
    local late = tick + 1 - (tick + 1 - newest) % WRAP
    if late > at then at = late end
    if at == late or kept >= 2 * (max + 32) then
      -- The newest charge is taken out, and goes back in with what is added to it.
      local merged = 1
      if newest >= WRAP then
        word_at = word_at or reader(key, value, first, cap)
        merged, kept = word_at(len - 1) % WRAP, kept - 1
      end
      used, kept = used - merged, kept - 1
      cost = cost + merged
      if cost > MOST_UNITS then cost = MOST_UNITS end
    end
  end
  newest = at % WRAP
  local pushed
  if cost == 1 then
    pushed = pack('<I4', newest)
  else
    newest = newest + WRAP
    pushed = pack('<I4I4', newest, cost + WRAP)
  end
  if kept == 0 then word = newest end
  total, len = used + cost, kept + #pushed / 4
  remaining = max - total
  if remaining < 0 then remaining = 0 end
  local reset = (at + window) * tick_us - now
  local ms
  if now + reset > known * SECOND then known, ms = lasts(now, reset, tick_us * window, keep) end

  if small or len > cap or (cap > 128 and len * 4 < cap) then
    -- As a whole, the oldest word first.
    if not small then value = call('GETRANGE', key, 0, -1) end
    local from, words = first + gone, nil
    if from >= cap then from = from - cap end
    if from + kept <= cap then
      words = value:sub(HEAD_BYTES + from * 4 + 1, HEAD_BYTES + (from + kept) * 4)
    else
      words = value:sub(HEAD_BYTES + from * 4 + 1)
        .. value:sub(HEAD_BYTES + 1, HEAD_BYTES + (from + kept - cap) * 4)
    end
    if small then
      cap = len
      value = pack(HEAD, tick, total, 0, len, cap, word, newest, known) .. words .. pushed
    else
      cap = len + len / 8 + 16
      cap = cap - cap % 1
      value = pack(HEAD, tick, total, 0, len, cap, word, newest, known)
        .. words .. pushed .. ('\0'):rep((cap - len) * 4)
    end
    if ms then call('SET', key, value, 'PX', ms) else call('SET', key, value, 'KEEPTTL') end
  else
    first = (first + gone) % cap
    call('SETRANGE', key, '0', pack(HEAD, tick, total, first, len, cap, word, newest, known))
    local place = (first + kept) % cap
    if place + #pushed / 4 <= cap then
      call('SETRANGE', key, HEAD_BYTES + place * 4, pushed)
    else
      call('SETRANGE', key, HEAD_BYTES + place * 4, pushed:sub(1, 4))
      call('SETRANGE', key, HEAD_BYTES, pushed:sub(5))
    end
    if ms then call('PEXPIRE', key, ms) end
  end
  return true, remaining, reset, 0, at * tick_us
end
