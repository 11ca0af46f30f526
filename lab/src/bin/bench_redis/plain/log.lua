-- A sorted set with a member for each charge, with the time in milliseconds as score.
-- ARGV: now (ms), window (ms), max, time to live (s), a unique member.
local key = KEYS[1]
local now, window, max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
local count = redis.call('ZCARD', key)
if count < max then
  redis.call('ZADD', key, now, ARGV[5])
  redis.call('EXPIRE', key, ARGV[4])
  return { 1, max - count - 1, 0 }
end
local oldest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
return { 0, 0, oldest[2] and oldest[2] + window - now or 0 }
