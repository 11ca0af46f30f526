-- Reverts the only charge in place if its log is the first one of its value, and the charge is in the newest entry and
-- leaves units in it: nearly always, because most reservations are settled soon.
if revert_bytes == 53 then
  local tag, _, _, tick_us, _, cost, charged_at = unpack('<I4I4ddddd', ARGV[1], 53)
  local head = call('GETRANGE', KEYS[1], '0', '32')
  -- A width of 8 means that the log has more units than the 32-bit fields of its head can have, so it is not changed
  -- here.
  if #head == 33 and head:byte(33) < 8 then
    local found_tag, _, newest, used, span, newest_units = unpack('<I4I4dI4I4I4', head)
    local tick = charged_at / tick_us
    tick = tick - tick % 1
    if found_tag == tag and tick >= newest - span and tick <= newest and cost < newest_units then
      call('SETRANGE', KEYS[1], '16', pack('<I4I4I4', used - cost, span, newest_units - cost))
      is_reverted = true
    end
  end
end
