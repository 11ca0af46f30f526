-- Twin of algorithm/sliding_log.rs: every charge in the window, in a ring of 32-bit words, oldest first. A charge
-- takes a word for its tick modulo 2^31; if it has more than one unit, a second word follows with its cost and the
-- top bit set.
--
-- A value is a head of 48 bytes and the ring. Where max is small, the value is read and written as a whole, without
-- spare capacity. Where it is large, only the head and the words that are needed are read, and only new words are
-- written.
--
-- No call scans a long log, since a client can repeat a denied call as often as it likes. Ticks ascend, so they are
-- found by binary search. For sums, a ring of more than UNMARKED words is followed by marks, one for each block of 64
-- words: the running sum of units, modulo 2^52, of all charges that begin before the block. The head has the running
-- sum at the end. A mark stays valid while older charges leave and while blocks are copied into a larger ring.
local HEAD, HEAD_BYTES = '<dddI4I4I4I4I4I4', 48
local WRAP, SUM_WRAP, SMALL, FEW, UNMARKED, BLOCK, MARK_BYTES =
  2147483648, 4503599627370496, 32, 32, 160, 64, 8
-- More than a log can have: its max is 1,000,000 at most, and debts are merged when it has twice as many words.
local MOST_WORDS = 4194304

-- Reads the value if max is small, else its head. The first result is nil if the value is not a log, and '' if
-- there is none.
local function read(key, max)
  local small, value = max <= SMALL, nil
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '47') end
  if value == '' then return value, 0, 0, 0, 0, 0, 0, 0, 0, 0 end
  if #value < HEAD_BYTES then return nil end
  local last, total, sum, first, len, cap, oldest, newest, known = unpack(HEAD, value)
  -- A foreign value that is taken for a log could occupy Redis for long.
  if len > cap or cap > MOST_WORDS or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  if sum < 0 or sum > SUM_WRAP or sum % 1 ~= 0 or (cap > UNMARKED and cap % BLOCK > 0) then return nil end
  if small then
    local marks = cap > UNMARKED and cap / BLOCK or 0
    if #value ~= HEAD_BYTES + cap * 4 + marks * MARK_BYTES then return nil end
  end
  return value, last, total, sum, first, len, cap, oldest, newest, known
end

-- Returns a function that returns the nth item of a ring of words or marks, counted from `first`. It reads the item
-- from `value` or, with those behind it, from Redis.
local function reader(key, value, base, first, cap, format, width)
  local chunk, from = value, 0
  return function(nth)
    local at = base + (first + nth) % cap * width
    if at < from or at + width > from + #chunk then
      chunk, from = call('GETRANGE', key, at, at + 263), at
    end
    return unpack(format, chunk, at - from + 1)
  end
end

-- Returns where the oldest charge begins that was made at most `age` ticks before `last + 1`, and its tick. All
-- words before `low`, which is at least 1, are of older charges. If all charges are older, returns `len`.
local function find_tick(word_at, low, len, newest, last, age)
  if (last + 1 - newest) % WRAP > age then return len, newest end
  local high = len - (newest < WRAP and 1 or 2)
  while low < high do
    local middle = (low + high) / 2
    middle = middle - middle % 1
    -- The word before is needed if this one is a cost. When the search is down to one chunk, that chunk is read.
    word_at(high - low < BLOCK and low - 1 or middle - 1)
    local at, word = middle, word_at(middle)
    if word >= WRAP then at, word = middle - 1, word_at(middle - 1) end
    if (last + 1 - word) % WRAP > age then low = middle + 1 else high = at end
  end
  return high, word_at(high)
end

-- Returns a function that returns how many units the charges have that begin before the nth block, without those
-- that have left the log. Block 0 is the one in which the log begins.
local function mark_reader(key, value, total, sum, first, cap)
  local mark_at = reader(key, value, HEAD_BYTES + cap * 4, (first - first % BLOCK) / BLOCK, cap / BLOCK, '<d', MARK_BYTES)
  return function(nth) return nth == 0 and 0 or (mark_at(nth) - sum + total) % SUM_WRAP end
end

-- Returns how many units the charges before the nth word have, with which a charge begins.
local function units_before(nth, key, value, word_at, total, sum, first, len, cap)
  -- Each charge has as many units as words.
  if total == len then return nth end
  local from, units = 0, 0
  if cap > UNMARKED and first % BLOCK + nth >= BLOCK then
    from = nth - (first + nth) % BLOCK
    units = mark_reader(key, value, total, sum, first, cap)((first % BLOCK + from) / BLOCK)
  end
  for at = from, nth - 1 do
    local word = word_at(at)
    if word < WRAP then
      units = units + 1
    elseif at > from then
      units = units + word - WRAP - 1
    end
  end
  return units
end

-- Returns where the charge begins with which at least `wanted` units have left, oldest first, and the units before it.
local function find_units(wanted, key, value, word_at, total, sum, first, len, cap)
  if total == len then
    local nth = wanted - 1
    if word_at(nth) >= WRAP then nth = nth - 1 end
    return nth, nth
  end
  local from, units, last = 0, 0, len - 1
  if cap > UNMARKED then
    local units_at = mark_reader(key, value, total, sum, first, cap)
    local low, high = 0, (first % BLOCK + last) / BLOCK
    high = high - high % 1
    while low < high do
      local middle = (low + high + 1) / 2
      middle = middle - middle % 1
      -- When the search is down to one chunk, that chunk is read.
      if high - low < 32 then units_at(low > 0 and low or 1) end
      if units_at(middle) < wanted then low = middle else high = middle - 1 end
    end
    if low > 0 then from, units = low * BLOCK - first % BLOCK, units_at(low) end
    if last > from + BLOCK then last = from + BLOCK end
  end
  -- If a block begins with a cost, its mark includes it.
  local nth, before = from, units
  for at = from, last do
    local word = word_at(at)
    if word < WRAP then
      nth, before, units = at, units, units + 1
    elseif at > from then
      units = units + word - WRAP - 1
    end
    if units >= wanted then break end
  end
  return nth, before
