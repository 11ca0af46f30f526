-- A published script that keeps the counts of the current and the previous window in separate keys. Each key ends with
-- the number of its window.
-- ARGV: now (s), window (s), max, cost.
local now, window, max, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
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
