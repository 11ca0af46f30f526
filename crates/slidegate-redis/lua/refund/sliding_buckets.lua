local function refund(key, now, precision_us, _, _, counted, cost)
  local value = call('GET', key)
  if not value then return true end
  local width, format = count_format(value, counted)
  if not width then return nil end
  local last, total, expiry_s = unpack(HEAD, value)
  if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil end
  local running = (now > last and now or last) / precision_us
  local newest = last / precision_us
  running, newest = running - running % 1, newest - newest % 1
  local oldest = running - counted + 1
  if oldest < 0 then oldest = 0 end
  if cost == 0 or total == 0 or oldest > newest then return true end

  local counts = {}
  for place = 0, counted - 1 do
    local at = HEAD_BYTES + place * width
    counts[place + 1] = value:sub(at + 1, at + width)
  end
  for bucket = oldest, newest do
    local place = bucket % counted + 1
    local count = unpack(format, counts[place])
    local taken = count > cost and cost or count
    counts[place] = pack(format, count - taken)
    cost, total = cost - taken, total - taken
    if cost == 0 then break end
  end
  call('SET', key, pack(HEAD, last, total, expiry_s) .. table.concat(counts), 'KEEPTTL')
  return true
end