end

-- Returns the part of a ring that begins with item `first`, as bytes.
local function slice(value, base, first, count, cap, width)
  local begin = base + first * width
  if first + count <= cap then return value:sub(begin + 1, begin + count * width) end
  return value:sub(begin + 1, base + cap * width) .. value:sub(base + 1, base + (first + count - cap) * width)
end

-- Returns marks for a log that begins with its first block, and whose `words` have `units` units, up to `sum`.
local function marks_of(words, sum, units)
  local marks, running = {}, sum - units
  for at = 0, #words / 4 - 1 do
    local word = unpack('<I4', words, at * 4 + 1)
    if word >= WRAP then running = running + word - WRAP - 1 end
    if at % BLOCK == 0 then marks[#marks + 1] = pack('<d', running % SUM_WRAP) end
    if word < WRAP then running = running + 1 end
  end
  return table.concat(marks)
end

local function decide(key, now, tick_us, window, max, _, keep, cost, take)
  local value, last, total, sum, first, len, cap, oldest, newest, known = read(key, max)
  if not value then return nil end
  local tick, word_at = now / tick_us, nil
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
    word_at = reader(key, value, HEAD_BYTES, first, cap, '<I4', 4)
    -- Where calls follow each other, few charges leave from one to the next.
    repeat
      gone, used = gone + 1, used - (word < WRAP and 1 or word - WRAP - 1)
      if gone >= len then break end
      if gone == FEW then
        gone, word = find_tick(word_at, gone, len, newest, last, oldest_age)
        used = gone < len and total - units_before(gone, key, value, word_at, total, sum, first, len, cap) or 0
        break
      end
      word = word_at(gone)
    until word < WRAP and (last + 1 - word) % WRAP <= oldest_age
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
    -- The oldest charges leave one by one, until enough have for the cost to fit.
    if used + wanted - max > 1 then
      word_at = word_at or reader(key, value, HEAD_BYTES, first, cap, '<I4', 4)
      word = word_at(find_units(total + wanted - max, key, value, word_at, total, sum, first, len, cap))
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
        word_at = word_at or reader(key, value, HEAD_BYTES, first, cap, '<I4', 4)
        merged, kept = word_at(len - 1) % WRAP, kept - 1
      end
      used, sum, kept = used - merged, (sum - merged) % SUM_WRAP, kept - 1
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
  total, sum, len = used + cost, (sum + cost) % SUM_WRAP, kept + #pushed / 4
  remaining = max - total
  if remaining < 0 then remaining = 0 end
  local reset = (at + window) * tick_us - now
  local ms
  if now + reset > known * SECOND then known, ms = lasts(now, reset, tick_us * window, keep) end

  local small = max <= SMALL
  if small or len > cap or (cap > 128 and len * 4 < cap) then
    -- As a whole, the oldest word first.
    if not small then value = call('GETRANGE', key, 0, -1) end
    local from, old_cap = first + gone, cap
    if from >= cap then from = from - cap end
    if small and len <= UNMARKED then
      cap = len
      value = pack(HEAD, tick, total, sum, 0, len, cap, word, newest, known)
        .. slice(value, HEAD_BYTES, from, kept, old_cap, 4) .. pushed
    else
      -- In a ring with spare capacity. The words keep their places in their blocks, so that the marks stay valid.
      local marks, skipped = '', 0
      cap = len + len / 8
      if cap <= 112 then
        cap = cap + 16 - cap % 1
      else
        if cap > 128 and old_cap > UNMARKED then skipped = from % BLOCK end
        cap = skipped + cap
        cap = cap + -cap % BLOCK
      end
      local words = slice(value, HEAD_BYTES, from - skipped, skipped + kept, old_cap, 4)
      if cap > UNMARKED then
        local place, blocks = skipped + kept, (skipped + kept + -(skipped + kept) % BLOCK) / BLOCK
        if old_cap > UNMARKED then
          marks = slice(value, HEAD_BYTES + old_cap * 4, (from - skipped) / BLOCK, blocks, old_cap / BLOCK, MARK_BYTES)
        else
          marks = marks_of(words, sum_before, used)
        end
        if place % BLOCK == 0 then
          marks = marks .. pack('<d', sum_before)
        elseif place % BLOCK == BLOCK - 1 and #pushed == 8 then
          marks = marks .. pack('<d', sum)
        end
        marks = marks .. ('\0'):rep(cap / BLOCK * MARK_BYTES - #marks)
      end
      value = pack(HEAD, tick, total, sum, skipped, len, cap, word, newest, known)
        .. words .. pushed .. ('\0'):rep((cap - skipped - len) * 4) .. marks
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
    if cap > UNMARKED and (place % BLOCK == 0 or (place % BLOCK == BLOCK - 1 and #pushed == 8)) then
      local mark = place % BLOCK == 0 and sum_before or sum
      local block = (place + BLOCK - 1) % cap
      block = (block - block % BLOCK) / BLOCK
      call('SETRANGE', key, HEAD_BYTES + cap * 4 + block * MARK_BYTES, pack('<d', mark))
    end
    if ms then call('PEXPIRE', key, ms) end
  end
  return true, remaining, reset, 0, at * tick_us
end
