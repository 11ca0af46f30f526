-- Decides a call with an id, unless the record of the call exists. `decide_call` is the driver of a call without an id.
--
-- The last key is the key of the record. ARGV[1] contains the digest of the request and the digest of the hits (8 bytes
-- each), the time of the caller's clock (double), the time to live of the record in milliseconds (double), the number
-- of hits (uint16), the veto of each hit (byte), and then ARGV[1] of the driver.
--
-- A record contains both digests, the time of the caller's clock, 1 if the charges of the call have been settled and
-- otherwise 0, the digest of the costs to which they were settled, and the reply of the driver.
local RECORD_HEAD_BYTES = 33
local ttl_ms, hits = unpack('<dH', ARGV[1], 25)
local record_key = KEYS[#KEYS]
local record = call('GET', record_key)
if record then
  -- If the clock of Redis has stepped back, the record would live too long, so its time to live begins again. A settled
  -- record may be kept for longer.
  if record:byte(25) ~= 1 and call('PTTL', record_key) > ttl_ms + 1000 then
    call('PEXPIRE', record_key, ('%d'):format(ttl_ms))
  end
  -- A record of 24 bytes is a claim of the call (see call_record.lua).
  if #record == 24 and record:sub(1, 8) == ARGV[1]:sub(1, 8) then return '\3' end
  if #record < RECORD_HEAD_BYTES then return redis.error_reply(FOREIGN .. record_key) end
  if #record == RECORD_HEAD_BYTES or record:sub(1, 8) ~= ARGV[1]:sub(1, 8) then return '\2' end
  return '\1' .. record:sub(9, 24) .. record:sub(RECORD_HEAD_BYTES + 1)
end
local reply = decide_call(KEYS, { ARGV[1]:sub(35 + hits) })
if type(reply) == 'table' then return reply end
-- The call is admitted if each hit that denies alone fits, and one of the joint hits fits if there are any.
local admitted, has_joint, joint_fits = true, false, false
for nth = 1, hits do
  local kind, _, _, retry = unpack('<Bddd', reply, nth * 41 - 40)
  local fits = kind == 1 or kind == 6 or (kind == 0 and retry == 0)
  local veto = ARGV[1]:byte(34 + nth)
  if kind == 2 or (veto == 0 and not fits) then admitted = false end
  if veto == 1 then has_joint, joint_fits = true, joint_fits or fits end
end
if admitted and (joint_fits or not has_joint) then
  call('SET', record_key, ARGV[1]:sub(1, 24) .. ('\0'):rep(9) .. reply, 'PX', ttl_ms)
end
return '\0' .. reply
