-- The algorithm of algorithm/sliding_log.rs: every charge in the window, in a ring of 32-bit words, oldest first. A
-- charge takes a word for its tick modulo 2^31; if it has more than one unit, a second word follows with its cost and
-- the top bit set.
--
-- A value is a head of 48 bytes and the ring. If max is small, the value is read and written as a whole, without spare
-- capacity. If max is large, only the head and the required words are read, and only new words are written.
--
-- No call scans a long log, because a client can repeat a denied call without limit. Ticks ascend, so they are found
-- by binary search. For sums, a ring of more than 160 words is followed by marks, one for each block of 64
-- words: the running sum of units, modulo 2^52, of all charges that begin before the block. The head has the running
-- sum at the end. A mark stays valid while older charges leave and while blocks are copied into a larger ring.
--
-- Redis creates all functions at each call, at a cost that grows with the variables that they share. So `open_log`
-- contains the rarely used functions, and constants are repeated.
local HEAD, HEAD_BYTES = '<dddI4I4I4I4I4I4', 48
local WRAP = 2147483648

-- Returns a function that returns the nth word of a log, the oldest first. It reads from `value`, or 66 words at a time
-- from Redis.
local function word_reader(key, value, first, cap)
  local HEAD_BYTES, call, unpack = 48, redis.call, struct.unpack
  local chunk, from = value, 0
  return function(nth)
    local at = (first + nth) % cap * 4 + HEAD_BYTES
    if at < from or at + 4 > from + #chunk then
      -- Redis formats a double slowly.
      chunk, from = call('GETRANGE', key, ('%d'):format(at), ('%d'):format(at + 263)), at
    end
    return unpack('<I4', chunk, at - from + 1)
  end
end

-- Reads a log. Returns its value (only the head, if max is large), functions that find charges in a log of any length,
-- and the fields of the head. The first result is nil for a foreign value, and '' if the key does not exist.
local function open_log(key, max)
  local HEAD, HEAD_BYTES, WRAP, BLOCK = '<dddI4I4I4I4I4I4', 48, 2147483648, 64
  local call, unpack, is_small, value = redis.call, struct.unpack, max <= 32, nil
  if is_small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '47') end
  if value == '' then return value end
  if #value < HEAD_BYTES then return nil end
  local last, total, sum, first, len, cap, oldest, newest, expiry_s = unpack(HEAD, value)
  -- The same checks as in `decide` recognize a foreign value.
  if len > cap or cap > 4194304 or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  if sum < 0 or sum > 2 ^ 52 or sum % 1 ~= 0 or (cap > 160 and cap % 64 > 0) then return nil end
  if is_small and #value ~= HEAD_BYTES + cap * 4 + (cap > 160 and cap / 8 or 0) then return nil end
  local word_at, phase, is_marked = word_reader(key, value, first, cap), first % BLOCK, cap > 160

  -- Returns the first word of the oldest charge that was made at most `age` ticks before `last + 1`, and its tick; or
  -- `len` if all charges are older. The words before `low`, which is at least 1, belong to older charges.
  local function find_tick(low, age)
    if (last + 1 - newest) % WRAP > age then return len, newest end
    local high = len - (newest < WRAP and 1 or 2)
    while low < high do
      local middle = (low + high) / 2
      middle = middle - middle % 1
      -- If this word is a cost, the word before it has the tick. A range of less than 64 words is read from its start,
      -- so that one call of Redis reads all its words.
      word_at(high - low < 64 and low - 1 or middle - 1)
      local at, word = middle, word_at(middle)
      if word >= WRAP then at, word = middle - 1, word_at(middle - 1) end
      if (last + 1 - word) % WRAP > age then low = middle + 1 else high = at end
    end
    return high, word_at(high)
  end

  -- Returns the words from `from` to `to`, exclusive.
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
    -- The last result of `unpack` is a position, and not a word.
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
    -- If the log has as many units as words, each charge has too, so the number of words before the charge is the
    -- number of units.
    if total == len then return nth end
    local from, units = 0, 0
    if is_marked and phase + nth >= BLOCK then
      from = nth - (phase + nth) % BLOCK
      units = mark((phase + from) / BLOCK)
    end
    if from == nth then return units end
    for at, word in ipairs(words(from, nth)) do
      -- If a block begins with the cost of a charge, the charge begins before the block, so the mark of the block
      -- includes the cost.
      if word < WRAP then
        units = units + 1
      elseif at > 1 then
        units = units + word - WRAP - 1
      end
    end
    return units
  end

  -- Returns the first word of the charge that completes the oldest `wanted` units, its tick, and the units before it.
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
        -- A range of less than 32 marks is read from its start, so that one call of Redis reads all its marks.
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
    last, total, sum, first, len, cap, oldest, newest, expiry_s
