-- Changes the record of a call whose limits are in several slots (see once.lua). ARGV[1] contains the operation (byte),
-- the time to live in milliseconds (double), and the record.
--
-- Operation 0 claims the call: it creates a record without a reply, unless one exists. The reply is then '\0'. Otherwise
-- it is the reply of once.lua, or '\3' for a claim of the same call. Operation 1 replaces the record of the claim, and
-- operation 2 removes it.
local CLAIM_BYTES, RECORD_HEAD_BYTES = 24, 33
local operation, ttl_ms = unpack('<Bd', ARGV[1])
local key, new = KEYS[1], ARGV[1]:sub(10)
local record = call('GET', key)
if operation == 0 then
  if not record then
    call('SET', key, new, 'PX', ttl_ms)
    return '\0'
  end
  if #record ~= CLAIM_BYTES and #record < RECORD_HEAD_BYTES then return redis.error_reply(FOREIGN .. key) end
  if #record == RECORD_HEAD_BYTES or record:sub(1, 8) ~= new:sub(1, 8) then return '\2' end
  if #record == CLAIM_BYTES then return '\3' end
  return '\1' .. record:sub(9, 24) .. record:sub(RECORD_HEAD_BYTES + 1)
elseif operation == 1 then
  call('SET', key, new, 'PX', ttl_ms)
elseif record and #record == CLAIM_BYTES then
  call('UNLINK', key)
end
return '\0'
