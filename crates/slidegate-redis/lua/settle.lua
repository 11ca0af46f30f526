-- Corrects the charges of a call once: reverts charges and adds others, unless the record of the call says that this
-- has been done. The lines with `@` are replaced by the functions `revert_charges` and `decide_call`, the drivers for
-- these. Redis creates these functions only if they are needed: most settlements only revert.
--
-- The last key is the key of the record (see once.lua). ARGV[1] contains the digest of the actual costs (8 bytes), the
-- minimum time to live of the record in milliseconds (double), the number of the keys of the charges to
-- revert, which are first (uint16), the length of the next part (uint32), ARGV[1] for the charges to revert, and ARGV[1]
-- for the charges to add. An empty part means that there are none.
local RECORD_HEAD_BYTES = 33
local EMPTY_HEAD = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1'
local ttl_ms, revert_keys, revert_bytes = unpack('<dHI4', ARGV[1], 9)
local value = ARGV[1]:sub(1, 8)
local record_key = KEYS[#KEYS]
-- The record is written first: if an error ends the script, the charges are not corrected twice.
if not call('SET', record_key, EMPTY_HEAD .. value, 'PX', ttl_ms, 'NX') then
  local record = call('GET', record_key) or ''
  if #record < RECORD_HEAD_BYTES then return redis.error_reply(FOREIGN .. record_key) end
  if record:byte(25) == 1 then return record:sub(26, 33) == value and '\1' or '\2' end
  local left_ms = call('PTTL', record_key)
  if left_ms > ttl_ms then ttl_ms = left_ms end
  call('SET', record_key, record:sub(1, 24) .. '\1' .. value .. record:sub(34), 'PX', ttl_ms)
end
local failed
if revert_bytes > 0 then
  -- @revert_charges
  local reply = revert_charges(KEYS, { ARGV[1]:sub(23, 22 + revert_bytes) })
  if type(reply) == 'table' and reply.err then failed = reply end
end
local added = ARGV[1]:sub(23 + revert_bytes)
if #added > 0 then
  -- @decide_call
  local added_keys = {}
  for nth = revert_keys + 1, #KEYS - 1 do added_keys[nth - revert_keys] = KEYS[nth] end
  decide_call(added_keys, { added })
end
return failed or '\0'
