-- Twin of algorithm/sliding_log.rs: every charge in the window, in a ring of 32-bit words, oldest first. A charge
-- takes a word for its tick modulo 2^31; if it has more than one unit, a second word follows with its cost and the
-- top bit set.
--
-- A value is a head of 48 bytes and the ring. Where max is small, the value is read and written as a whole, without
-- spare capacity. Where it is large, only the head and the words that are needed are read, and only new words are
-- written.
--
-- No call scans a long log, since a client can repeat a denied call as often as it likes. Ticks ascend, so they are
-- found by binary search. For sums, a ring of more than 160 words is followed by marks, one for each block of 64
-- words: the running sum of units, modulo 2^52, of all charges that begin before the block. The head has the running
-- sum at the end. A mark stays valid while older charges leave and while blocks are copied into a larger ring.
--
-- Redis creates the functions at each call, at a cost that grows with the variables that they share. So `opened`
-- nests the rarely needed ones, and constants are repeated.
local HEAD, HEAD_BYTES = '<dddI4I4I4I4I4I4', 48
local WRAP, SMALL = 2147483648, 32

-- Returns a function that returns the nth word of a log, the oldest first: from its value, or 66 at a time from
-- Redis.
local function reader(key, value, first, cap)
  local chunk, from = value, 0
  return function(nth)
    local at = (first + nth) % cap * 4 + HEAD_BYTES
    if at < from or at + 4 > from + #chunk then
      chunk, from = call('GETRANGE', key, at, at + 263), at
    end
    return unpack('<I4', chunk, at - from + 1)
  end
end

-- Reads a log. Returns its value (only the head, if max is large), functions that find charges in a log of any length,
-- and the fields of the head. The first result is nil for a foreign value, and '' if there is none.
local function opened(key, max)
  local HEAD_BYTES, WRAP, BLOCK = 48, 2147483648, 64
  local small, value = max <= SMALL, nil
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '47') end
  if value == '' then return value end
  if #value < HEAD_BYTES then return nil end
  local last, total, sum, first, len, cap, oldest, newest, known = unpack(HEAD, value)
  -- The same checks as in `decide`.
  if len > cap or cap > 4194304 or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  if sum < 0 or sum > 2 ^ 52 or sum % 1 ~= 0 or (cap > 160 and cap % 64 > 0) then return nil end
  if small and #value ~= HEAD_BYTES + cap * 4 + (cap > 160 and cap / 8 or 0) then return nil end
  local word_at, phase, is_marked = reader(key, value, first, cap), first % BLOCK, cap > 160

  -- Returns where the oldest charge begins that was made at most `age` ticks before `last + 1`, and its tick; `len`
  -- if all charges are older. The words before `low`, which is at least 1, are of older charges.
  local function find_tick(low, age)
    if (last + 1 - newest) % WRAP > age then return len, newest end
    local high = len - (newest < WRAP and 1 or 2)
    while low < high do
      local middle = (low + high) / 2
      middle = middle - middle % 1
      -- The word before is needed if this one is a cost. When the search is down to one chunk, that chunk is read.
      word_at(high - low < 64 and low - 1 or middle - 1)
      local at, word = middle, word_at(middle)
      if word >= WRAP then at, word = middle - 1, word_at(middle - 1) end
      if (last + 1 - word) % WRAP > age then low = middle + 1 else high = at end
    end
    return high, word_at(high)
  end

  -- Returns the words from `from` up to before `to`.
  local function words(from, to)
    local place, count = (first + from) % cap, to - from
    local wrapped = place + count > cap and place + count - cap or 0
    local function bytes(at, n)
      at, n = HEAD_BYTES + at * 4, n * 4
      return #value > HEAD_BYTES and value:sub(at + 1, at + n) or call('GETRANGE', key, at, at + n - 1)
    end
    local both = bytes(place, count - wrapped)
    if wrapped > 0 then both = both .. bytes(0, wrapped) end
    local all = { unpack('<' .. ('I4'):rep(count), both) }
    -- The last result of `unpack` is a position.
    all[count + 1] = nil
    return all
  end

  -- Returns the units of all charges that begin before the nth block. The log begins in block 0.
  local chunk, chunk_from = '', 0
  local function mark(nth)
    if nth == 0 then return 0 end
    local at = HEAD_BYTES + cap * 4 + ((first - phase) / BLOCK + nth) % (cap / BLOCK) * 8
    if at < chunk_from or at + 8 > chunk_from + #chunk then
      chunk, chunk_from = call('GETRANGE', key, at, at + 255), at
    end
    return (unpack('<d', chunk, at - chunk_from + 1) - sum + total) % 2 ^ 52
  end

  -- Returns the units of all charges before the one that begins with the nth word.
  local function units_before(nth)
    -- Each charge has as many units as words.
    if total == len then return nth end
    local from, units = 0, 0
    if is_marked and phase + nth >= BLOCK then
      from = nth - (phase + nth) % BLOCK
      units = mark((phase + from) / BLOCK)
    end
    if from == nth then return units end
    for at, word in ipairs(words(from, nth)) do
      -- If a block begins with a cost, its mark includes it.
      if word < WRAP then
        units = units + 1
      elseif at > 1 then
        units = units + word - WRAP - 1
      end
    end
    return units
  end

  -- Returns where the charge begins with which at least `wanted` units have left, oldest first, its tick, and the
  -- units before it.
  local function find_units(wanted)
    if total == len then
      local nth, word = wanted - 1, word_at(wanted - 1)
      if word >= WRAP then nth, word = nth - 1, word_at(nth - 1) end
      return nth, word, nth
    end
    local from, units, to = 0, 0, len
    if is_marked then
      local low, high = 0, (phase + len - 1) / BLOCK
      high = high - high % 1
      while low < high do
        local middle = (low + high + 1) / 2
        middle = middle - middle % 1
        -- When the search is down to one chunk, that chunk is read.
        if high - low < 32 then mark(low > 0 and low or 1) end
        if mark(middle) < wanted then low = middle else high = middle - 1 end
      end
      if low > 0 then from, units = low * BLOCK - phase, mark(low) end
      if to > from + BLOCK then to = from + BLOCK end
    end
    local nth, tick, before = from, newest % WRAP, units
    for at, word in ipairs(words(from, to)) do
      if word < WRAP then
        nth, tick, before, units = from + at - 1, word, units, units + 1
      elseif at > 1 then
        units = units + word - WRAP - 1
      end
      if units >= wanted then break end
    end
    return nth, tick, before
  end

  return value, find_tick, units_before, find_units, word_at,
    last, total, sum, first, len, cap, oldest, newest, known
