-- Decides a request with any limits: either all are charged, or none is. Replies with JSON.
local function check()
  local where = 'the argument'
  local argument = read_argument({ cost = true, charge = true }, { cost = true })
  reject_repeated_counters(argument.limits)
  local cost = whole_number(where, argument, 'cost', 0, MAX_UNITS, 1)
  local charge = one_of(where, argument, 'charge', { 'if_admitted', 'always', 'never' })
  local keys, shared, indexes = distinct_keys(argument.limits)
  -- The time -1 selects the clock of Redis. Keys are kept one second longer than they are needed.
  local limits, hits = { struct.pack('<dHH', -1, shared, #argument.limits) }, {}
  for nth, limit in ipairs(argument.limits) do
    limit.cost = whole_number('limits[' .. nth - 1 .. ']', limit, 'cost', 0, MAX_UNITS, cost)
    limits[nth + 1] = struct.pack('<BI4I4I4I4ddd', limit.number, limit.tag, limit.extra, limit.debt, 1, limit.max,
      limit.tick_us, limit.window)
    hits[nth] = struct.pack('<HHddHd', indexes[limit.key], nth, limit.cost, math.max(limit.cost, 1),
      charge == 'always' and 24 or 0, limit.phase)
  end
  local request = struct.pack('<BHH', 2, #hits, charge == 'never' and 0 or 1)
  local reply = run(keys, { table.concat(limits) .. request .. table.concat(hits) })
  if type(reply) == 'table' then return reply end

  local allowed, least_remaining, longest_wait, members = true, nil, 0, {}
  for nth, limit in ipairs(argument.limits) do
    local kind, remaining, reset, wait, charged_at, units = struct.unpack('<Bddddd', reply, 41 * nth - 40)
    if kind == 2 then return redis.error_reply('FOREIGN value not written by slidegate at ' .. limit.key) end
    -- 1: charged; 6: charged, and no units remain; 11: charged, although it did not fit; 0: not charged.
    local fits = kind == 1 or kind == 6 or (kind == 0 and wait == 0)
    -- The number is negative if more units are in use than the limit admits.
    remaining = math.max(remaining, 0)
    if fits then wait = 0 else allowed = false end
    if wait < 0 or (wait > longest_wait and longest_wait >= 0) then longest_wait = wait end
    if not least_remaining or remaining < least_remaining then least_remaining = remaining end
    members[nth] = ('{"id":%s,"allowed":%s,"remaining":%.0f,"reset_after_ms":%s,"retry_after_ms":%s,"charged_units":%.0f,"charged_at_us":%.0f}')
      :format(cjson.encode(limit.id), tostring(fits), remaining, json_reset(limit, reset), json_wait(wait), units, charged_at)
  end
  return ('{"allowed":%s,"remaining":%.0f,"retry_after_ms":%s,"limits":[%s]}')
    :format(tostring(allowed), least_remaining, json_wait(longest_wait), table.concat(members, ','))
end

return reply_of(check)
