-- The beginning of the scripts that take one JSON argument. Reads the argument, and checks it; computes from each limit
-- the numbers that the scripts without JSON take. docs/reference/redis-wire-format.md documents the fields.
-- KEYS has the key of each limit, in the order of the limits.
local MAX_UNITS, MAX_SMALL_UNITS, MAX_WINDOW_MS = 9007199254740991, 536870912, 31622400000

-- The algorithms: the number in scripts; the place of the state (0 own key, 1 slot, 2 log); the largest number of ticks
-- per window, if the tick depends on the window; the largest max; and the fields that only this algorithm has.
local ALGORITHMS = {
  sliding_log = { number = 1, place = 0, max_ticks = 2 ^ 30, max = 1000000, fields = {} },
  sliding_buckets = { number = 2, place = 0, max = MAX_UNITS, fields = { precision_ms = true } },
  sliding_counter = { number = 3, place = 1, max_ticks = 2 ^ 24, max = MAX_SMALL_UNITS, fields = {} },
  fixed_window = { number = 4, place = 1, max = MAX_UNITS, fields = { align = true } },
  token_bucket = { number = 5, place = 1, max_ticks = 2 ^ 24, max = MAX_SMALL_UNITS, fields = { burst = true, max_debt = true } },
  sliding_window = { number = 6, place = 2, max_ticks = 2 ^ 25, max = MAX_UNITS, fields = { resolution = true } },
}
local LIMIT_FIELDS = { id = true, algorithm = true, max = true, window_ms = true }
local WINDOW_UNITS = {
  { 604800000000, 'w' }, { 86400000000, 'd' }, { 3600000000, 'h' }, { 60000000, 'm' }, { 1000000, 's' }, { 1000, 'ms' },
  { 1, 'us' },
}

-- Ends the script with an error. Nothing has been charged yet.
local function fail(message, ...) error('INVALID ' .. message:format(...), 0) end

local function reject_unknown_fields(where, object, ...)
  for name in pairs(object) do
    local is_known, text, similar = false, tostring(name), nil
    for _, fields in ipairs({ ... }) do
      is_known = is_known or fields[name]
      for field in pairs(fields) do
        -- An unknown name that begins with a known one, or the reverse, is a typo: `costs` for `cost`, or `window` for
        -- `window_ms`.
        local is_prefix = field:find(text, 1, true) == 1 or text:find(field, 1, true) == 1
        if #text > 2 and is_prefix then similar = field end
      end
    end
    if not is_known then
      local remedy = similar and 'write `' .. similar .. '`' or 'remove it, or correct its name'
      fail('%s: unknown field `%s`; %s', where, text, remedy)
    end
  end
end

-- Returns a field of an object that is a whole number from `min` to `max`. Without a default, the field is required.
local function whole_number(where, object, name, min, max, default)
  local value = object[name]
  if value == nil and default then return default end
  if type(value) ~= 'number' or value % 1 ~= 0 or value < min or value > max then
    fail('%s: `%s` must be a whole number from %.0f to %.0f', where, name, min, max)
  end
  return value
end

-- Returns a field of an object that is one of these texts. The first one is the default.
local function one_of(where, object, name, texts)
  local value = object[name] or texts[1]
  for _, text in ipairs(texts) do
    if value == text then return value end
  end
  fail('%s: `%s` must be one of %s', where, name, table.concat(texts, ', '))
end

-- Returns a window in the longest unit that divides it, such as `15m`.
local function format_window(window_us)
  for _, unit in ipairs(WINDOW_UNITS) do
    if window_us % unit[1] == 0 then return ('%.0f%s'):format(window_us / unit[1], unit[2]) end
  end
end

-- Returns the FNV-1a hash with 32 bits. Its prime is 2^24 + 403.
local function fnv1a_32(text)
  local hash = 2166136261
  for nth = 1, #text do
    hash = bit.bxor(hash, text:byte(nth)) % 4294967296
    hash = (hash * 403 + hash % 256 * 16777216) % 4294967296
  end
  return hash
end

