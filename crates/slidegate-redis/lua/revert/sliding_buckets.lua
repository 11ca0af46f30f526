local function revert(key, precision_us, _, counted, cost, charged_at)
  local value = call('GET', key)
  if not value then return true end
  local width, format = count_format(value, counted)
  if not width then return nil end
  local last, total, expiry_s = unpack(HEAD, value)
  local bucket, newest = charged_at / precision_us, last / precision_us
  bucket, newest = bucket - bucket % 1, newest - newest % 1
  -- A charge after the newest bucket was made before a clock stepped back. The units of that time are now in the newest
  -- bucket.
  if bucket > newest then bucket = newest end
  if bucket + counted <= newest then return true end
  local place = HEAD_BYTES + bucket % counted * width
  local count = unpack(format, value, place + 1)
  if cost > count then cost = count end
  value = pack(HEAD, last, total - cost, expiry_s)
    .. value:sub(HEAD_BYTES + 1, place) .. pack(format, count - cost) .. value:sub(place + width + 1)
  call('SET', key, value, 'KEEPTTL')
  return true
end
