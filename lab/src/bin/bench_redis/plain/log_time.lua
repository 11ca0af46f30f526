-- A sorted set with a member for each charge, with the time by Redis's clock in microseconds as score.
-- ARGV: window (us), max, time to live (s), a unique member.
local key = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local window, max = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
local count = redis.call('ZCARD', key)
if count < max then
  redis.call('ZADD', key, now, ARGV[4])
  redis.call('EXPIRE', key, ARGV[3])
  return { 1, max - count - 1, 0 }
end
local oldest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
return { 0, 0, oldest[2] and oldest[2] + window - now or 0 }