end

local function decide(key, now, tick_us, window, max, _, keep, required, cost, take)
  local small = max <= SMALL
  local value, last, total, sum, first, len, cap, oldest, newest, known, word_at
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '47') end
  if value == '' then
    last, total, sum, first, len, cap, oldest, newest, known = 0, 0, 0, 0, 0, 0, 0, 0, 0
  elseif #value < HEAD_BYTES then
    return nil
  else
    last, total, sum, first, len, cap, oldest, newest, known = unpack(HEAD, value)
    -- A foreign value that is taken for a log could occupy Redis for long. No log needs 2^22 words: its max is
    -- 1,000,000 at most, and debts are merged when it has twice as many words.
    if len > cap or cap > 4194304 or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
    if sum < 0 or sum > 2 ^ 52 or sum % 1 ~= 0 or (cap > 160 and cap % 64 > 0) then return nil end
    if small and #value ~= HEAD_BYTES + cap * 4 + (cap > 160 and cap / 8 or 0) then return nil end
  end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then tick = last end

  -- What has left: the words before `gone`, and their units. A word's age is how many ticks before
  -- `last + 1` its charge was made. Where calls follow each other, few charges leave from one to the next.
  local FEW = 16
  local gone, word, used = 0, oldest, total
  local oldest_age = last + window - tick
  if oldest_age > last + 1 then oldest_age = last + 1 end
  if oldest_age < 0 then
    gone, used = len, 0
  elseif len > 0 and (last + 1 - word) % WRAP > oldest_age then
    word_at = reader(key, value, first, cap)
    repeat
      gone, used = gone + 1, used - (word < WRAP and 1 or word - WRAP - 1)
      if gone >= len then break end
      if gone == FEW then
        local _, find_tick, units_before = opened(key, max)
        gone, word = find_tick(gone, oldest_age)
        used = gone < len and total - units_before(gone) or 0
        break
      end
      word = word_at(gone)
    until word < WRAP and (last + 1 - word) % WRAP <= oldest_age
  end

  local remaining = max - used
  if remaining < 0 then remaining = 0 end
  local fits = used + required <= max
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if len > 0 then
      local late = last + 1 - (last + 1 - newest) % WRAP
      if late < 0 then late = 0 end
      reset = (late + window) * tick_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The oldest charges leave one by one, until enough units are free.
    local excess, nth, units = used + required - max, gone + 1, 1
    if excess > 1 then word_at = word_at or reader(key, value, first, cap) end
    while units < excess do
      if (total == len and excess > FEW) or nth >= gone + FEW or nth >= len then
        local _, _, _, find_units = opened(key, max)
        _, word = find_units(total + required - max)
        break
      end
      local next_word = word_at(nth)
      if next_word < WRAP then word, units = next_word, units + 1 else units = units + next_word - WRAP - 1 end
      nth = nth + 1
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
      used, sum, kept = used - merged, (sum - merged) % 2 ^ 52, kept - 1
      cost = cost + merged
      if cost > MOST_UNITS then cost = MOST_UNITS end
    end
  end
  newest = at % WRAP
  if kept == 0 then word = newest end
  local pushed
  if cost == 1 then
    pushed = pack('<I4', newest)
  else
    pushed = pack('<I4I4', newest, cost + WRAP)
    newest = newest + WRAP
  end
  local sum_before = sum
  total, sum, len = used + cost, (sum + cost) % 2 ^ 52, kept + #pushed / 4
  remaining = max - total
  if remaining < 0 then remaining = 0 end
  local reset = (at + window) * tick_us - now
  local ms
  if now + reset > known * SECOND then known, ms = lasts(now, reset, tick_us * window, keep) end

  if small or len > cap or (cap > 128 and len * 4 < cap) then
    -- As a whole, the oldest word first.
    if not small then value = call('GETRANGE', key, 0, -1) end
    local from = first + gone
    if from >= cap then from = from - cap end
    if not small or len > 160 then
      local function slice(base, place, count, size, width)
        local start = base + place * width
        if place + count <= size then return value:sub(start + 1, start + count * width) end
        return value:sub(start + 1, base + size * width) .. value:sub(base + 1, base + (place + count - size) * width)
      end
      -- Into a ring with spare capacity, each word to the same place in a block, so that the marks stay valid.
      local old_cap, skipped, marks = cap, 0, ''
      cap = len + len / 8
      if cap <= 112 then
        cap = cap + 16 - cap % 1
      else
        if cap > 128 and old_cap > 160 then skipped = from % 64 end
        cap = skipped + cap
        cap = cap + -cap % 64
      end
      local place, running = skipped + kept, sum_before - used
      local words = slice(HEAD_BYTES, from - skipped, place, old_cap, 4)
      if cap > 160 and old_cap > 160 then
        marks = slice(HEAD_BYTES + old_cap * 4, (from - skipped) / 64, (place + -place % 64) / 64, old_cap / 64, 8)
      elseif cap > 160 then
        for nth = 0, kept - 1 do
          local next_word = unpack('<I4', words, nth * 4 + 1)
          if next_word >= WRAP then running = running + next_word - WRAP - 1 end
          if nth % 64 == 0 then marks = marks .. pack('<d', running % 2 ^ 52) end
          if next_word < WRAP then running = running + 1 end
        end
      end
      if cap > 160 then
        if place % 64 == 0 then
          marks = marks .. pack('<d', sum_before)
        elseif place % 64 == 63 and #pushed == 8 then
          marks = marks .. pack('<d', sum)
        end
        marks = marks .. ('\0'):rep(cap / 8 - #marks)
      end
      value = pack(HEAD, tick, total, sum, skipped, len, cap, word, newest, known)
        .. words .. pushed .. ('\0'):rep((cap - skipped - len) * 4) .. marks
    else
      local words
      if from + kept <= cap then
        words = value:sub(HEAD_BYTES + from * 4 + 1, HEAD_BYTES + (from + kept) * 4)
      else
        words = value:sub(HEAD_BYTES + from * 4 + 1, HEAD_BYTES + cap * 4)
          .. value:sub(HEAD_BYTES + 1, HEAD_BYTES + (from + kept - cap) * 4)
      end
      value = pack(HEAD, tick, total, sum, 0, len, len, word, newest, known) .. words .. pushed
    end
    if ms then call('SET', key, value, 'PX', ms) else call('SET', key, value, 'KEEPTTL') end
  else
    first = (first + gone) % cap
    call('SETRANGE', key, '0', pack(HEAD, tick, total, sum, first, len, cap, word, newest, known))
    local place = (first + kept) % cap
    if place + #pushed / 4 <= cap then
      call('SETRANGE', key, HEAD_BYTES + place * 4, pushed)
    else
      call('SETRANGE', key, HEAD_BYTES + place * 4, pushed:sub(1, 4))
      call('SETRANGE', key, HEAD_BYTES, pushed:sub(5))
    end
    local into = place % 64
    if cap > 160 and (into == 0 or (into == 63 and #pushed == 8)) then
      local block = (place + 63) % cap
      block = (block - block % 64) / 64
      call('SETRANGE', key, HEAD_BYTES + cap * 4 + block * 8, pack('<d', into == 0 and sum_before or sum))
    end
    if ms then call('PEXPIRE', key, ms) end
  end
  return true, remaining, reset, fits and 0 or 1, at * tick_us
end
