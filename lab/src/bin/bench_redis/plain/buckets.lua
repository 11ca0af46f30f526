-- One hash for all limits of an identity. For each limit it holds the sum, a count for each bucket in the window, and
-- the number of the oldest bucket. Expired buckets are subtracted from the sum and deleted.
-- All limits are checked, then all limits are charged.
-- ARGV: the limits as JSON, each [window (s), max, precision (s)]; now (s), or '' for Redis's clock; the cost.
local key, now, cost = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then now = tonumber(redis.call('TIME')[1]) end
local limits, longest = {}, 0
for _, limit in ipairs(cjson.decode(ARGV[1])) do
  local window, max, precision = limit[1], limit[2], limit[3]
  local current_bucket, bucket_count = math.floor(now / precision), math.ceil(window / precision)
  local first = current_bucket - bucket_count + 1
  local name = window .. ':' .. precision .. ':'
  local oldest = tonumber(redis.call('HGET', key, name .. 'o')) or first
  local expired_units, fields = 0, {}
  for bucket = oldest, math.min(first, oldest + bucket_count) - 1 do
    local count = redis.call('HGET', key, name .. bucket)
    if count then
      expired_units = expired_units + count
      fields[#fields + 1] = name .. bucket
    end
  end
  local used
  if #fields > 0 then
    redis.call('HDEL', key, unpack(fields))
    used = redis.call('HINCRBY', key, name, -expired_units)
  else
    used = redis.call('HGET', key, name)
  end
  if (tonumber(used) or 0) + cost > max then return 1 end
  limits[#limits + 1] = { name = name, first = first, current_bucket = current_bucket }
  longest = math.max(longest, window)
end
for _, limit in ipairs(limits) do
  redis.call('HSET', key, limit.name .. 'o', limit.first)
  redis.call('HINCRBY', key, limit.name, cost)
  redis.call('HINCRBY', key, limit.name .. limit.current_bucket, cost)
end
redis.call('EXPIRE', key, longest)
return 0
