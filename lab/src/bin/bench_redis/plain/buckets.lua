-- One hash for all limits of an identity. Of each limit it holds the sum, a count for interval bucket in the
-- window, and the number of the oldest bucket; buckets that have left are taken off the sum and deleted.
-- All limits are checked, then all are charged.
-- ARGV: the limits as JSON, each [window (s), max, precision (s)]; now (s), or '' for Redis's clock; the cost.
local key, now, cost = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then now = tonumber(redis.call('TIME')[1]) end
local limits, longest = {}, 0
for _, limit in ipairs(cjson.decode(ARGV[1])) do
  local window, max, precision = limit[1], limit[2], limit[3]
  local running, held = math.floor(now / precision), math.ceil(window / precision)
  local first = running - held + 1
  local name = window .. ':' .. precision .. ':'
  local oldest = tonumber(redis.call('HGET', key, name .. 'o')) or first
  local gone, fields = 0, {}
  for bucket = oldest, math.min(first, oldest + held) - 1 do
    local count = redis.call('HGET', key, name .. bucket)
    if count then
      gone = gone + count
      fields[#fields + 1] = name .. bucket
    end
  end
  local used
  if #fields > 0 then
    redis.call('HDEL', key, unpack(fields))
    used = redis.call('HINCRBY', key, name, -gone)
  else
    used = redis.call('HGET', key, name)
  end
  if (tonumber(used) or 0) + cost > max then return 1 end
  limits[#limits + 1] = { name = name, first = first, running = running }
  longest = math.max(longest, window)
end
for _, limit in ipairs(limits) do
  redis.call('HSET', key, limit.name .. 'o', limit.first)
  redis.call('HINCRBY', key, limit.name, cost)
  redis.call('HINCRBY', key, limit.name .. limit.running, cost)
end
redis.call('EXPIRE', key, longest)
return 0
