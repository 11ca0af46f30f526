-- Releases or renews a permit, which consists of charges of several counters, and replies whether it was live. ARGV[1]
-- contains the time (double), the operation (byte: 0 releases, 1 renews), the additional time to live of a key in seconds
-- (double), the number of charges (uint16), and for each charge the index of its key (uint16), its units (uint32), its
-- id, and the time to live of a permit including the skew of clocks, in microseconds (double each).
--
-- A permit is live while all its units are. If it cannot be renewed, its remaining units are released.
local now, operation, margin_s, charges = unpack('<dBdH', ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local FIRST, CHARGE, CHARGE_BYTES = 20, '<HI4dd', 22

-- Calls a function with the key, the time to live and the member of each unit of a charge.
local function for_each_unit(nth, change)
  local key_index, units, id, ttl_us = unpack(CHARGE, ARGV[1], FIRST + nth * CHARGE_BYTES)
  for unit = 1, units do change(KEYS[key_index], ttl_us, ('%.0f:%d'):format(id, unit)) end
end

local is_live = true
for nth = 0, charges - 1 do
  local key_index, _, _, ttl_us = unpack(CHARGE, ARGV[1], FIRST + nth * CHARGE_BYTES)
  local _, reset = count_permits(KEYS[key_index], now)
  set_back_permits(KEYS[key_index], now, ttl_us, reset, margin_s)
  local is_charge_live = true
  for_each_unit(nth, function(key, _, member)
    local expires = call('ZSCORE', key, member)
    if not expires or expires + 0 <= now then is_charge_live = false end
    if operation == 0 then call('ZREM', key, member) end
  end)
  -- A live charge counts as renewed, even if the permit is then released because another charge is not live.
  if operation == 1 and is_charge_live then call('ZADD', KEYS[key_index], -now, 'clock') end
  is_live = is_live and is_charge_live
end
for nth = 0, operation == 1 and charges - 1 or -1 do
  for_each_unit(nth, function(key, ttl_us, member)
    if not is_live then
      call('ZREM', key, member)
      return
    end
    local expires = call('ZSCORE', key, member) + 0
    if now + ttl_us > expires then expires = now + ttl_us end
    call('ZADD', key, expires, member)
    local _, ttl_ms = key_expiry(now, expires - now, 0, margin_s)
    if call('PTTL', key) < ttl_ms then call('PEXPIRE', key, ttl_ms) end
  end)
end
return is_live and '\1' or '\0'