-- Returns the FNV-1a hash with 64 bits, modulo a window. Its prime is 2^40 + 435. The hash is kept in two halves, because
-- a double has only 53 bits.
local function fnv1a_64_modulo(text, window_us)
  local high, low = 3421674724, 2216829733
  for nth = 1, #text do
    low = bit.bxor(low, text:byte(nth)) % 4294967296
    local product = low * 435
    high = (high * 435 + (product - product % 4294967296) / 4294967296 + low * 256) % 4294967296
    low = product % 4294967296
  end
  local remainder = high % window_us
  for shift = 28, 0, -4 do
    local four_bits = (low - low % 2 ^ shift) / 2 ^ shift % 16
    remainder = (remainder * 16 + four_bits) % window_us
  end
  return remainder
end

-- Returns the phase of a `fixed_window` whose windows begin at an offset that depends on the key.
local function phase_of_key(where, key, id, window_us)
  local scope, identity = key:match('([^:{]+:[^:{]+:)({.*})$')
  if not scope or identity:find('#', 1, true) or identity:find('},', 1, true) then
    fail('%s: the key must be PREFIX DOMAIN:RULE:{IDENTITY}, without slot_by and split; or set align to clock', where)
  end
  return fnv1a_64_modulo(scope .. id .. ':' .. identity, window_us)
end

