-- Subtracts units from counters, the oldest units first. Never creates a counter. Replies with JSON.
local function refund()
  local argument = read_argument({ units = true }, { units = true })
  local units = argument.units and whole_number('the argument', argument, 'units', 0, MAX_UNITS)
  local keys, _, indexes = distinct_keys(argument.limits)
  local hits = {}
  for nth, limit in ipairs(argument.limits) do
    hits[nth] = struct.pack('<BHI4I4I4ddddd', limit.number, indexes[limit.key], limit.tag, limit.extra, limit.debt,
      limit.max, limit.tick_us, limit.window, whole_number('limits[' .. nth - 1 .. ']', limit, 'units', 0, MAX_UNITS, units),
      limit.phase)
  end
  local reply = run(keys, { struct.pack('<dH', -1, #hits) .. table.concat(hits) })
  if type(reply) == 'table' then return reply end
  local members = {}
  for nth, limit in ipairs(argument.limits) do
    local _, remaining, reset, wait = struct.unpack('<Bdddd', reply, 41 * nth - 40)
    members[nth] = ('{"id":%s,"remaining":%.0f,"reset_after_ms":%s,"retry_after_ms":%s}')
      :format(cjson.encode(limit.id), math.max(remaining, 0), json_reset(limit, reset), json_wait(wait))
  end
  return ('{"limits":[%s]}'):format(table.concat(members, ','))
end

return reply_of(refund)
