-- A published script that keeps the counts of the current and the previous window in separate keys. Redis reads its
-- own clock.
-- ARGV: window (s), max, cost.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local window, max, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local number = math.floor(now / window)
local this, last = KEYS[1] .. ':' .. number, KEYS[1] .. ':' .. (number - 1)
local current = tonumber(redis.call('GET', this)) or 0
local previous = tonumber(redis.call('GET', last)) or 0
local elapsed = now - number * window
local weighted = previous * (1 - elapsed / window)
local reset = math.ceil(window - elapsed)
if current + weighted + cost > max then return { 0, 0, reset } end
current = redis.call('INCRBY', this, cost)
redis.call('EXPIRE', this, 2 * window)
return { 1, math.floor(max - current - weighted), reset }
