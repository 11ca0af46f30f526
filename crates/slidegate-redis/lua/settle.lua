-- Corrects the charges of a call once: reverts charges and adds others, unless the record of the call says that this
-- has been done. The lines with `@` are replaced. The first one becomes code that reverts the only charge in a usual state,
-- and sets `is_reverted`. The others become the functions `revert_charges` and `decide_call`, which are the drivers for
-- these, and base.lua. Redis creates these functions only if they are needed: most settlements only revert one charge.
--
-- The last key is the key of the record (see once.lua). ARGV[1] contains the record of a call that is only settled
-- (33 bytes, the last 8 are the digest of the actual costs), the minimum time to live of the record in milliseconds
-- (double), the number of the keys of the charges to revert, which are first (uint16), the length of the next part
-- (uint32), ARGV[1] for the charges to revert, and ARGV[1] for the charges to add. An empty part means that there are none.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local ttl_ms, revert_keys, revert_bytes = unpack('<dHI4', ARGV[1], 34)
local record_key = KEYS[#KEYS]
-- The record is written first: if an error ends the script, the charges are not corrected twice. Redis runs these two
-- commands faster than SET with options.
if call('SETNX', record_key, ARGV[1]:sub(1, 33)) == 1 then
  call('PEXPIRE', record_key, ('%d'):format(ttl_ms))
else
  local record = call('GET', record_key) or ''
  if #record < 33 then return redis.error_reply('FOREIGN value not written by slidegate at ' .. record_key) end
  local value = ARGV[1]:sub(26, 33)
  if record:byte(25) == 1 then return record:sub(26, 33) == value and '\1' or '\2' end
  local left_ms = call('PTTL', record_key)
  if left_ms > ttl_ms then ttl_ms = left_ms end
  call('SET', record_key, record:sub(1, 24) .. '\1' .. value .. record:sub(34), 'PX', ttl_ms)
end
local failed, is_reverted = nil, revert_bytes == 0
-- @revert_one
if not is_reverted then
  -- @revert_charges
  local reply = revert_charges(KEYS, { ARGV[1]:sub(48, 47 + revert_bytes) })
  if type(reply) == 'table' and reply.err then failed = reply end
end
if #ARGV[1] > 47 + revert_bytes then
  -- @decide_call
  local added_keys = {}
  for nth = revert_keys + 1, #KEYS - 1 do added_keys[nth - revert_keys] = KEYS[nth] end
  decide_call(added_keys, { ARGV[1]:sub(48 + revert_bytes) })
end
return failed or '\0'
