-- Twin of algorithm/sliding_log.rs: every charge in the window, in a ring of 32-bit words, oldest first. A word
-- holds the tick of a charge modulo 2^31; a charge of more than one unit takes a second word for its cost,
-- and both have their top bit set.
--
-- A value is a head of 40 bytes and the ring. A small one is read and written as a whole, and has no room to
-- spare; of a large one the head, the words that are asked for, and the words that are new.
local HEAD, HEAD_BYTES = '<ddI4I4I4I4I4I4', 40
local WRAP = 2147483648
local SMALL = 256

local function cost_of(log, nth, word)
  if word < WRAP then return 1 end
  return log:word(nth + 1) % WRAP
end

local function words_of(word)
  return word < WRAP and 1 or 2
end

-- How many ticks before `last + 1` the charge was made that begins with `word`.
local function age(log, word)
  return (log.last + 1 - word) % WRAP
end

local function tick_of(log, word)
  local tick = log.last + 1 - age(log, word)
  return tick > 0 and tick or 0
end

-- The nth word, the oldest first; they are fetched 64 at a time.
local function word_at(log, nth)
  local at = (log.first + nth) % log.cap * 4 + HEAD_BYTES
  if at + 4 <= #log.value then return unpack('<I4', log.value, at + 1) end
  if not log.from or at < log.from or at >= log.from + #log.chunk then
    log.from = at
    log.chunk = call('GETRANGE', log.key, at, at + 255)
  end
  return unpack('<I4', log.chunk, at - log.from + 1)
end

-- So many words from the nth on, as they stand.
local function words_from(log, nth, len)
  local value = log.value
  local first = (log.first + nth) % (log.cap > 0 and log.cap or 1)
  local fore = log.cap - first
  if len <= fore then return value:sub(HEAD_BYTES + first * 4 + 1, HEAD_BYTES + (first + len) * 4) end
  return value:sub(HEAD_BYTES + first * 4 + 1) .. value:sub(HEAD_BYTES + 1, HEAD_BYTES + (len - fore) * 4)
end

local function load(key, max)
  local small = max <= SMALL
  local value
  if small then value = call('GET', key) or '' else value = call('GETRANGE', key, 0, HEAD_BYTES - 1) end
  local log = { key = key, value = value, small = small, word = word_at }
  if #value == 0 then
    log.known, log.last, log.total, log.first, log.len, log.cap, log.oldest, log.newest =
      0, 0, 0, 0, 0, 0, 0, 0
    return log
  end
  if #value < HEAD_BYTES then return nil end
  log.last, log.total, log.first, log.len, log.cap, log.oldest, log.newest, log.known =
    unpack(HEAD, value)
  if log.len > log.cap or (small and #value ~= HEAD_BYTES + 4 * log.cap) then return nil end
  return log
end

-- How many words the charges before `tick` take, and the sum of their costs.
local function before(log, tick)
  local oldest_age = log.last + 1 - tick
  if oldest_age < 0 then return log.len, log.total end
  local nth, units = 0, 0
  local word = log.oldest
  while nth < log.len and age(log, word) > oldest_age do
    units = units + cost_of(log, nth, word)
    nth = nth + words_of(word)
    if nth < log.len then word = log:word(nth) end
  end
  return nth, units, word
end

local function expires(log, tick_us, window, now)
  if log.len == 0 then return 0 end
  local span = (tick_of(log, log.newest) + window) * tick_us - now
  return span > 0 and span or 0
end

local function decide(log, now, tick_us, window, max, _, cost, take)
  local tick = now / tick_us
  tick = tick - tick % 1
  if tick < log.last then tick = log.last end
  local begins = tick + 1 - window
  if begins < 0 then begins = 0 end
  local gone, units, oldest = before(log, begins)
  local used = log.total - units
  local remaining = max - used
  if remaining < 0 then remaining = 0 end

  local wanted = cost > 0 and cost or 1
  local fits = wanted <= remaining
  if take == 2 or (take == 1 and fits) then
    log.gone, log.len, log.total, log.oldest = gone, log.len - gone, used, oldest
    log.last = tick
    local at = tick
    if tick * tick_us ~= now and tick_us > 1 then at = tick + 1 end
    if cost > MOST_UNITS then cost = MOST_UNITS end
    log.popped = 0
    if log.len > 0 then
      local newest = tick_of(log, log.newest)
      if newest > at then at = newest end
      if at == newest or log.len >= 2 * (max + 32) then
        -- The newest charge is taken out, and goes back in with what is added to it.
        log.popped = words_of(log.newest)
        local merged = 1
        if log.popped == 2 then merged = log:word(gone + log.len - 1) % WRAP end
        log.len, log.total = log.len - log.popped, log.total - merged
        cost = cost + merged
        if cost > MOST_UNITS then cost = MOST_UNITS end
      end
    end
    local word = at % WRAP
    log.pushed = cost == 1 and pack('<I4', word) or pack('<I4I4', word + WRAP, cost + WRAP)
    if cost ~= 1 then word = word + WRAP end
    log.newest = word
    if log.len == 0 then log.oldest = word end
    log.kept = log.len
    log.len, log.total = log.len + #log.pushed / 4, log.total + cost
    remaining = max - log.total
    if remaining < 0 then remaining = 0 end
    return true, remaining, expires(log, tick_us, window, now), 0, at * tick_us
  end

  local reset = expires(log, tick_us, window, now)
  if fits then return false, remaining, reset, 0, 0 end
  if wanted > max then return false, remaining, reset, -1, 0 end
  -- The oldest charges leave one by one, until what is left makes room.
  local excess, nth, word, left = used + wanted - max, gone, oldest, 0
  while true do
    left = left + cost_of(log, nth, word)
    nth = nth + words_of(word)
    if left >= excess then break end
    word = log:word(nth)
  end
  return false, remaining, reset, (tick_of(log, word) + window) * tick_us - now, 0
end

local function head(log)
  return pack(HEAD, log.last, log.total, log.first, log.len, log.cap, log.oldest, log.newest, log.known)
end

-- Writes the log as a whole, with room for `cap` words.
local function rewrite(log, cap, ms)
  if not log.small then log.value = call('GETRANGE', log.key, 0, -1) end
  local words = words_from(log, log.gone, log.kept) .. log.pushed
  log.first, log.cap = 0, cap
  local value = head(log) .. words .. ('\0'):rep(cap * 4 - #words)
  log.value = value
  if ms then call('SET', log.key, value, 'PX', ms) else call('SET', log.key, value, 'KEEPTTL') end
end

local function save(log, ms)
  if log.small then return rewrite(log, log.len, ms) end
  if log.len > log.cap or (log.cap > 512 and log.len * 4 < log.cap) then
    local cap = log.len + log.len / 8 + 64
    return rewrite(log, cap - cap % 1, ms)
  end
  log.first = (log.first + log.gone) % log.cap
  log.value, log.from = head(log), nil
  call('SETRANGE', log.key, 0, log.value)
  local at = (log.first + log.kept) % log.cap
  if at + #log.pushed / 4 <= log.cap then
    call('SETRANGE', log.key, HEAD_BYTES + at * 4, log.pushed)
  else
    call('SETRANGE', log.key, HEAD_BYTES + at * 4, log.pushed:sub(1, 4))
    call('SETRANGE', log.key, HEAD_BYTES, log.pushed:sub(5))
  end
  if ms then call('PEXPIRE', log.key, ms) end
end
