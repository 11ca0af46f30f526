-- Reverts charges: `charged_units` and `charged_at_us` of each limit are from the reply to the check. Replies with OK.
local function revert()
  local argument = read_argument({}, { charged_units = true, charged_at_us = true })
  local keys, _, indexes = distinct_keys(argument.limits)
  local charges = {}
  for nth, limit in ipairs(argument.limits) do
    local where = 'limits[' .. nth - 1 .. ']'
    local units = whole_number(where, limit, 'charged_units', 0, MAX_UNITS)
    local charged_at = whole_number(where, limit, 'charged_at_us', 0, 2 ^ 53)
    -- Nothing was charged if there is no time.
    if units > 0 and charged_at > 0 then
      charges[#charges + 1] = struct.pack('<BHI4I4ddddd', limit.number, indexes[limit.key], limit.tag, limit.extra,
        limit.max, limit.tick_us, limit.window, units, charged_at)
    end
  end
  return run(keys, { struct.pack('<H', #charges) .. table.concat(charges) })
end

return reply_of(revert)