-- Checks that the key has the form that a server uses, so that a mistake does not separate the counters without an error.
local function check_key_end(where, key, expected)
  local identity = key:sub(1, #key - #expected)
  if identity .. expected ~= key or not identity:find('}[^:{}]*$') then
    fail('%s: the key must end with {IDENTITY}%s, such as slidegate:default:RULE:{client=ann}%s, but it is %s', where,
      expected, expected, key)
  end
end

-- Returns a limit with the numbers that the other scripts take.
local function read_limit(nth, object, other_fields)
  local where = ('limits[%d]'):format(nth - 1)
  if type(object) ~= 'table' then fail('%s must be an object', where) end
  local name = one_of(where, object, 'algorithm',
    { 'sliding_window', 'sliding_log', 'sliding_buckets', 'sliding_counter', 'fixed_window', 'token_bucket' })
  local algorithm = ALGORITHMS[name]
  reject_unknown_fields(where, object, LIMIT_FIELDS, algorithm.fields, other_fields)
  local max = whole_number(where, object, 'max', 0, algorithm.max)
  local window_us = 1000 * whole_number(where, object, 'window_ms', 1, MAX_WINDOW_MS)
  local id = object.id or format_window(window_us)
  if type(id) ~= 'string' or not id:find('^[a-z0-9._-]+$') or #id > 128 then
    fail('%s: `id` must have 1 to 128 of the characters a-z, 0-9, `.`, `_` and `-`', where)
  end
  local limit = {
    number = algorithm.number, place = algorithm.place, key = KEYS[nth], id = id, max = max, extra = 0, debt = 0,
    tick_us = 1, window = window_us, phase = 0,
  }

  local shape_end = ''
  if algorithm.max_ticks then
    local function ticks() return math.ceil(window_us / limit.tick_us) end
    while ticks() > algorithm.max_ticks do limit.tick_us = limit.tick_us * 10 end
    limit.window = ticks()
    window_us = limit.window * limit.tick_us
  end
  if name == 'sliding_window' then
    limit.extra = whole_number(where, object, 'resolution', 8, 1024, 32)
  elseif name == 'sliding_buckets' then
    limit.tick_us = object.precision_ms and 1000 * whole_number(where, object, 'precision_ms', 1, MAX_WINDOW_MS)
      or window_us / 10
    limit.window = window_us / limit.tick_us
    if limit.window % 1 ~= 0 or limit.window > 1440 then
      fail('%s: `precision_ms` must divide the window into at most 1440 parts', where)
    end
    limit.extra, shape_end = limit.window + 1, ':' .. format_window(limit.tick_us)
  elseif name == 'token_bucket' then
    limit.extra = whole_number(where, object, 'burst', 0, MAX_SMALL_UNITS, max)
    limit.debt = whole_number(where, object, 'max_debt', 0, MAX_SMALL_UNITS, math.min(2 * max, MAX_SMALL_UNITS))
  elseif name == 'fixed_window' then
    if one_of(where, object, 'align', { 'key', 'clock' }) == 'clock' then
      shape_end = ':clock'
    else
      limit.phase = phase_of_key(where, limit.key, id, window_us)
    end
  end
  local counter = id .. ':' .. name .. ':' .. format_window(window_us) .. shape_end
  check_key_end(where, limit.key, ({ [0] = ':' .. counter, '', ':log' })[limit.place])
  limit.tag, limit.counter = fnv1a_32(counter), counter
  return limit
end

-- Returns a JSON value without its null members, which mean absent fields.
local function without_nulls(value)
  if type(value) ~= 'table' then return value end
  for name, member in pairs(value) do
    if member == cjson.null then value[name] = nil else without_nulls(member) end
  end
  return value
end

-- Reads the argument, and returns it with its limits. `fields` are its possible fields besides `limits`, and
-- `limit_fields` are additional possible fields of each limit.
local function read_argument(fields, limit_fields)
  if not ARGV[1] then fail('ARGV[1] is missing; pass the JSON argument after the keys') end
  local is_json, argument = pcall(cjson.decode, ARGV[1])
  if not is_json then fail('the argument is not JSON: %s', tostring(argument)) end
  if type(argument) ~= 'table' then fail('the argument must be an object') end
  argument = without_nulls(argument)
  reject_unknown_fields('the argument', argument, { limits = true }, fields)
  local limits = argument.limits
  if type(limits) ~= 'table' or #limits == 0 then fail('the argument: `limits` must be a list of at least one limit') end
  if #limits ~= #KEYS then
    fail('the argument has %d limits, but the call has %d keys; pass the key of each limit, also if two limits have the same key',
      #limits, #KEYS)
  end
  for nth = 1, #limits do
    local limit = read_limit(nth, limits[nth], limit_fields)
    for name in pairs(limit_fields) do limit[name] = limits[nth][name] end
    limits[nth] = limit
  end
  return argument
end

-- Rejects two limits with the same counter, because it would be charged twice.
local function reject_repeated_counters(limits)
  local first = {}
  for nth, limit in ipairs(limits) do
    local counter = limit.key .. ' ' .. limit.counter
    if first[counter] then
      fail('limits[%d] and limits[%d] have the same counter, which would be charged twice; give each limit its own `id`',
        first[counter] - 1, nth - 1)
    end
    first[counter] = nth
  end
end

-- Returns the distinct keys of the limits: keys of values that limits share first. Then their number, and the index of
-- each key.
local function distinct_keys(limits)
  local keys, indexes, shared = {}, {}, 0
  for _, is_shared in ipairs({ true, false }) do
    for _, limit in ipairs(limits) do
      if (limit.place > 0) == is_shared and not indexes[limit.key] then
        keys[#keys + 1] = limit.key
        indexes[limit.key] = #keys
      end
    end
    if is_shared then shared = #keys end
  end
  return keys, shared, indexes
end

-- Returns the JSON of a time in milliseconds, rounded up.
local function json_ms(us) return ('%.0f'):format(math.ceil(us / 1000)) end

-- Returns the JSON of the time until no unit of a limit is in use. `sliding_log` and `sliding_window` round the time of
-- a charge up to a tick, so that the time can be less than a tick longer than the window. The JSON then has the window.
local function json_reset(limit, us)
  local window_us, rounds_up = limit.window * limit.tick_us, limit.number == 1 or limit.number == 6
  if rounds_up and us > window_us and us < window_us + limit.tick_us then us = window_us end
  return json_ms(us)
end

-- Returns the JSON of the wait until a limit has enough units again: null if it has them, or never will.
local function json_wait(us) return us > 0 and json_ms(us) or 'null' end

-- Returns the reply of a function. An invalid argument becomes an error reply; other errors remain as they are.
local function reply_of(operation)
  local is_ok, reply = pcall(operation)
  if is_ok then return reply end
  if type(reply) == 'string' and reply:find('^INVALID ') then return redis.error_reply(reply) end
  error(reply, 0)
end