end

local function decide(key, now, tick_us, window, max, _, margin_s, required, cost, take)
  local HEAD, HEAD_BYTES, WRAP = '<dddI4I4I4I4I4I4', 48, 2147483648
  local call, unpack, pack, is_small = redis.call, struct.unpack, struct.pack, max <= 32
  local value, last, total, sum, first, len, cap, oldest, newest, expiry_s, word_at
  if is_small then value = call('GET', key) or '' else value = call('GETRANGE', key, '0', '47') end
  if value == '' then
    last, total, sum, first, len, cap, oldest, newest, expiry_s = 0, 0, 0, 0, 0, 0, 0, 0, 0
  elseif #value < HEAD_BYTES then
    return nil
  else
    last, total, sum, first, len, cap, oldest, newest, expiry_s = unpack(HEAD, value)
    -- Processing a foreign value as a log could block Redis for a long time. No log needs 2^22 words: max is at most
    -- 1,000,000, and charges above max are merged when the log has twice as many words.
    if len > cap or cap > 4194304 or last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
    if sum < 0 or sum > 2 ^ 52 or sum % 1 ~= 0 or (cap > 160 and cap % 64 > 0) then return nil end
    if is_small and #value ~= HEAD_BYTES + cap * 4 + (cap > 160 and cap / 8 or 0) then return nil end
  end
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < last then
    if last * tick_us > now + 1000000 then
      -- The clock has stepped back: all units are counted as one charge.
      local charge_tick, words, ttl_ms = tick, '', nil
      if tick * tick_us ~= now then charge_tick = tick + 1 end
      if total > 536870912 then total = 536870912 end
      oldest = charge_tick % WRAP
      newest = oldest
      if total > 1 then
        words, newest = pack('<I4I4', oldest, total + WRAP), oldest + WRAP
      elseif total == 1 then
        words = pack('<I4', oldest)
      end
      last, sum, first, len, cap = tick, total, 0, #words / 4, #words / 4
      expiry_s, ttl_ms =
        expiry_after_step(key, now, (charge_tick + window) * tick_us - now, tick_us * window, margin_s)
      value = pack(HEAD, last, total, sum, first, len, cap, oldest, newest, expiry_s) .. words
      call('SET', key, value, 'PX', ttl_ms)
    end
    tick = last
  end

  -- Drops expired charges: the words before `expired_words`, and their units. The age of a word is the number of ticks
  -- from its charge to `last + 1`. Between frequent calls only few charges expire, so a short scan is tried first.
  local MAX_SCAN = 16
  local expired_words, word, used = 0, oldest, total
  local oldest_age = last + window - tick
  if oldest_age > last + 1 then oldest_age = last + 1 end
  if oldest_age < 0 then
    expired_words, used = len, 0
  elseif len > 0 and (last + 1 - word) % WRAP > oldest_age then
    local chunk, from = value, 0
    repeat
      expired_words, used = expired_words + 1, used - (word < WRAP and 1 or word - WRAP - 1)
      if expired_words >= len then break end
      if expired_words == MAX_SCAN then
        local _, find_tick, units_before = open_log(key, max)
        expired_words, word = find_tick(expired_words, oldest_age)
        used = expired_words < len and total - units_before(expired_words) or 0
        break
      end
      -- Reads one word. `word_reader` does the same, but is slower, because usually only one word is needed.
      local at = (first + expired_words) % cap * 4 + HEAD_BYTES
      if at + 4 > from + #chunk or at < from then
        chunk, from = call('GETRANGE', key, ('%d'):format(at), ('%d'):format(at + 31)), at
      end
      word = unpack('<I4', chunk, at - from + 1)
    until word < WRAP and (last + 1 - word) % WRAP <= oldest_age
  end

  local remaining = max - used
  local fits = required <= remaining
  if take == 0 or (take == 1 and not fits) then
    local reset = 0
    if len > 0 then
      local newest_tick = last + 1 - (last + 1 - newest) % WRAP
      if newest_tick < 0 then newest_tick = 0 end
      reset = (newest_tick + window) * tick_us - now
      if reset < 0 then reset = 0 end
    end
    if fits then return false, remaining, reset, 0, 0 end
    if required > max then return false, remaining, reset, -1, 0 end
    -- The oldest charges leave one by one, until enough units are free.
    local excess, nth, units = required - remaining, expired_words + 1, 1
    if excess > 1 then word_at = word_at or word_reader(key, value, first, cap) end
    while units < excess do
      if (total == len and excess > MAX_SCAN) or nth >= expired_words + MAX_SCAN or nth >= len then
        local _, _, _, find_units = open_log(key, max)
        _, word = find_units(total + required - max)
        break
      end
      local next_word = word_at(nth)
      if next_word < WRAP then word, units = next_word, units + 1 else units = units + next_word - WRAP - 1 end
      nth = nth + 1
    end
    local word_tick = last + 1 - (last + 1 - word) % WRAP
    if word_tick < 0 then word_tick = 0 end
    return false, remaining, reset, (word_tick + window) * tick_us - now, 0
  end

  -- A charge is recorded at its tick, rounded up, and never before the newest charge.
  local charged, charge_tick, kept_words = cost, tick, len - expired_words
  if tick_us > 1 and tick * tick_us ~= now then charge_tick = tick + 1 end
  if cost > 536870912 then cost = 536870912 end
  if kept_words > 0 then
    local newest_tick = tick + 1 - (tick + 1 - newest) % WRAP
    if newest_tick > charge_tick then charge_tick = newest_tick end
    if charge_tick == newest_tick or kept_words >= 2 * (max + 32) then
      -- The newest charge is removed and merged into this one.
      local merged_units = 1
      if newest >= WRAP then
        word_at = word_at or word_reader(key, value, first, cap)
        merged_units, kept_words = word_at(len - 1) % WRAP, kept_words - 1
      end
      used, sum, kept_words = used - merged_units, (sum - merged_units) % 2 ^ 52, kept_words - 1
      cost = cost + merged_units
      if cost > 536870912 then cost = 536870912 end
    end
  end
  newest = charge_tick % WRAP
  if kept_words == 0 then word = newest end
  local new_words
  if cost == 1 then
    new_words = pack('<I4', newest)
  else
    new_words = pack('<I4I4', newest, cost + WRAP)
    newest = newest + WRAP
  end
  local sum_before = sum
  total, sum, len = used + cost, (sum + cost) % 2 ^ 52, kept_words + #new_words / 4
  remaining = max - total
  local reset = (charge_tick + window) * tick_us - now
  local ttl_ms
  if now + reset > expiry_s * 1000000 then expiry_s, ttl_ms = key_expiry(now, reset, tick_us * window, margin_s) end

  if is_small or len > cap or (cap > 128 and len * 4 < cap) then
    -- Writes the value as a whole, the oldest word first.
    if not is_small then value = call('GETRANGE', key, 0, -1) end
    local first_kept = first + expired_words
    if first_kept >= cap then first_kept = first_kept - cap end
    if not is_small or len > 160 then
      local function slice(base, place, count, size, width)
        local start = base + place * width
        if place + count <= size then return value:sub(start + 1, start + count * width) end
        return value:sub(start + 1, base + size * width) .. value:sub(base + 1, base + (place + count - size) * width)
      end
      -- Copies into a ring with spare capacity. Each word keeps its position within its block, so the marks stay valid.
      local old_cap, skipped, marks = cap, 0, ''
      cap = len + len / 8
      if cap <= 112 then
        cap = cap + 16 - cap % 1
      else
        if cap > 128 and old_cap > 160 then skipped = first_kept % 64 end
        cap = skipped + cap
        cap = cap + -cap % 64
      end
      local place, running_sum = skipped + kept_words, sum_before - used
      local words = slice(HEAD_BYTES, first_kept - skipped, place, old_cap, 4)
      if cap > 160 and old_cap > 160 then
        marks = slice(HEAD_BYTES + old_cap * 4, (first_kept - skipped) / 64, (place + -place % 64) / 64, old_cap / 64, 8)
      elseif cap > 160 then
        for nth = 0, kept_words - 1 do
          local next_word = unpack('<I4', words, nth * 4 + 1)
          if next_word >= WRAP then running_sum = running_sum + next_word - WRAP - 1 end
          if nth % 64 == 0 then marks = marks .. pack('<d', running_sum % 2 ^ 52) end
          if next_word < WRAP then running_sum = running_sum + 1 end
        end
      end
      if cap > 160 then
        if place % 64 == 0 then
          marks = marks .. pack('<d', sum_before)
        elseif place % 64 == 63 and #new_words == 8 then
          marks = marks .. pack('<d', sum)
        end
        marks = marks .. ('\0'):rep(cap / 8 - #marks)
      end
      value = pack(HEAD, tick, total, sum, skipped, len, cap, word, newest, expiry_s)
        .. words .. new_words .. ('\0'):rep((cap - skipped - len) * 4) .. marks
    else
      local words
      if first_kept + kept_words <= cap then
        words = value:sub(HEAD_BYTES + first_kept * 4 + 1, HEAD_BYTES + (first_kept + kept_words) * 4)
      else
        words = value:sub(HEAD_BYTES + first_kept * 4 + 1, HEAD_BYTES + cap * 4)
          .. value:sub(HEAD_BYTES + 1, HEAD_BYTES + (first_kept + kept_words - cap) * 4)
      end
      value = pack(HEAD, tick, total, sum, 0, len, len, word, newest, expiry_s) .. words .. new_words
    end
    if ttl_ms then call('SET', key, value, 'PX', ttl_ms) else call('SET', key, value, 'KEEPTTL') end
  else
    first = (first + expired_words) % cap
    call('SETRANGE', key, '0', pack(HEAD, tick, total, sum, first, len, cap, word, newest, expiry_s))
    local place = (first + kept_words) % cap
    if place + #new_words / 4 <= cap then
      call('SETRANGE', key, ('%d'):format(HEAD_BYTES + place * 4), new_words)
    else
      call('SETRANGE', key, HEAD_BYTES + place * 4, new_words:sub(1, 4))
      call('SETRANGE', key, HEAD_BYTES, new_words:sub(5))
    end
    local block_offset = place % 64
    if cap > 160 and (block_offset == 0 or (block_offset == 63 and #new_words == 8)) then
      local block = (place + 63) % cap
      block = (block - block % 64) / 64
      call('SETRANGE', key, HEAD_BYTES + cap * 4 + block * 8, pack('<d', block_offset == 0 and sum_before or sum))
    end
    if ttl_ms then call('PEXPIRE', key, ttl_ms) end
  end
  -- If exactly the last unit was charged, the next one is free when the oldest charge leaves.
  local wait
  if total == max then wait = (tick + 1 - (tick + 1 - word) % WRAP + window) * tick_us - now end
  return charged, remaining, reset, fits and 0 or 1, charge_tick * tick_us, wait
end
