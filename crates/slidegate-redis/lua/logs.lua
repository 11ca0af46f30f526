-- Logs of one rule and identity share one value. The value consists of a section for each limit: the tag of the limit,
-- the number of bytes of the log, and the log. A log begins with a head that its algorithm documents. In each head, the
-- time in seconds until which the key is known to exist follows after 24 bytes.
local SECTION, SECTION_HEAD_BYTES, EXPIRY_POSITION, MAX_SECTIONS = '<I4I4', 8, 32, 1000

-- By key: the times to live in milliseconds of the values that have changed, 0 to keep the time.
local log_ttls_ms = {}
log_values = {}

-- Returns the latest expiry of all logs in a value, and the positions of the first and the last byte of the log with a
-- tag, if there is one. Returns nothing if the value is foreign.
local function find_log(value, tag)
  local position, latest_expiry_s, first, last = 1, 0, nil, nil
  for _ = 1, MAX_SECTIONS do
    if position > #value then return latest_expiry_s, first, last end
    if position + EXPIRY_POSITION + 3 > #value then return end
    local found_tag, bytes = unpack(SECTION, value, position)
    local expiry_s = unpack('<I4', value, position + EXPIRY_POSITION)
    if expiry_s > latest_expiry_s then latest_expiry_s = expiry_s end
    position = position + SECTION_HEAD_BYTES + bytes
    if position > #value + 1 then return end
    if found_tag == tag then first, last = position - bytes, position - 1 end
  end
end

-- Returns the value of a key, and the positions of the first and the last byte of the log with a tag if there is one.
-- The last result is the latest expiry of all logs in the value; nil if the value has only this log. Returns nothing if
-- the value is foreign.
local function read_log(key, tag)
  local value = log_values[key]
  if not value then
    value = redis.pcall('GET', key) or ''
    if type(value) == 'table' then
      if value.err:find('WRONGTYPE', 1, true) then return end
      error(value, 0)
    end
    log_values[key] = value
  end
  if #value > SECTION_HEAD_BYTES + EXPIRY_POSITION then
    -- Most values have one log.
    local found_tag, bytes = unpack(SECTION, value)
    if found_tag == tag and bytes == #value - SECTION_HEAD_BYTES then
      return value, SECTION_HEAD_BYTES + 1, #value
    end
  end
  local latest_expiry_s, first, last = find_log(value, tag)
  if latest_expiry_s then return value, first, last, latest_expiry_s end
end

-- Replaces the log at the positions that `read_log` returned, or adds it to the others. Drops logs that expired more than
-- a second ago: a client's clock may step back. The value is written by `write_logs`.
local function replace_log(key, tag, first, last, log, ttl_ms, now)
  local value = log_values[key]
  local section = pack(SECTION, tag, #log) .. log
  if first == SECTION_HEAD_BYTES + 1 and last == #value then
    value = section
  elseif first then
    value = value:sub(1, first - SECTION_HEAD_BYTES - 1) .. section .. value:sub(last + 1)
  else
    local position = 1
    while position <= #value do
      local _, bytes = unpack(SECTION, value, position)
      local next_position = position + SECTION_HEAD_BYTES + bytes
      if unpack('<I4', value, position + EXPIRY_POSITION) * SECOND >= now - SECOND then
        section = section .. value:sub(position, next_position - 1)
      end
      position = next_position
    end
    value = section
  end
  log_values[key] = value
  log_ttls_ms[key] = ttl_ms or log_ttls_ms[key] or 0
end

function write_logs()
  for key, ttl_ms in pairs(log_ttls_ms) do
    if ttl_ms > 0 then
      call('SET', key, log_values[key], 'PX', ttl_ms)
    else
      call('SET', key, log_values[key], 'KEEPTTL')
    end
  end
end
