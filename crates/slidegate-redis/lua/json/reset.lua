-- Deletes counters. Replies with OK.
local function reset()
  local argument = read_argument({}, {})
  local keys, _, indexes = distinct_keys(argument.limits)
  local counters = {}
  for nth, limit in ipairs(argument.limits) do
    counters[nth] = struct.pack('<BHI4', limit.place, indexes[limit.key], limit.tag)
  end
  return run(keys, { struct.pack('<H', #counters) .. table.concat(counters) })
end

return reply_of(reset)
