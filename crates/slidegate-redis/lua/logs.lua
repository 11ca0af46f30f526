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
