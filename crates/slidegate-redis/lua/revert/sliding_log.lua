-- Returns a part of a ring as bytes, or nil if the value is shorter than its ring.
local function read_ring(key, base, place, count, cap, width)
  local bytes = call('GETRANGE', key, base + place * width, base + math.min(place + count, cap) * width - 1)
  if place + count > cap then bytes = bytes .. call('GETRANGE', key, base, base + (place + count - cap) * width - 1) end
  return #bytes == count * width and bytes or nil
end

-- Writes a part of a ring.
local function write_ring(key, base, place, bytes, cap, width)
  local rest = bytes:sub((cap - place) * width + 1)
  call('SETRANGE', key, base + place * width, bytes:sub(1, (cap - place) * width))
  if #rest > 0 then call('SETRANGE', key, base, rest) end
end

-- Reverts a charge of a log. Newer charges are moved as bytes, and the marks of their blocks are corrected.
local function revert(key, tick_us, max, _, cost, charged_at)
  local value, find_tick, _, _, word_at, last, total, sum, first, len, cap, oldest, newest, expiry_s = open_log(key, max)
  if not value or value == '' then return value end
  local tick = charged_at / tick_us
  tick = tick - tick % 1
  local age = last + 1 - tick
  -- A charge after the newest one was made before a clock stepped back. The units of that time are now in the newest
  -- charge.
  if age < (last + 1 - newest) % WRAP then age = (last + 1 - newest) % WRAP end
  if len == 0 or cost == 0 or age < 0 then return true end
  local nth, word = 0, oldest
  if (last + 1 - word) % WRAP > age then nth, word = find_tick(1, age) end
  if nth == len or (last + 1 - word) % WRAP ~= age then return true end

  local next_word = nth + 1 < len and word_at(nth + 1) or 0
  local units, size = 1, 1
  if next_word >= WRAP then units, size = next_word - WRAP, 2 end
  if cost > units then cost = units end
  local remaining_units = units - cost
  local kept_bytes = remaining_units == 0 and '' or remaining_units == 1 and pack('<I4', word) or pack('<I4I4', word, remaining_units + WRAP)
  local shift = size - #kept_bytes / 4

  -- The words after the charge move forward.
  local place = (first + nth) % cap
  local tail = read_ring(key, HEAD_BYTES, place, shift > 0 and len - nth or size, cap, 4)
  if not tail then return nil end

  -- A mark, the sum of the units before a block, loses the reverted units, and gains the charges that now begin before
  -- the block.
  local BLOCK = 64
  local phase = first % BLOCK
  local low, high = (phase + nth) / BLOCK, (phase + len - shift - 1) / BLOCK
  low, high = low - low % 1 + 1, high - high % 1
  if cap > 160 and low <= high then
    local base, blocks, mark_place = HEAD_BYTES + cap * 4, cap / BLOCK, (first - phase) / BLOCK + low
    local bytes, marks = read_ring(key, base, mark_place % blocks, high - low + 1, blocks, 8), {}
    if not bytes then return nil end
    local words = tail .. ('\0'):rep(8)
    for block = low, high do
      local mark = unpack('<d', bytes, (block - low) * 8 + 1) - cost
      if shift > 0 then
        local first_word, second_word, third_word = unpack('<I4I4I4', words, (block * BLOCK - phase - nth) * 4 + 1)
        if first_word < WRAP then mark = mark + (second_word < WRAP and 1 or second_word - WRAP) end
        if shift == 2 and second_word < WRAP then mark = mark + (third_word < WRAP and 1 or third_word - WRAP) end
      end
      marks[block - low + 1] = pack('<d', mark % 2 ^ 52)
    end
    write_ring(key, base, mark_place % blocks, table.concat(marks), blocks, 8)
  end
  write_ring(key, HEAD_BYTES, place, kept_bytes .. tail:sub(size * 4 + 1), cap, 4)

  if nth + size == len then
    newest = remaining_units == 1 and word or word + WRAP
    if remaining_units == 0 and nth > 0 then
      newest = word_at(nth - 1)
      if newest >= WRAP then newest = word_at(nth - 2) + WRAP end
    end
  end
  if nth == 0 then oldest = remaining_units == 0 and len > size and unpack('<I4', tail, size * 4 + 1) or word end
  total, sum, len = total - cost, (sum - cost) % 2 ^ 52, len - shift
  call('SETRANGE', key, '0', pack(HEAD, last, total, sum, first, len, cap, oldest, newest, expiry_s))
  return true
end
