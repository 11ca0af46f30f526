-- Logs of one rule and identity share one value. The value consists of a section for each limit: the tag of the limit,
-- the number of bytes of the log, and the log. A log begins with a head of 29 bytes: the state of its algorithm
-- (20 bytes), the time in seconds until which the key is known to exist, and 5 bytes of the algorithm.

-- Returns a value in three parts: the sections before a log, the section of the log, and the sections after it. If there
-- is no such log, the last part has all sections but the expired ones. A section counts as expired a second later than
-- its expiry, because a client's clock may step back. The last result is the latest expiry of all logs in the value.
-- Returns nothing if the value is foreign.
local function split_logs(value, tag, now)
  local position, latest_expiry_s, first, last, kept = 1, 0, nil, nil, ''
  for _ = 1, 1000 do
    if position > #value then
      if not first then return '', '', kept, latest_expiry_s end
      return value:sub(1, first - 1), value:sub(first, last), value:sub(last + 1), latest_expiry_s
    end
    if position + 36 > #value then return end
    local found_tag, bytes = struct.unpack('<I4I4', value, position)
    local expiry_s = struct.unpack('<I4', value, position + 28)
    local next_position = position + 8 + bytes
    if bytes < 29 or next_position > #value + 1 then return end
    if expiry_s > latest_expiry_s then latest_expiry_s = expiry_s end
    if found_tag == tag then first, last = position, next_position - 1 end
    if expiry_s * 1000000 >= now - 1000000 then kept = kept .. value:sub(position, next_position - 1) end
    position = next_position
  end
end

-- Sets back the log in `section` if it is ahead of `now`, because a clock has stepped back: all its units are counted in
-- one entry. Then writes the value. Returns the three parts of the value, and the latest expiry of all logs; and the new
-- time to live of the key if the value was written.
local function set_back_log(decide, key, before, section, after, latest_expiry_s, now, tick_us, window, max, resolution, margin_s)
  if #section < 37 then return before, section, after, latest_expiry_s end
  local pack, unpack = struct.pack, struct.unpack
  local tag, _, newest = unpack('<I4I4d', section)
  if newest * tick_us <= now + 1000000 then return before, section, after, latest_expiry_s end
  local _, remaining = decide(section, newest * tick_us, tick_us, window, max, resolution, 1, 0, 0, tag)
  -- A foreign value.
  if not remaining then return before, section, after, latest_expiry_s end

  local units, tick = max - remaining, now / tick_us
  tick = tick + -tick % 1
  local expiry_s, ttl_ms = expiry_after_step(key, now, (tick + window) * tick_us - now, tick_us * window, margin_s)
  local units_low, width, high = units % 4294967296, 2, ''
  if units > 4294967295 then
    local units_high = (units - units_low) / 4294967296
    width, high = 8, pack('<I4I4', units_high, units_high)
  end
  section = pack('<I4I4dI4I4I4I4BI4', tag, 29 + #high, tick, units_low, 0, units_low, expiry_s, width, tick % 4294967296)
    .. high
  local function limit_expiries(logs)
    local position = 1
    while position < #logs do
      local _, bytes = unpack('<I4I4', logs, position)
      if unpack('<I4', logs, position + 28) > expiry_s then
        logs = logs:sub(1, position + 27) .. pack('<I4', expiry_s) .. logs:sub(position + 32)
      end
      position = position + 8 + bytes
    end
    return logs
  end
  before, after = limit_expiries(before), limit_expiries(after)
  redis.call('SET', key, before .. section .. after, 'PX', ttl_ms)
  return before, section, after, expiry_s, ttl_ms
end
