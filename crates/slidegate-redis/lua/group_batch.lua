-- Decides several requests for the limits of one rule (see group_limits.lua), each separately.
local arg = ARGV[1]
local now, mode, keys, margin_s{{, tag@, max@, extra@, tick_us@, window@, cost@, phase@, required@, debt@}}, offset =
  unpack('<dBHd{{ddddddddd}}', arg)
if now < 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
-- If a key has several requests, the argument ends with the index of the key of each request. Otherwise the nth request
-- is for the nth key.
local has_key_indexes = offset <= #arg
local requests = has_key_indexes and (#arg + 1 - offset) / 2 or keys
local values, replies = call('MGET', _G.unpack(KEYS, 1, keys)), {}
for nth = 1, requests do
  local key_index = has_key_indexes and unpack('<H', arg, offset + 2 * nth - 2) or nth
  -- MGET returns no value for a key of another type. GET then returns an error.
  local key = KEYS[key_index]
  local value = values[key_index] or redis.pcall('GET', key) or ''
  -- Any other error, such as a missing permission, ends the script.
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then call('GET', key) end
-- @decide_limits
  values[key_index], replies[nth] = value, reply
end
return table.concat(replies)
